// What all layers have in common: nothing but the numbers of a row changes its bits, not strides,
// neighbours or threads.
#include "support/io_files.h"
#include "support/layer_cases.h"
#include "support/widen.h"

#include <gtest/gtest.h>

#include <cmath>
#include <thread>

namespace attend::test {
namespace {

class AllLayers : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, AllLayers, testing::ValuesIn(kFloatTypes),
                         [](const auto& param) { return std::string(name_of(param.param)); });

std::string differences(const Trained& a, const Trained& b) {
  std::string found = difference(a.y, b.y) + difference(a.gradients.dx, b.gradients.dx);
  for (std::size_t n = 0; n < a.gradients.parameters.size(); ++n)
    found += difference(a.gradients.parameters[n].tensor, b.gradients.parameters[n].tensor);
  return found;
}

TEST_P(AllLayers, take_inputs_of_every_rank) {
  for (const LayerCase& layer : layer_cases(GetParam())) {
    const Tensor x = numbers({2, 3, 2, layer.in}, GetParam(), 1);
    const Tensor y = layer.forward(x, default_context());
    EXPECT_EQ(y.shape(), (Shape{2, 3, 2, layer.out})) << layer;
    const auto same = [&](const Shape& in, const Shape& out) {
      const ConstTensorView view(x.view().data(), GetParam(), in);
      const ConstTensorView expected(y.view().data(), GetParam(), out);
      EXPECT_EQ(difference(layer.forward(view, default_context()), expected), "") << layer;
    };
    same({3, 2, layer.in}, {3, 2, layer.out});
    same({2, layer.in}, {2, layer.out});
    if (layer.positions) continue;
    same({12, layer.in}, {12, layer.out});
    same({layer.in}, {layer.out});
  }
}

TEST_P(AllLayers, strides_change_no_bit) {
  for (const LayerCase& layer : layer_cases(GetParam())) {
    const Tensor x = numbers({2, 3, 5, layer.in}, GetParam(), 1);
    const Tensor dy = numbers({2, 3, 5, layer.out}, GetParam(), 2);
    const Trained expected = layer.train(x, dy, default_context());
    Scattered far_x(x), far_dy(dy);
    const Trained found = layer.train(far_x.view(), far_dy.view(), default_context());
    EXPECT_EQ(differences(found, expected), "") << layer;
    // [2, 3, 5, in] in the memory order of [5, 2, 3, in]: rows that no single stride joins.
    const Tensor moved = Tensor::copy_of(x.view().permute({2, 0, 1, 3}));
    EXPECT_EQ(difference(layer.forward(moved.view().permute({1, 2, 0, 3}), default_context()),
                         expected.y),
              "")
        << layer;
    // One row for all.
    const ConstTensorView row = x.view().slice(0, 0, 1).slice(1, 0, 1).slice(2, 0, 1);
    const ConstTensorView repeated = row.broadcast_to({2, 3, 5, layer.in});
    EXPECT_EQ(difference(layer.forward(repeated, default_context()),
                         layer.forward(Tensor::copy_of(repeated), default_context())),
              "")
        << layer;
  }
}

TEST_P(AllLayers, a_row_is_the_same_alone_and_in_a_batch) {
  for (const LayerCase& layer : layer_cases(GetParam())) {
    const Tensor x = numbers({70, 3, layer.in}, GetParam(), 1);
    const Tensor dy = numbers({70, 3, layer.out}, GetParam(), 2);
    const Trained all = layer.train(x, dy, default_context());
    for (const std::int64_t b : {0, 1, 21, 69}) {
      const Trained one =
          layer.train(x.view().slice(0, b, b + 1), dy.view().slice(0, b, b + 1), default_context());
      EXPECT_EQ(difference(one.y, all.y.view().slice(0, b, b + 1)), "") << layer;
      EXPECT_EQ(difference(one.gradients.dx, all.gradients.dx.view().slice(0, b, b + 1)), "")
          << layer;
    }
  }
}

TEST_P(AllLayers, training_computes_what_forward_does) {
  for (const LayerCase& layer : layer_cases(GetParam())) {
    const Tensor x = numbers({4, 3, layer.in}, GetParam(), 1);
    const Tensor dy({4, 3, layer.out}, GetParam());
    const Trained trained = layer.train(x, dy, default_context());
    EXPECT_EQ(difference(trained.y, layer.forward(x, default_context())), "") << layer;
    for (const double dx : widen(trained.gradients.dx)) EXPECT_EQ(dx, 0);
  }
}

TEST_P(AllLayers, an_empty_batch_gives_nothing_and_no_gradient) {
  for (const LayerCase& layer : layer_cases(GetParam())) {
    const Trained trained = layer.train(Tensor({0, 3, layer.in}, GetParam()),
                                        Tensor({0, 3, layer.out}, GetParam()), default_context());
    EXPECT_EQ(trained.y.shape(), (Shape{0, 3, layer.out}));
    EXPECT_EQ(trained.gradients.dx.shape(), (Shape{0, 3, layer.in}));
    EXPECT_EQ(trained.gradients.parameters.size(), layer.parameters().size());
    for (const NamedTensor& t : trained.gradients.parameters)
      for (const double g : widen(t.tensor)) EXPECT_EQ(g, 0) << layer << " " << t.name;
  }
}

TEST_P(AllLayers, are_near_the_same_layer_in_f64) {
  const double tolerance = 8 * unit_roundoff(GetParam());
  const std::vector<LayerCase> exact = layer_cases(DType::f64);
  std::size_t n = 0;
  for (const LayerCase& layer : layer_cases(GetParam())) {
    TensorFile file;
    for (const Parameter& p : layer.parameters())
      file.tensors.push_back({p.name, Tensor::copy_of(p.value)});
    load_parameters(file, exact[n].parameters());
    const Tensor x = numbers({4, 3, layer.in}, GetParam(), 1);
    const Tensor dy = numbers({4, 3, layer.out}, GetParam(), 2);
    const auto widened_copy = [](const Tensor& t) {
      Tensor wide(t.shape(), DType::f64);
      std::ranges::copy(widen(t), wide.data<double>());
      return wide;
    };
    const Trained a = layer.train(x, dy, default_context());
    const Trained b = exact[n++].train(widened_copy(x), widened_copy(dy), default_context());
    const auto near = [&](const Tensor& found, const Tensor& expected) {
      double largest = 0;
      for (const double v : widen(expected)) largest = std::max(largest, std::abs(v));
      SCOPED_TRACE(layer.name);
      expect_near(widen(found), widen(expected), tolerance * largest);
    };
    near(a.y, b.y);
    near(a.gradients.dx, b.gradients.dx);
    for (std::size_t i = 0; i < a.gradients.parameters.size(); ++i)
      near(a.gradients.parameters[i].tensor, b.gradients.parameters[i].tensor);
  }
}

TEST(LayerThreads, change_no_bit) {
  const auto work = [](Context& context) {
    std::vector<Trained> results;
    for (const LayerCase& layer : layer_cases(DType::f32))
      results.push_back(layer.train(numbers({60, 67, layer.in}, DType::f32, 1),
                                    numbers({60, 67, layer.out}, DType::f32, 2), context));
    const Embedding embedding({.vocabulary = 300, .dim = 70});
    Tensor tokens({500}, DType::i64);
    for (std::int64_t n = 0; n < 500; ++n) tokens.data<std::int64_t>()[n] = n * n % 300;
    auto [y, saved] = embedding.forward_train(tokens, context);
    results.push_back(
        {std::move(y), embedding.backward(numbers({500, 70}, DType::f32, 1), saved, context)});
    const SinusoidalPositions positions({.dim = 64});
    results.push_back({positions.forward(numbers({3, 300, 64}, DType::f32, 1), 0, context), {}});
    return results;
  };
  Context one({.threads = 1});
  const std::vector<Trained> expected = work(one);
  for (int threads = 2; threads <= 4; ++threads) {
    Context context({.threads = threads});
    const std::vector<Trained> found = work(context);
    for (std::size_t n = 0; n < found.size(); ++n)
      EXPECT_EQ(differences(found[n], expected[n]), "") << threads << " threads, layer " << n;
  }
}

TEST(LayerThreads, one_layer_serves_many_callers) {
  const std::vector<LayerCase> layers = layer_cases(DType::f32);
  const auto work = [&](const LayerCase& layer) {
    return layer.train(numbers({9, 67, layer.in}, DType::f32, 1),
                       numbers({9, 67, layer.out}, DType::f32, 2), default_context());
  };
  for (const LayerCase& layer : layers) {
    const Trained expected = work(layer);
    std::vector<Trained> found(4);
    std::vector<std::thread> callers;
    for (Trained& result : found) callers.emplace_back([&] { result = work(layer); });
    for (std::thread& caller : callers) caller.join();
    for (const Trained& result : found) EXPECT_EQ(differences(result, expected), "") << layer;
  }
}

}  // namespace
}  // namespace attend::test
