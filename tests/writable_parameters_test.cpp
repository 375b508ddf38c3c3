// Who may write a layer's weights, and for how long: reading changes nothing, and weights that
// nobody can write any more are packed again.
#include "layer/packing.h"

#include "support/io_files.h"
#include "support/layer_numbers.h"

#include <attend/attend.h>
#include <attend/layer.h>
#include <attend/train.h>

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <utility>

namespace attend::test {
namespace {

const Tensor kX = numbers({3, 40}, DType::f32, 1);

Linear made(std::uint64_t seed = 1) { return Linear({.in = 40, .out = 33, .seed = seed}); }
bool packed(const Linear& layer) { return WeightPacking::is_packed(layer); }

// Every element becomes `value`.
void write(const TensorView& weight, float value) {
  std::fill_n(static_cast<float*>(weight.data()), weight.count(), value);
}

// The result with the weights as they lie.
Tensor unpacked(const Linear& layer) { return Linear(layer.weight(), layer.bias()).forward(kX); }

// So many passes, of which each sees the weights as they are.
void pass(const Linear& layer, int times) {
  for (int n = 0; n < times; ++n) EXPECT_EQ(difference(layer.forward(kX), unpacked(layer)), "");
}

// ---- reading -----------------------------------------------------------------------------------

// For a layer that is not const, too.
template <class Layer>
concept ShownForReading =
    std::is_same_v<decltype(std::declval<Layer&>().parameters()), std::vector<NamedView>>;
static_assert(ShownForReading<Linear> && ShownForReading<Norm> && ShownForReading<FeedForward>);
static_assert(ShownForReading<MultiHeadAttention> && ShownForReading<AttentionBlock>);
static_assert(ShownForReading<Embedding> && ShownForReading<LearnedPositions>);
static_assert(ShownForReading<SinusoidalPositions> && ShownForReading<LanguageModel>);

TEST(WritableParameters, reading_changes_nothing) {
  const Tensor x = numbers({1, 3, 16}, DType::f32, 1);
  Linear linear = made();
  linear.forward(kX);
  EXPECT_EQ(parameter_count(linear.parameters()), 33 * 41);
  EXPECT_TRUE(packed(linear));

  MultiHeadAttention attention({.model_dim = 16, .heads = 2});
  attention.forward(x);
  const auto all_packed = [](const MultiHeadAttention& layer) {
    return packed(layer.q()) && packed(layer.k()) && packed(layer.v()) && packed(layer.o());
  };
  EXPECT_EQ(parameter_count(attention.parameters()), 4 * (16 * 16 + 16));
  EXPECT_TRUE(all_packed(attention));

  AttentionBlock block({.attention = {.model_dim = 16, .heads = 2}, .hidden_dim = 20});
  block.forward(x);
  EXPECT_GT(parameter_count(block.parameters()), 0);
  EXPECT_TRUE(all_packed(block.attention()));

  LanguageModel model({.vocabulary = 5, .length = 8, .layers = 1, .model_dim = 16, .heads = 2});
  model.forward(Tensor({1L, 2L, 3L}, {1, 3}));
  EXPECT_GT(parameter_count(model.parameters()), 0);
  EXPECT_TRUE(all_packed(model.blocks()[0].attention()));

  const TemporaryFolder folder;
  attention.save(folder / "layer");
  attention.split();
  EXPECT_TRUE(all_packed(attention)) << "what is saved is read";
}

// ---- writing -----------------------------------------------------------------------------------

TEST(WritableParameters, weights_are_packed_again_when_the_last_view_is_gone) {
  Linear layer = made();
  pass(layer, 1);
  EXPECT_TRUE(packed(layer));
  std::vector<Parameter> all = layer.writable_parameters();
  EXPECT_FALSE(packed(layer));
  ParameterView copy = all[0].value;
  ParameterView part = copy.permute({1, 0}).slice(0, 2, 3);
  std::vector<Parameter> second = layer.writable_parameters();
  float next = 1;
  const auto expect_open = [&](const TensorView& view) {
    for (int n = 0; n < 3; ++n) {
      write(TensorView(static_cast<float*>(view.data()), {1}), ++next);
      pass(layer, 1);
      EXPECT_FALSE(packed(layer));
    }
  };
  expect_open(all[0].value);
  all.clear();
  expect_open(copy);
  copy = {};
  expect_open(part);
  part = {};
  expect_open(second[0].value);
  second.clear();
  pass(layer, 1);
  EXPECT_FALSE(packed(layer)) << "training has one pass for each write";
  pass(layer, 1);
  EXPECT_TRUE(packed(layer));
  pass(layer, 2);
}

// Nothing packs biases and what norms and tables hold.
TEST(WritableParameters, a_bias_is_written_beside_packed_weights) {
  Linear layer = made();
  pass(layer, 1);
  const ParameterView bias = layer.writable_parameters()[1].value;
  pass(layer, 2);
  EXPECT_TRUE(packed(layer));
  write(bias, 3);
  pass(layer, 1);
}

TEST(WritableParameters, training_packs_nothing) {
  Linear layer = made();
  SGD optimizer;
  for (int step = 0; step < 5; ++step) {
    const auto [y, saved] = layer.forward_train(kX);
    EXPECT_EQ(packed(layer), step == 0);
    optimizer.step(layer.writable_parameters(), layer.backward(y, saved).parameters, 0.1);
    EXPECT_FALSE(packed(layer));
  }
  pass(layer, 2);
  EXPECT_TRUE(packed(layer)) << "what was trained and is used";
}

TEST(WritableParameters, the_list_of_another_memory_holds_nothing) {
  Tensor w({2}), g({1.0F, 1.0F}, {2});
  SGD().step({{"w", w}}, {{"w", g}}, 1);
  EXPECT_EQ(w.at<float>({1}), -1);
}

// ---- moved, copied, destroyed ------------------------------------------------------------------

TEST(WritableParameters, views_go_with_a_layer_that_is_moved) {
  Linear first = made();
  std::vector<Parameter> views = first.writable_parameters();
  Linear second(std::move(first));
  pass(second, 3);
  EXPECT_FALSE(packed(second));
  write(views[0].value, 2);
  pass(second, 1);
  Linear third = made(2);
  const ParameterView old = third.writable_parameters()[0].value;  // of weights that end here
  third = std::move(second);
  write(views[0].value, 3);
  pass(third, 3);
  EXPECT_FALSE(packed(third));
  views.clear();
  pass(third, 2);
  EXPECT_TRUE(packed(third)) << "the view of the weights before is none of these";
  first = made();  // a layer that was moved from takes new weights
  pass(first, 1);
  EXPECT_TRUE(packed(first));
}

TEST(WritableParameters, a_copy_has_weights_that_nobody_writes) {
  Linear layer = made();
  const std::vector<Parameter> views = layer.writable_parameters();
  Linear copy = layer, assigned = made(2);
  const ParameterView old = assigned.writable_parameters()[0].value;
  assigned = layer;
  for (const Linear* each : {&copy, &assigned}) {
    pass(*each, 1);
    EXPECT_TRUE(packed(*each));
  }
  write(views[0].value, 2);
  pass(layer, 1);
  EXPECT_NE(difference(layer.forward(kX), copy.forward(kX)), "");
  pass(copy, 1);
  Linear& same = copy;
  copy = same;
  pass(copy, 1);
}

TEST(WritableParameters, views_may_outlive_their_layer) {
  std::vector<Parameter> views;
  {
    Linear layer = made();
    views = layer.writable_parameters();
    pass(layer, 1);
  }
  std::vector<Parameter> more = views;
  views.clear();
  more = with_prefix("gone.", std::move(more));
  EXPECT_EQ(more[0].name, "gone.weight");
}

TEST(WritableParameters, of_no_layer_are_none) {
  EXPECT_TRUE(Linear().writable_parameters().empty());
  EXPECT_TRUE(Linear(Linear()).parameters().empty());
}

// ---- given weights -----------------------------------------------------------------------------

TEST(WritableParameters, given_weights_are_packed_if_declared_unchanged) {
  Tensor weight = numbers({33, 40}, DType::f32, 3), same = weight;
  const TensorView outside = weight.view();
  Linear open(std::move(weight)), closed(std::move(same), {}, {.unchanged = true});
  pass(open, 3);
  EXPECT_FALSE(packed(open));
  open.writable_parameters();
  pass(open, 3);
  EXPECT_FALSE(packed(open)) << "the giver's views are still there";
  write(outside, 2);
  pass(open, 1);
  Linear moved = std::move(open);
  pass(moved, 2);
  EXPECT_FALSE(packed(moved));
  const Linear copy = moved;
  pass(copy, 1);
  EXPECT_TRUE(packed(copy)) << "its memory is its own";

  pass(closed, 1);
  EXPECT_TRUE(packed(closed));
  write(closed.writable_parameters()[0].value, 2);
  pass(closed, 2);
  EXPECT_TRUE(packed(closed));
}

TEST(WritableParameters, what_a_loader_made_is_packed) {
  const TemporaryFolder folder;
  const Tensor x = numbers({1, 3, 16}, DType::f32, 1), tokens({1L, 2L, 3L}, {1, 3});
  const MultiHeadAttentionOptions options{.model_dim = 16, .heads = 2};
  const MultiHeadAttention layer(options);
  layer.save(folder / "layer");
  layer.save(folder / "heads", true);
  AttentionBlock({.attention = options, .hidden_dim = 20}).save(folder / "block");
  LanguageModel({.vocabulary = 5, .length = 8, .layers = 1, .model_dim = 16, .heads = 2})
      .save(folder / "model");
  const auto expect_packed = [](const MultiHeadAttention& attention, const char* name,
                                const auto& forward) {
    forward(), forward();
    for (const Linear* part : {&attention.q(), &attention.k(), &attention.v(), &attention.o()})
      EXPECT_TRUE(packed(*part)) << name;
  };
  for (const char* name : {"layer", "heads"}) {
    const MultiHeadAttention loaded = MultiHeadAttention::load(folder / name);
    expect_packed(loaded, name, [&] { loaded.forward(x); });
  }
  const MultiHeadAttention joined = MultiHeadAttention::join(options, layer.split());
  expect_packed(joined, "join", [&] { joined.forward(x); });
  const AttentionBlock block = AttentionBlock::load(folder / "block");
  expect_packed(block.attention(), "block", [&] { block.forward(x); });
  const LanguageModel model = LanguageModel::load(folder / "model");
  expect_packed(model.blocks()[0].attention(), "model", [&] { model.forward(tokens); });
}

// ---- threads -----------------------------------------------------------------------------------

// Views come and go while passes are under way. Nobody writes, so that every result is known.
TEST(WritableParameters, views_may_come_and_go_during_passes) {
  Linear layer = made();
  const Tensor expected = unpacked(layer);
  std::atomic<bool> done = false;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int n = 0; n < 3; ++n)
    threads.emplace_back([&] {
      while (!done)
        if (!difference(layer.forward(kX), expected).empty()) ++wrong;
    });
  for (int round = 0; round < 300; ++round) {
    std::vector<Parameter> views = layer.writable_parameters();
    std::thread([last = std::move(views)] {}).join();  // the last one dies elsewhere
    for (int n = 0; n < round % 4; ++n) layer.forward(kX);
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  pass(layer, 2);
  EXPECT_TRUE(packed(layer)) << "no pass and no writer is left over";
}

// A write before the passes, and its view given back while they are under way.
TEST(WritableParameters, every_pass_sees_the_last_write) {
  Linear layer({.in = 40, .out = 33, .bias = false});
  Tensor ones({1, 40});
  write(ones, 1);
  std::atomic<int> wrong = 0;
  for (int round = 0; round < 200; ++round) {
    const auto now = static_cast<float>(round % 7);
    std::vector<Parameter> views = layer.writable_parameters();
    write(views[0].value, now);
    std::vector<std::thread> threads;
    for (int n = 0; n < 3; ++n)
      threads.emplace_back([&] {
        for (int times = 0; times < 3; ++times)
          if (layer.forward(ones).at<float>({0, 32}) != 40 * now) ++wrong;
      });
    views.clear();
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace attend::test
