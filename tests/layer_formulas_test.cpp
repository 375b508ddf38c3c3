// The simple layers against their formulas, written out in f64 step by step.
#include "support/io_files.h"
#include "support/layer_cases.h"
#include "support/widen.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

namespace attend::test {
namespace {

using Values = std::vector<double>;

// y[r][o] = sum over c of x[r][c] W[o][c] + b[o]
Values naive_linear(const Values& x, const Values& w, const Values& b, std::size_t in) {
  const std::size_t out = w.size() / in, rows = x.size() / in;
  Values y(rows * out);
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t o = 0; o < out; ++o) {
      for (std::size_t c = 0; c < in; ++c) y[r * out + o] += x[r * in + c] * w[o * in + c];
      if (!b.empty()) y[r * out + o] += b[o];
    }
  return y;
}

// A parameter of a list, or nothing.
template <class List>
Values named(const List& list, const std::string& name) {
  for (const NamedView& p : list)
    if (p.name == name) return widen(p.tensor);
  return {};
}

TEST(LinearFormula, is_x_times_the_transposed_weight_plus_bias) {
  for (const bool bias : {true, false}) {
    Linear made({.in = 5, .out = 3, .bias = bias, .type = DType::f64});
    fill(made.writable_parameters(), 1);
    const Linear& layer = made;
    const Tensor x = numbers({2, 4, 5}, DType::f64, 2);
    const Tensor y = layer.forward(x);
    EXPECT_EQ(y.shape(), (Shape{2, 4, 3}));
    const auto list = layer.parameters();
    EXPECT_EQ(list.size(), bias ? 2U : 1U);
    expect_near(widen(y), naive_linear(widen(x), named(list, "weight"), named(list, "bias"), 5),
                1e-14);
  }
}

TEST(LinearFormula, weights_may_be_given) {
  const Linear layer(Tensor({1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F}, {2, 3}),
                     Tensor({10.0F, 20.0F}, {2}));
  EXPECT_EQ(layer.in(), 3);
  EXPECT_EQ(layer.out(), 2);
  EXPECT_EQ(widen(layer.forward(Tensor({1.0F, 0.0F, -1.0F}, {3}))), (Values{8, 18}));
  EXPECT_EQ(widen(Linear(layer.weight()).forward(Tensor({1.0F, 0.0F, -1.0F}, {3}))),
            (Values{-2, -2}));
}

TEST(NormFormula, subtracts_the_mean_and_divides_by_the_deviation) {
  for (const bool rms : {false, true}) {
    Norm made({.dim = 6,
               .kind = rms ? NormKind::rms_norm : NormKind::layer_norm,
               .epsilon = 0.01,
               .type = DType::f64});
    fill(made.writable_parameters(), 1);
    const Norm& layer = made;
    const auto list = layer.parameters();
    EXPECT_EQ(list.size(), rms ? 1U : 2U) << "RMSNorm has no bias";
    const Values w = named(list, "weight"), b = named(list, "bias");
    const Tensor x = numbers({3, 6}, DType::f64, 2);
    const Values in = widen(x);
    Values expected;
    for (std::size_t r = 0; r < 3; ++r) {
      double mean = 0, variance = 0;
      for (std::size_t c = 0; c < 6 && !rms; ++c) mean += in[r * 6 + c] / 6;
      for (std::size_t c = 0; c < 6; ++c) variance += std::pow(in[r * 6 + c] - mean, 2) / 6;
      for (std::size_t c = 0; c < 6; ++c)
        expected.push_back((in[r * 6 + c] - mean) / std::sqrt(variance + 0.01) * w[c] +
                           (rms ? 0 : b[c]));
    }
    expect_near(widen(layer.forward(x)), expected, 1e-14);
  }
}

TEST(NormFormula, numbers_far_from_zero_lose_nothing) {
  const LayerNorm layer({.dim = 4});
  const Tensor x({16777200.0F, 16777202.0F, 16777204.0F, 16777206.0F}, {4});
  expect_near(widen(layer.forward(x)),
              {-3 / std::sqrt(5), -1 / std::sqrt(5), 1 / std::sqrt(5), 3 / std::sqrt(5)}, 1e-5);
}

double naive_activation(Activation kind, double x) {
  switch (kind) {
    case Activation::relu: return std::max(x, 0.0);
    case Activation::gelu: return x * 0.5 * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
    default: return x / (1 + std::exp(-x));
  }
}

TEST(NormFormula, numbers_whose_squares_are_too_large_are_normalised_alike) {
  const LayerNorm layer_norm({.dim = 4, .epsilon = 1e-300, .type = DType::f64});
  const RMSNorm rms_norm({.dim = 4, .epsilon = 1e-300, .type = DType::f64});
  const Tensor dy({0.5, -1.0, 2.0, 0.25}, {4});
  for (const double unit : {0x1p600, 0x1p1022})
    for (const auto& values : {std::array{1.0, -1.5, 1.75, 0.5}, std::array{1.75, 1.5, 1.0, 1.75},
                               std::array{-1.75, 1.75, 1.75, 1.75}}) {
      Tensor small({4}, DType::f64), large({4}, DType::f64);
      for (std::int64_t c = 0; c < 4; ++c) {
        small.at<double>({c}) = values[static_cast<std::size_t>(c)];
        large.at<double>({c}) = unit * values[static_cast<std::size_t>(c)];
      }
      for (const Norm* norm :
           {static_cast<const Norm*>(&layer_norm), static_cast<const Norm*>(&rms_norm)}) {
        const Tensor y = norm->forward(large), expected = norm->forward(small);
        const Tensor dx = norm->backward(dy, {large}).dx;
        const Tensor dx_expected = norm->backward(dy, {small}).dx;
        for (std::int64_t c = 0; c < 4; ++c) {
          EXPECT_NEAR(y.at<double>({c}), expected.at<double>({c}), 1e-14) << "feature " << c;
          EXPECT_NEAR(dx.at<double>({c}) * unit, dx_expected.at<double>({c}), 1e-14);
        }
      }
    }
}

TEST(NormFormula, the_largest_number_in_every_place_stays_finite) {
  const LayerNorm norm({.dim = 3, .type = DType::f64});
  Tensor x({3}, DType::f64);
  for (std::int64_t c = 0; c < 3; ++c) x.at<double>({c}) = std::numeric_limits<double>::max();
  const Tensor y = norm.forward(x);
  for (std::int64_t c = 0; c < 3; ++c)
    EXPECT_LT(std::abs(y.at<double>({c})), 2);  // the mean is rounded
}

TEST(FeedForwardFormula, is_two_maps_around_the_activation) {
  for (const Activation kind :
       {Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::swiglu}) {
    FeedForward made({.model_dim = 4, .hidden_dim = 7, .activation = kind, .type = DType::f64});
    fill(made.writable_parameters(), 1);
    const FeedForward& layer = made;
    const auto list = layer.parameters();
    const Tensor x = numbers({5, 4}, DType::f64, 2);
    const auto map = [&](const std::string& name, const Values& from, std::size_t in) {
      return naive_linear(from, named(list, name + ".weight"), named(list, name + ".bias"), in);
    };
    Values hidden = map("up", widen(x), 4);
    if (kind == Activation::swiglu) {
      const Values gate = map("gate", widen(x), 4);
      for (std::size_t n = 0; n < hidden.size(); ++n) hidden[n] *= naive_activation(kind, gate[n]);
    } else {
      for (double& h : hidden) h = naive_activation(kind, h);
    }
    expect_near(widen(layer.forward(x)), map("down", hidden, 7), 1e-14);
  }
}

TEST(FeedForwardFormula, the_hidden_width_is_four_times_the_model_s) {
  const FeedForward layer({.model_dim = 3});
  EXPECT_EQ(layer.options().hidden_dim, 12);
  EXPECT_EQ(parameter_count(layer.parameters()), 12 * 3 + 12 + 3 * 12 + 3);
}

TEST(FeedForwardFormula, the_names_are_in_order) {
  const FeedForward layer({.model_dim = 3, .activation = Activation::swiglu});
  std::string names;
  for (const NamedView& p : layer.parameters()) names += p.name + " ";
  EXPECT_EQ(names, "up.weight up.bias gate.weight gate.bias down.weight down.bias ");
}

TEST(EmbeddingFormula, takes_rows_of_the_table) {
  const Embedding layer({.vocabulary = 5, .dim = 3, .type = DType::f16});
  const Tensor tokens({4, 0, 4, 2}, {2, 2});
  const Tensor y = layer.forward(tokens);
  EXPECT_EQ(y.shape(), (Shape{2, 2, 3}));
  for (std::int64_t n = 0; n < 4; ++n)
    for (std::int64_t c = 0; c < 3; ++c)
      EXPECT_EQ(y.at<f16>({n / 2, n % 2, c}),
                layer.weight().at<f16>({tokens.data<std::int32_t>()[n], c}));
  const Tensor wide({4L, 0L, 4L, 2L}, {2, 2});
  EXPECT_EQ(difference(layer.forward(wide), y), "");
  EXPECT_EQ(difference(layer.forward(tokens.view().permute({1, 0})), y.view().permute({1, 0, 2})),
            "");
  EXPECT_EQ(layer.forward(Tensor(Shape{}, DType::i64)).shape(), (Shape{3}));
  EXPECT_EQ(layer.forward(Tensor({0, 2}, DType::i64)).shape(), (Shape{0, 2, 3}));
}

TEST(PositionsFormula, learned_ones_are_rows_of_the_table) {
  const LearnedPositions layer({.length = 6, .dim = 2, .type = DType::f64});
  const Tensor x = numbers({2, 3, 2}, DType::f64, 1);
  const Tensor y = layer.forward(x, 3);
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t i = 0; i < 3; ++i)
      for (std::int64_t c = 0; c < 2; ++c)
        EXPECT_EQ(y.at<double>({b, i, c}),
                  x.at<double>({b, i, c}) + layer.weight().at<double>({i + 3, c}));
}

