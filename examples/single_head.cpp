// Single-head attention, step by step. There is no separate function for it: heads is a size.
//
// Two tokens, d_k = d_v = 2. The library hands out what each step leaves behind.
#include <attend/attend.h>

#include <cstdio>

namespace {

void show(const char* name, const attend::Tensor& t) {  // a [1, 1, 2, 2] tensor
  const double* x = t.data<double>();
  std::printf("%-22s [%9.6f %9.6f]\n%-22s [%9.6f %9.6f]\n", name, x[0], x[1], "", x[2], x[3]);
}

}  // namespace

int main() {
  const attend::Shape shape{1, 1, 2, 2};  // [batch, heads, tokens, head size]
  const attend::Tensor q({1.0, 3.0, 2.0, 0.5}, shape);
  const attend::Tensor k({0.5, 2.0, 1.0, 3.0}, shape);
  const attend::Tensor v({0.0, 4.0, 1.0, 2.0}, shape);
  attend::Tensor out(shape, attend::DType::f64), dots = out, scores = out, weights = out;

  // Step 1 without its scale: q . k of each query with each key.
  attend::attention(q, k, v, out, {.scale = 1}, {.scores = dots, .stage = attend::ScoreStage::raw});
  // All four steps; the scale is 1 / sqrt(d_k) unless given.
  attend::attention(q, k, v, out, {}, {.weights = weights, .scores = scores});

  show("Q K^T", dots);
  show("1 scores  / sqrt(2)", scores);
  std::printf("2 mask                 nothing is hidden\n");
  show("3 softmax weights", weights);
  show("4 values  weights V", out);
}
