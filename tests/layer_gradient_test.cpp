// The gradient of every parameter and input of every layer, by central differences.
#include "support/layer_cases.h"
#include "support/layer_gradients.h"

#include <gtest/gtest.h>

namespace attend::test {
namespace {

class LayerGradient : public testing::TestWithParam<LayerCase> {};

TEST_P(LayerGradient, agrees_with_differences) {
  const LayerCase& layer = GetParam();
  for (const Shape& lead : {Shape{1, 1}, Shape{2, 3}, Shape{1, 68}}) {
    Tensor x = numbers({lead[0], lead[1], layer.in}, DType::f64, 1);
    const Tensor dy = numbers({lead[0], lead[1], layer.out}, DType::f64, 2);
    const Trained trained = layer.train(x, dy, default_context());
    std::vector<Differentiated> all = paired(layer.parameters(), trained.gradients.parameters);
    all.push_back({"x", x, trained.gradients.dx});
    const GradientCheck check =
        check_gradients([&] { return weighted_sum(layer.forward(x, default_context()), dy); }, all);
    EXPECT_EQ(check.failures, "") << to_string(lead);
    // Of learned positions most of the table is not used, and a ReLU is often off.
    if (layer.positions || layer.name.find("relu") != std::string::npos)
      EXPECT_GT(check.noticing, 3);
    else EXPECT_GE(check.noticing * 10, check.differences * 9) << to_string(lead);
  }
}

INSTANTIATE_TEST_SUITE_P(Layers, LayerGradient, testing::ValuesIn(layer_cases(DType::f64)),
                         [](const auto& param) { return param.param.name; });

TEST(EmbeddingGradient, agrees_with_differences) {
  Embedding layer({.vocabulary = 6, .dim = 70, .type = DType::f64});
  const Tensor tokens({3L, 0L, 3L, 5L, 3L, 1L}, {2, 3});
  const Tensor dy = numbers({2, 3, 70}, DType::f64, 2);
  const auto [y, saved] = layer.forward_train(tokens);
  const LayerGradients gradients = layer.backward(dy, saved);
  EXPECT_FALSE(gradients.dx) << "there is none at whole numbers";
  const GradientCheck check =
      check_gradients([&] { return weighted_sum(layer.forward(tokens), dy); },
                      paired(layer.writable_parameters(), gradients.parameters));
  EXPECT_EQ(check.failures, "");
  EXPECT_GE(check.noticing, 4 * 70 - 3) << "tokens 0, 1, 3 and 5 are used";
}

// Gradients without which training would quietly stand still.
TEST(ActivationGradient, far_from_zero_is_0_or_1) {
  for (const Activation kind : {Activation::relu, Activation::gelu, Activation::gelu_tanh}) {
    FeedForward layer({.model_dim = 1, .hidden_dim = 1, .activation = kind, .bias = false});
    for (const Parameter& p : layer.writable_parameters()) *static_cast<float*>(p.value.data()) = 1;
    for (const float far : {50.0F, 1e5F, 1e20F, 3e38F}) {
      const Tensor one({1.0F}, {1});
      const auto slope = [&](float at) {
        const auto [y, saved] = layer.forward_train(Tensor({at}, {1}));
        EXPECT_EQ(y.at<float>({0}), at > 0 ? at : 0);
        return layer.backward(one, saved).dx.at<float>({0});
      };
      EXPECT_EQ(slope(far), 1) << far;
      EXPECT_EQ(slope(-far), 0) << far;
    }
  }
}

// The checker itself: it must see what is wrong.
TEST(GradientChecker, notices_wrong_gradients) {
  Tensor x({1.0, 2.0, 3.0}, {3});
  const auto loss = [&] {
    double sum = 0;
    for (int n = 0; n < 3; ++n) sum += x.data<double>()[n] * x.data<double>()[n];
    return sum;
  };
  const auto failures = [&](const Tensor& gradient) {
    return check_gradients(loss, {{"x", x, gradient}}).failures;
  };
  EXPECT_EQ(failures(Tensor({2.0, 4.0, 6.0}, {3})), "");
  EXPECT_EQ(failures(Tensor({2.0, 4.00001, 6.0}, {3})), "x[1]: 4.00001, by differences 4\n");
  EXPECT_NE(failures(Tensor({2.0, std::nan(""), 6.0}, {3})), "");
  EXPECT_EQ(failures(Tensor({2.0}, {1})), "x: gradient of another shape\n");
  EXPECT_EQ(failures(Tensor()), "x: gradient of another shape\n");
  const GradientCheck check = check_gradients(loss, {{"x", x, Tensor({3}, DType::f64)}});
  EXPECT_EQ(check.differences, 3);
  EXPECT_EQ(check.noticing, 3);
  const std::vector<NamedTensor> gradients = {{"v", x}};
  EXPECT_FALSE(paired({{"w", x}}, gradients)[0].gradient) << "of another name";
  EXPECT_EQ(paired({}, gradients).size(), 1U);
  EXPECT_NE(check_gradients(loss, paired({}, gradients)).failures, "");
}

}  // namespace
}  // namespace attend::test