TEST(PositionsFormula, sinusoidal_ones_are_sines_and_cosines) {
  for (const DType type : kFloatTypes) {
    const SinusoidalPositions layer({.dim = 6, .base = 100});
    const Tensor x = numbers({2, 5, 6}, type, 1);
    const Tensor y = layer.forward(x, 7);
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t i = 0; i < 5; ++i)
        for (std::int64_t c = 0; c < 6; ++c) {
          const double angle = static_cast<double>(i + 7) / std::pow(100.0, double(c / 2) / 3);
          const double sum = value(x, {b, i, c}) + (c % 2 == 0 ? std::sin(angle) : std::cos(angle));
          EXPECT_NEAR(value(y, {b, i, c}), sum, 2.01 * unit_roundoff(type)) << i << " " << c;
        }
    const Tensor later = layer.forward(x.view().slice(1, 2, 5), 9);
    EXPECT_EQ(difference(later, y.view().slice(1, 2, 5)), "") << "offset = place in the sequence";
  }
}

TEST(PositionsFormula, the_gradient_passes_sinusoidal_ones_as_it_is) {
  const SinusoidalPositions positions({.dim = 2});
  const Tensor x({1.0F, 2.0F, 3.0F, 4.0F}, {2, 2}), dy({5.0F, 6.0F, 7.0F, 8.0F}, {2, 2});
  const auto [y, saved] = positions.forward_train(x, 3);
  const LayerGradients gradients = positions.backward(dy, saved);
  const Tensor expected = positions.forward(x, 3);
  for (int n = 0; n < 4; ++n) {
    EXPECT_EQ(y.data<float>()[n], expected.data<float>()[n]);
    EXPECT_EQ(gradients.dx.data<float>()[n], dy.data<float>()[n]);
  }
  EXPECT_TRUE(gradients.parameters.empty());
}

}  // namespace
}  // namespace attend::test
