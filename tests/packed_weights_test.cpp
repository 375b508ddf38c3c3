// A layer may keep its weights once more, ordered for the product. Whatever way they change, the
// next forward pass must see it.
#include "c_api/handles.h"
#include "layer/packing.h"
#include "plan/plan.h"
#include "support/io_files.h"
#include "support/layer_numbers.h"

#include <attend/attend.h>
#include <attend/c_api.h>
#include <attend/layer.h>
#include <attend/train.h>

#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <utility>

namespace attend::test {
namespace {

const Tensor kX = numbers({3, 40}, DType::f32, 1);

// From weights that this layer has never seen in another state.
Tensor fresh(const Linear& layer, const ConstTensorView& x = kX) {
  return Linear(layer.weight(), layer.bias()).forward(x);
}

void change(const TensorView& values) {
  float* data = static_cast<float*>(values.data());
  for (std::int64_t n = 0; n < values.count(); ++n) data[n] = data[n] * 0.5F + 1;
}

void expect_current(const Linear& layer, const Tensor& before, const char* way) {
  const Tensor now = layer.forward(kX);
  EXPECT_EQ(difference(now, fresh(layer)), "") << way;
  EXPECT_NE(difference(now, before), "") << way << ": nothing was changed";
}

TEST(PackedWeights, have_the_bits_of_weights_as_they_lie) {
  for (const DType type : kFloatTypes)
    for (const std::int64_t in : {1, 40, 300}) {
      const Linear layer({.in = in, .out = 70, .type = type, .seed = 1});
      const Linear open(layer.weight(), layer.bias());  // whose weights came from outside
      for (const std::int64_t rows : {1, 2, 3, 4, 7, 8, 9, 13, 50}) {
        const Tensor x = numbers({rows, in}, type, 2);
        EXPECT_EQ(difference(layer.forward(x), open.forward(x)), "") << in << " " << rows;
      }
    }
}

// Weights of 16 bits too, on machines that multiply nothing narrower than f32; but not f16 where no
// instruction widens it, whatever others the machine has.
TEST(PackedWeights, take_the_bytes_of_their_type) {
  for (const Kernel<Product>* row : kernel_table<Product>()) {
    Context context({.kernels = "product:" + std::string(row->name)});
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
      const ProductProblem problem{.device = {}, .type = type};
      if (!why_not(*row, problem, features_of(problem), this_machine()).empty()) continue;
      const std::int64_t in_parts = type == DType::f16 ? row->f16.parts : 1;
      const Tensor b = numbers({256, 128}, type, 1);  // whole panels of every row
      const PackedWeights made = packed(b, *row, context);
      const bool wider = type == DType::f16 && row->name == "cpu.generic.product";
      EXPECT_EQ(made.data.dtype(), wider ? DType::f32 : type) << row->name;
      EXPECT_EQ(made.data.count(), b.count() * in_parts) << row->name;
    }
  }
}

// Weights that one row packed are no use to another: a Context that forces one reads them where
// they lie, and makes no copy.
TEST(PackedWeights, a_forced_row_is_the_one_that_runs) {
  const Linear layer({.in = 300, .out = 70, .seed = 1});
  const Linear open(layer.weight(), layer.bias());
  const Tensor x = numbers({5, 300}, DType::f32, 2);
  const Tensor chosen = layer.forward(x);  // packs
  Context reference({.kernels = "product:reference.product"});
  const Tensor exact = layer.forward(x, reference);
  EXPECT_EQ(difference(exact, open.forward(x, reference)), "");
  EXPECT_NE(difference(exact, chosen), "") << "sums in f64 and in f32";
  EXPECT_EQ(difference(layer.forward(x), chosen), "");
  const Linear first({.in = 300, .out = 70, .seed = 1});
  EXPECT_EQ(difference(first.forward(x, reference), exact), "");
  EXPECT_FALSE(WeightPacking::is_packed(first));
  EXPECT_EQ(difference(first.forward(x), chosen), "");
}

TEST(PackedWeights, a_change_by_parameters_is_seen) {
  Linear layer({.in = 40, .out = 33, .seed = 1});
  const Tensor before = layer.forward(kX);
  const std::vector<Parameter> views = layer.writable_parameters();
  change(views[0].value);
  expect_current(layer, before, "parameters()");
  const Tensor second = layer.forward(kX);
  change(views[0].value);
  expect_current(layer, second, "the same view once more");
}

TEST(PackedWeights, a_change_by_a_view_from_before_the_first_pass_is_seen) {
  Linear layer({.in = 40, .out = 33, .seed = 1});
  const std::vector<Parameter> views = layer.writable_parameters();
  const Tensor before = layer.forward(kX);
  change(views[0].value);
  expect_current(layer, before, "an early view");
}

TEST(PackedWeights, a_change_by_a_view_of_the_tensor_it_was_made_of_is_seen) {
  Tensor weight = numbers({33, 40}, DType::f32, 3);
  const TensorView view = weight.view();
  const Linear layer(std::move(weight));
  const Tensor before = layer.forward(kX);
  change(view);
  expect_current(layer, before, "the constructor's tensor");
}

TEST(PackedWeights, a_moved_layer_is_still_open_to_its_views) {
  Linear first({.in = 40, .out = 33, .seed = 1});
  const std::vector<Parameter> views = first.writable_parameters();
  Linear second(std::move(first)), third;
  const Tensor before = second.forward(kX);
  change(views[0].value);
  expect_current(second, before, "move construction");
  third = std::move(second);
  const Tensor moved = third.forward(kX);
  change(views[0].value);
  expect_current(third, moved, "move assignment");

  MultiHeadAttention layer({.model_dim = 33, .key_dim = 40, .value_dim = 40},
                           Linear({.in = 33, .out = 33}), std::move(third),
                           Linear({.in = 40, .out = 33}), Linear({.in = 33, .out = 33}));
  const Tensor inside = layer.k().forward(kX);
  change(views[0].value);
  expect_current(layer.k(), inside, "as a part of a layer");
}

TEST(PackedWeights, an_assigned_layer_has_the_new_weights) {
  Linear layer({.in = 40, .out = 33, .seed = 1});
  const Linear other({.in = 40, .out = 33, .seed = 2});
  const Tensor before = layer.forward(kX), theirs = other.forward(kX);
  layer = other;
  expect_current(layer, before, "copy assignment");
  EXPECT_EQ(difference(layer.forward(kX), theirs), "");
  layer = Linear({.in = 40, .out = 33, .seed = 3});
  expect_current(layer, theirs, "move assignment");
}

TEST(PackedWeights, a_copy_and_its_source_change_apart) {
  Linear layer({.in = 40, .out = 33, .seed = 1});
  const Tensor before = layer.forward(kX);
  Linear copy = layer;
  change(copy.writable_parameters()[0].value);
  expect_current(copy, before, "the copy");
  EXPECT_EQ(difference(layer.forward(kX), before), "");
  change(layer.writable_parameters()[0].value);
  expect_current(layer, before, "the source");
}

TEST(PackedWeights, an_optimizer_and_a_file_are_seen) {
  Linear layer({.in = 40, .out = 33, .seed = 1});
  const Tensor before = layer.forward(kX);
  const auto [y, saved] = layer.forward_train(kX);
  const std::vector<Parameter> parameters = layer.writable_parameters();
  SGD optimizer{};
  for (int step = 0; step < 3; ++step) {
    const Tensor last = layer.forward(kX);
    optimizer.step(parameters, layer.backward(y, saved).parameters, 0.1);
    expect_current(layer, last, "a step of an optimizer");
  }
  TensorFile file;
  file.tensors.push_back({"weight", numbers({33, 40}, DType::f32, 5)});
  file.tensors.push_back({"bias", numbers({33}, DType::f32, 6)});
  load_parameters(file, parameters);
  expect_current(layer, before, "load_parameters");
}

// Every layer that holds linear maps: a change of any parameter changes the result as it changes
// that of a copy, which packs anew.
template <class Layer, class Forward>
void expect_every_parameter_is_seen(Layer layer, const Forward& forward) {
  for (std::size_t n = 0; n < layer.parameters().size(); ++n) {
    Layer other = layer;
    const Tensor before = forward(other);
    const std::vector<Parameter> views = other.writable_parameters();
    change(views[n].value);
    const Tensor now = forward(other);
    EXPECT_EQ(difference(now, forward(Layer(other))), "") << views[n].name;
    if (views[n].name != "attention.k.bias" && views[n].name != "k.bias") {  // softmax forgets it
      EXPECT_NE(difference(now, before), "") << views[n].name;
    }
  }
}

TEST(PackedWeights, every_layer_sees_every_parameter) {
  const Tensor x = numbers({2, 3, 16}, DType::f32, 1);
  expect_every_parameter_is_seen(MultiHeadAttention({.model_dim = 16, .heads = 2}),
                                 [&](const auto& layer) { return layer.forward(x); });
  expect_every_parameter_is_seen(FeedForward({.model_dim = 16, .activation = Activation::swiglu}),
                                 [&](const auto& layer) { return layer.forward(x); });
  expect_every_parameter_is_seen(
      AttentionBlock({.attention = {.model_dim = 16, .heads = 2}, .hidden_dim = 20}),
      [&](const auto& layer) { return layer.forward(x); });
}

TEST(PackedWeights, a_loaded_layer_sees_changes) {
  const TemporaryFolder folder;
  MultiHeadAttention({.model_dim = 16, .heads = 2}).save(folder / "layer");
  MultiHeadAttention layer = MultiHeadAttention::load(folder / "layer");
  const Tensor x = numbers({3, 16}, DType::f32, 1), before = layer.forward(x);
  change(layer.writable_parameters()[0].value);
  EXPECT_NE(difference(layer.forward(x), before), "");
  EXPECT_EQ(difference(layer.forward(x), MultiHeadAttention(layer).forward(x)), "");
}

TEST(PackedWeights, a_change_from_C_is_seen) {
  attend_layer_options options = ATTEND_INIT(attend_layer_options);
  options.model_dim = 16;
  options.heads = 2;
  attend_layer* layer = nullptr;
  ASSERT_EQ(attend_layer_create(&options, &layer), ATTEND_OK) << attend_last_error();
  const Tensor x = numbers({3, 16}, DType::f32, 1);
  const std::int64_t shape[] = {3, 16};
  attend_view input = ATTEND_INIT(attend_view);
  input.data = const_cast<float*>(x.data<float>());
  input.shape = shape;
  input.rank = 2;
  const auto forward = [&] {
    attend_tensor* made = nullptr;
    attend_view view = ATTEND_INIT(attend_view);
    EXPECT_EQ(
        attend_layer_forward(layer, &input, nullptr, nullptr, nullptr, nullptr, nullptr, &made),
        ATTEND_OK)
        << attend_last_error();
    EXPECT_EQ(attend_tensor_view(made, &view), ATTEND_OK);
    const auto* y = static_cast<const float*>(view.data);
    std::vector<float> values(y, y + 48);
    attend_tensor_destroy(made);
    return values;
  };
  const std::vector<float> before = forward();
  attend_view weight = ATTEND_INIT(attend_view);
  ASSERT_EQ(attend_layer_parameter_find(layer, "o.weight", &weight), ATTEND_OK);
  auto* values = static_cast<float*>(weight.data);
  for (int n = 0; n < 256; ++n) values[n] *= 2;
  const std::vector<float> twice = forward();
  for (std::size_t n = 0; n < before.size(); ++n) EXPECT_EQ(twice[n], 2 * before[n]);  // b = 0
  for (int n = 0; n < 256; ++n) values[n] *= 2;  // the same view once more
  const std::vector<float> four = forward();
  for (std::size_t n = 0; n < before.size(); ++n) EXPECT_EQ(four[n], 4 * before[n]);

  ASSERT_EQ(attend_layer_end_writing(layer), ATTEND_OK);
  for (int pass = 0; pass < 3; ++pass) EXPECT_EQ(forward(), four);  // packed again
  EXPECT_EQ(values[0], static_cast<const float*>(weight.data)[0]) << "may still be read";
  ASSERT_EQ(attend_layer_parameter_find(layer, "o.weight", &weight), ATTEND_OK);
  for (int n = 0; n < 256; ++n) values[n] *= 0.5F;
  EXPECT_EQ(forward(), twice);
  ASSERT_EQ(attend_layer_end_writing(layer), ATTEND_OK);
  ASSERT_EQ(attend_layer_end_writing(layer), ATTEND_OK) << "more than once";
  attend_layer_destroy(layer);
}

// A call that fails changes nothing: the weights stay packed.
TEST(PackedWeights, a_view_that_C_did_not_get_is_not_written) {
  attend_layer_options options = ATTEND_INIT(attend_layer_options);
  options.model_dim = 16;
  attend_layer* layer = nullptr;
  ASSERT_EQ(attend_layer_create(&options, &layer), ATTEND_OK) << attend_last_error();
  attend_block_options of_block = ATTEND_INIT(attend_block_options);
  of_block.attention = &options;
  attend_block* block = nullptr;
  ASSERT_EQ(attend_block_create(&of_block, &block), ATTEND_OK) << attend_last_error();
  const Linear& q = layer->layer.q();
  const Linear& q_of_block = block->block.attention().q();
  const Tensor x = numbers({3, 16}, DType::f32, 1);
  for (const Linear* linear : {&q, &q_of_block}) {
    linear->forward(x);
    ASSERT_TRUE(WeightPacking::is_packed(*linear));
  }
  const char* name = nullptr;
  attend_view view = ATTEND_INIT(attend_view), wrong = view;
  wrong.struct_size = 1;
  const auto refused = [&](attend_status status) {
    EXPECT_EQ(status, ATTEND_INVALID_ARGUMENT);
    EXPECT_TRUE(WeightPacking::is_packed(q)) << attend_last_error();
    EXPECT_TRUE(WeightPacking::is_packed(q_of_block)) << attend_last_error();
  };
  refused(attend_layer_parameter_find(layer, "nonsense", &view));
  refused(attend_layer_parameter_find(layer, nullptr, &view));
  refused(attend_layer_parameter_find(layer, "q.weight", nullptr));
  refused(attend_layer_parameter_find(layer, "q.weight", &wrong));
  refused(attend_layer_parameter_at(layer, 99, &name, &view));
  refused(attend_layer_parameter_at(layer, -1, &name, &view));
  refused(attend_layer_parameter_at(layer, 0, &name, &wrong));
  refused(attend_block_parameter_find(block, "nonsense", &view));
  refused(attend_block_parameter_find(block, "attention.q.weight", &wrong));
  refused(attend_block_parameter_at(block, 99, &name, &view));
  refused(attend_block_parameter_at(block, 0, &name, &wrong));
  EXPECT_EQ(view.data, nullptr);
  EXPECT_EQ(attend_layer_parameter_at(layer, 0, &name, nullptr), ATTEND_OK);
  EXPECT_TRUE(WeightPacking::is_packed(q)) << "a name alone";
  EXPECT_EQ(attend_layer_parameter_at(layer, 0, &name, &view), ATTEND_OK);
  EXPECT_FALSE(WeightPacking::is_packed(q));
  attend_layer_destroy(layer);
  attend_block_destroy(block);
}

// The first writer must leave it to the pass that reads it; the next one does not.
TEST(PackedWeights, an_outdated_copy_that_a_pass_read_is_given_back) {
  Linear layer({.in = 40, .out = 33, .seed = 1});
  for (const bool passes_between : {false, true}) {
    for (int n = 0; n < 2; ++n) layer.forward(kX);  // the second after a write packs
    {
      const WeightPacking::Use pass = WeightPacking::of(layer, default_context());
      ASSERT_NE(pass.weights(), nullptr);
      layer.writable_parameters();
      EXPECT_TRUE(WeightPacking::holds_copy(layer)) << "freed while it was read";
      if (passes_between) layer.forward(kX);  // and the next would make a copy
    }
    EXPECT_FALSE(WeightPacking::is_packed(layer));
    layer.writable_parameters();
    EXPECT_FALSE(WeightPacking::holds_copy(layer)) << "passes between: " << passes_between;
    EXPECT_EQ(difference(layer.forward(kX), fresh(layer)), "");
  }
}

TEST(PackedWeights, threads_that_come_first_together_agree) {
  for (int trial = 0; trial < 20; ++trial) {
    const Linear layer({.in = 40, .out = 33, .seed = 1});
    std::vector<Tensor> made(4);
    std::vector<std::thread> threads;
    for (Tensor& y : made) threads.emplace_back([&] { y = layer.forward(kX); });
    for (std::thread& thread : threads) thread.join();
    for (const Tensor& y : made) EXPECT_EQ(difference(y, fresh(layer)), "");
  }
}

}  // namespace
}  // namespace attend::test
