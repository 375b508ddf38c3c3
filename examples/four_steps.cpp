// Attention in plain loops, without the library: read this first. Then the same in one call.
// src/reference/attention.cpp goes through the same four steps, with every option.
#include <attend/attend.h>

#include <cmath>
#include <cstdio>

int main() {
  // [four_steps]
  // Three tokens, one head of size 2. Token i may look at tokens 0 to i (causal).
  const double q[3][2] = {{1, 3}, {2, 0.5}, {0, 1}};  // what each token looks for
  const double k[3][2] = {{0.5, 2}, {1, 3}, {2, 1}};  // what each token is found by
  const double v[3][2] = {{0, 4}, {1, 2}, {3, 0}};    // what each token hands over
  double out[3][2] = {};

  for (int i = 0; i < 3; ++i) {  // each query by itself
    double s[3], sum = 0;
    for (int j = 0; j < 3; ++j)  // 1 scores: q . k / sqrt(head size)
      s[j] = (q[i][0] * k[j][0] + q[i][1] * k[j][1]) / std::sqrt(2);
    for (int j = i + 1; j < 3; ++j) s[j] = -INFINITY;   // 2 mask: the future is hidden
    for (int j = 0; j < 3; ++j) sum += std::exp(s[j]);  // 3 softmax: weights exp(s) / sum
    for (int j = 0; j < 3; ++j)                         // 4 values: their weighted mean
      for (int x = 0; x < 2; ++x) out[i][x] += std::exp(s[j]) / sum * v[j][x];
  }

  double same[3][2];
  const attend::Shape shape{1, 1, 3, 2};  // [batch, heads, tokens, head size]
  attend::attention({q[0], shape}, {k[0], shape}, {v[0], shape}, {same[0], shape},
                    {.causal = true});
  // [/four_steps]

  bool equal = true;
  for (int i = 0; i < 3; ++i) {
    std::printf("token %d   by hand %.6f %.6f   attend %.6f %.6f\n", i, out[i][0], out[i][1],
                same[i][0], same[i][1]);
    for (int x = 0; x < 2; ++x) equal = equal && std::abs(out[i][x] - same[i][x]) < 1e-14;
  }
  return equal ? 0 : 1;
}
