// The least program that uses attend: one query between two keys, and the answer checked by hand.
#include <attend/attend.h>

#include <cmath>
#include <cstdio>
#include <cstring>

int main() {
  // Scores 0 and log 3, so the weights are 1/4 and 3/4: 1/4 * 8 + 3/4 * 16 = 14.
  const float one[] = {1.0f}, scores[] = {0.0f, std::log(3.0f)}, values[] = {8.0f, 16.0f};
  float result[] = {0.0f};
  const attend::ConstTensorView q(one, {1, 1, 1, 1});
  const attend::ConstTensorView k(scores, {1, 1, 2, 1});
  const attend::ConstTensorView v(values, {1, 1, 2, 1});
  const attend::TensorView out(result, {1, 1, 1, 1});
  attend::attention(q, k, v, out);

  // An error thrown inside the library is caught by its type outside of it.
  bool refused = false;
  try {
    attend::attention(q, attend::ConstTensorView(scores, {1, 1, 1, 2}), v, out);
  } catch (const attend::InvalidArgument&) {
    refused = true;
  }

  const bool same_version = std::strcmp(attend::version(), ATTEND_VERSION) == 0;
  std::printf("attend %s (headers %s): out %.6f, wrong shape %s\n", attend::version(),
              ATTEND_VERSION, static_cast<double>(result[0]), refused ? "refused" : "ACCEPTED");
  return std::fabs(result[0] - 14.0f) < 1e-5f && refused && same_version ? 0 : 1;
}
