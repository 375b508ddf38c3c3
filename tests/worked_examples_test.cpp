// The worked examples of docs/notes with their true values: one head step by step, two heads from X
// to the output, and the shapes that the notes pass through a layer.
#include "support/property_compare.h"

#include <cmath>

namespace attend::test {
namespace {

// Values that are given to seven digits.
void expect_values(const ConstTensorView& found, const std::vector<double>& values,
                   double error = 5.1e-8) {
  const std::vector<double> list = widen(found);
  ASSERT_EQ(list.size(), values.size());
  for (std::size_t n = 0; n < list.size(); ++n) EXPECT_NEAR(list[n], values[n], error) << n;
}

// ---- A single head of two tokens ---------------------------------------------------------------

class SingleHead : public testing::Test {
 protected:
  // Everything that a call gives, in f64.
  void attend(std::optional<double> scale) {
    AttentionOptions options;
    options.scale = scale;
    AttentionOutputs outputs;
    outputs.scores = scores_;
    outputs.weights = weights_;
    attention(q_, k_, v_, out_, options, outputs);
  }
  const Tensor q_{{1.0, 3.0, 2.0, 0.5}, {1, 1, 2, 2}};
  const Tensor k_{{0.5, 2.0, 1.0, 3.0}, {1, 1, 2, 2}};
  const Tensor v_{{0.0, 4.0, 1.0, 2.0}, {1, 1, 2, 2}};
  Tensor scores_{{1, 1, 2, 2}, DType::f64}, weights_{{1, 1, 2, 2}, DType::f64};
  Tensor out_{{1, 1, 2, 2}, DType::f64};
};

TEST_F(SingleHead, scores_are_q_times_k_transposed) {
  attend(1.0);
  expect_values(scores_, {6.5, 10, 2, 3.5}, 0);  // Q K, without the transpose: 3.5, 11, 1.5, 5.5
}

TEST_F(SingleHead, scores_are_divided_by_the_root_of_d) {
  attend(std::nullopt);
  expect_values(scores_, {4.5961941, 7.0710678, 1.4142136, 2.4748737});
}

TEST_F(SingleHead, weights_sum_to_one) {
  attend(std::nullopt);
  expect_values(weights_, {0.0776385, 0.9223615, 0.2571833, 0.7428167});
}

TEST_F(SingleHead, output) {
  attend(std::nullopt);
  expect_values(out_, {0.9223615, 2.1552770, 0.7428167, 2.5143666});
}

// In every type, to what the type can hold.
TEST_F(SingleHead, output_in_every_type) {
  for (const DType type : cases::kTypes) {
    const auto as = [type](const Tensor& t) {
      Tensor converted(t.shape(), type);
      for (std::int64_t i = 0; i < 2; ++i)
        for (std::int64_t x = 0; x < 2; ++x)
          set_value(converted, {0, 0, i, x}, value_at(t, {0, 0, i, x}));
      return converted;
    };
    expect_values(attention(as(q_), as(k_), as(v_)), {0.9223615, 2.1552770, 0.7428167, 2.5143666},
                  5.1e-8 + 3 * unit_roundoff(type));
  }
}

// ---- Two heads: X, Q1, Q2, both heads, concat, output ------------------------------------------

using Matrix = std::vector<std::vector<double>>;

Matrix times(const Matrix& a, const Matrix& b) {
  Matrix c(a.size(), std::vector<double>(b[0].size(), 0));
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t n = 0; n < b.size(); ++n)
      for (std::size_t j = 0; j < b[0].size(); ++j) c[i][j] += a[i][n] * b[n][j];
  return c;
}

void expect_matrix(const Matrix& found, const Matrix& values, double error) {
  ASSERT_EQ(found.size(), values.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    for (std::size_t j = 0; j < found[i].size(); ++j)
      EXPECT_NEAR(found[i][j], values[i][j], error) << i << ", " << j;
}

TEST(TwoHeads, from_x_to_the_output) {
  const Matrix x = {{1, 0.5, -1, 2}, {-0.5, 1, 0.3, -2}};
  const Matrix w_q1 = {{0.1, 0.4}, {-0.2, 0.3}, {1.0, -0.5}, {0.5, 0.2}};
  const Matrix w_q2 = {{-0.3, 0.2}, {1.1, 0.6}, {-0.4, 0.8}, {0.7, -0.1}};
  const Matrix w_o = {
      {0.5, -0.2, 1.1, 0.3}, {0.1, 0.8, -0.4, 0.6}, {-0.3, 0.7, 0.2, 1.0}, {0.9, -0.5, 0.3, -0.8}};
  const Matrix q1 = times(x, w_q1), q2 = times(x, w_q2);
  expect_matrix(q1, {{0, 1.45}, {-0.95, -0.45}}, 1e-15);  // not 0.85, -0.05, -0.29, 0.74
  expect_matrix(q2, {{2.05, -0.5}, {-0.27, 0.94}}, 1e-15);

  // The note gives no K and V. Ours: K1 = Q2, K2 = Q1 (crossed, so that a missing transpose shows),
  // V1 = Q1, V2 = Q2.
  const auto heads = [](const Matrix& first, const Matrix& second) {
    Tensor t({1, 2, 2, 2}, DType::f64);
    for (std::int64_t i = 0; i < 2; ++i)
      for (std::int64_t n = 0; n < 2; ++n) {
        const auto row = static_cast<std::size_t>(i), column = static_cast<std::size_t>(n);
        t.at<double>({0, 0, i, n}) = first[row][column];
        t.at<double>({0, 1, i, n}) = second[row][column];
      }
    return t;
  };
  const Tensor q = heads(q1, q2), k = heads(q2, q1), v = heads(q1, q2);
  Tensor concat({1, 2, 4}, DType::f64), weights({1, 2, 2, 2}, DType::f64);
  AttentionOutputs outputs;
  outputs.weights = weights;
  // The output's heads lie side by side in each row of concat.
  attention(q, k, v, TensorView(concat.data<double>(), {1, 2, 2, 2}, {8, 2, 4, 1}), {}, outputs);
  expect_values(weights, {0.1859659, 0.8140341, 0.2496915, 0.7503085,    // A1
                          0.6693704, 0.3306296, 0.7467815, 0.2532185});  // A2
  expect_values(concat, {-0.7733324, -0.0966648, 1.2829394, -0.0238934,  //
                         -0.7127930, 0.0244139, 1.4625331, -0.1353653});

  const double* rows = concat.data<double>();
  const Matrix output =
      times({{rows[0], rows[1], rows[2], rows[3]}, {rows[4], rows[5], rows[6], rows[7]}}, w_o);
  expect_matrix(output,
                {{-0.8027186, 0.9873389, -0.5625799, 1.0120556},
                 {-0.9145439, 1.2535455, -0.5419409, 1.3716358}},
                5.1e-8);
}

// ---- Shapes ------------------------------------------------------------------------------------

// x [batch, length, 512] through 8 heads of 64: heads move before the length, and back. Memory
// stays [batch, length, 512] on both ends.
void expect_shapes(std::int64_t batch, std::int64_t length) {
  constexpr std::int64_t kHeads = 8, kD = 64;
  Tensor x = gaussian({batch, length, kHeads * kD}, DType::f32, 5);
  Tensor y({batch, length, kHeads * kD});
  const Shape split = {batch, length, kHeads, kD};
  const TensorView in = TensorView(x.data<float>(), split).permute({0, 2, 1, 3});
  const TensorView out = TensorView(y.data<float>(), split).permute({0, 2, 1, 3});
  EXPECT_EQ(in.shape(), (Shape{batch, kHeads, length, kD}));
  Tensor weights({batch, kHeads, length, length});
  AttentionOutputs outputs;
  outputs.weights = weights;
  attention(in, in, in, out, {}, outputs);

  // One row by hand: the last token's fourth head.
  const std::int64_t b = batch - 1, h = 3, i = length - 1;
  std::vector<double> p(static_cast<std::size_t>(length));
  double sum = 0;
  for (std::int64_t j = 0; j < length; ++j) {
    double s = 0;
    for (std::int64_t n = 0; n < kD; ++n)
      s += double{x.at<float>({b, i, h * kD + n})} * x.at<float>({b, j, h * kD + n});
    sum += p[static_cast<std::size_t>(j)] = std::exp(s / 8);
  }
  for (std::int64_t j = 0; j < length; ++j)
    EXPECT_NEAR(weights.at<float>({b, h, i, j}), p[static_cast<std::size_t>(j)] / sum, 1e-6);
  for (std::int64_t n = 0; n < kD; ++n) {
    double o = 0;
    for (std::int64_t j = 0; j < length; ++j)
      o += p[static_cast<std::size_t>(j)] / sum * x.at<float>({b, j, h * kD + n});
    EXPECT_NEAR(y.at<float>({b, i, h * kD + n}), o, 1e-5) << n;
  }
}

TEST(Shapes, two_sequences_of_ten_tokens) { expect_shapes(2, 10); }
TEST(Shapes, thirty_two_sequences_of_twenty_tokens) { expect_shapes(32, 20); }

}  // namespace
}  // namespace attend::test
