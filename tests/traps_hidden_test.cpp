// Traps that other libraries fell into: hidden rows and NaN. Each test names its trap and
// where it was seen; every kernel is put to it.
#include "support/property_truth.h"

#include <cmath>

namespace attend::test {
namespace {

// pytorch #41508, PR #196170
TEST(Traps, one_hidden_row_puts_no_nan_into_other_gradients) {
  for (const DType type : cases::kTypes) {
    const Trial visible = make_trial({.type = type,
                                      .batch = 3,
                                      .heads = 4,
                                      .kv_heads = 2,
                                      .q_length = 5,
                                      .k_length = 7,
                                      .d = 6,
                                      .dv = 3});
    Trial hidden = visible;
    hidden.mask = Tensor({3, 1, 5, 7}, DType::boolean);
    fill(hidden.mask, 1);
    for (std::int64_t j = 0; j < 7; ++j) hidden.mask.at<bool>({2, 0, 1, j}) = false;
    for (const KernelUnderTest& kernel : all_kernels(type)) {
      SCOPED_TRACE(kernel.name + " " + std::string(name_of(type)));
      const auto before = visible.run(kernel), after = hidden.run(kernel);
      if (!after && kernel.takes_few_options()) continue;
      ASSERT_TRUE(before && after);
      const auto row = [](const Tensor& t) { return take(take(t, 0, {2}), 2, {1}); };
      EXPECT_TRUE(all_zero(row(after->out)));
      for (const double lse : widen(row(after->lse))) EXPECT_EQ(lse, -INFINITY);
      EXPECT_TRUE(same_bits(take(before->out, 0, {0, 1}), take(after->out, 0, {0, 1})));
      if (!kernel.backward) continue;
      EXPECT_TRUE(all_zero(row(after->dq)));
      for (const auto member : {&Written::dq, &Written::dk, &Written::dv}) {
        EXPECT_TRUE(all_finite((*after).*member));
        EXPECT_TRUE(
            same_bits(take((*before).*member, 0, {0, 1}), take((*after).*member, 0, {0, 1})));
      }
      EXPECT_TRUE(same_bits(take(take(before->dq, 0, {2}), 2, {0, 2, 3, 4}),
                            take(take(after->dq, 0, {2}), 2, {0, 2, 3, 4})));
    }
  }
}

// pytorch #103749 #103963: whatever hides all keys of a row, it gives zeros, never NaN.
TEST(Traps, rows_without_keys_give_zeros_however_they_come_about) {
  const Trial plain = make_trial({.type = DType::f32,
                                  .batch = 2,
                                  .heads = 2,
                                  .kv_heads = 1,
                                  .q_length = 3,
                                  .k_length = 5,
                                  .d = 4,
                                  .dv = 6,
                                  .dlse = true});
  std::vector<Trial> ways(6, plain);
  ways[0].mask = Tensor({1, 1, 1, 1}, DType::boolean);
  ways[1].bias = Tensor({2, 2, 3, 5});
  fill(ways[1].bias, -INFINITY);
  ways[2].key_lengths = integers_of({0, 0});
  ways[3].plain.causal = true;
  ways[3].plain.query_offset = -3;
  ways[4].plain.window = {1, 1};
  ways[4].plain.query_offset = 7;
  ways[5].blocks = Tensor({1, 1, 2, 2}, DType::u8);
  ways[5].plain.blocks.query_size = 2;
  ways[5].plain.blocks.key_size = 4;
  for (std::size_t way = 0; way < ways.size(); ++way)
    for (const KernelUnderTest& kernel : all_kernels()) {
      const auto written = ways[way].run(kernel);
      ASSERT_TRUE(written);
      SCOPED_TRACE(kernel.name + ", way " + std::to_string(way));
      EXPECT_TRUE(all_zero(written->out));
      for (const double lse : widen(written->lse)) EXPECT_EQ(lse, -INFINITY);
      if (!kernel.backward) continue;
      EXPECT_TRUE(all_zero(written->dq));
      EXPECT_TRUE(all_zero(written->dk));
      EXPECT_TRUE(all_zero(written->dv));
      EXPECT_TRUE(kernel.yardstick || !written->dbias || all_zero(written->dbias));
    }
}

// With a sink, a row without keys has the sink's lse, and dlse goes to the sink.
TEST(Traps, a_row_without_keys_beside_a_sink) {
  Trial trial = make_trial({.batch = 1,
                            .heads = 2,
                            .kv_heads = 2,
                            .q_length = 3,
                            .k_length = 4,
                            .sinks = true,
                            .dlse = true});
  trial.key_lengths = integers_of({0});
  for (const KernelUnderTest& kernel : all_kernels()) {
    const auto written = trial.run(kernel);
    ASSERT_TRUE(written);
    EXPECT_TRUE(all_zero(written->out)) << kernel.name;
    for (std::int64_t h = 0; h < 2; ++h) {
      double dlse = 0;
      for (std::int64_t i = 0; i < 3; ++i) {
        EXPECT_NEAR(value_at(written->lse, {0, h, i}), value_at(trial.sinks, {h}), 1e-6);
        dlse += value_at(trial.dlse, {0, h, i});
      }
      if (!kernel.backward || kernel.yardstick) continue;
      EXPECT_NEAR(value_at(written->dsinks, {h}), dlse, 1e-6);
    }
  }
}

// What a call gives beside `out` on request.
struct WithWeights {
  Tensor out, weights;
};
WithWeights run_with_weights(const Trial& trial, const KernelUnderTest& kernel) {
  const Arguments a = trial.arguments();
  WithWeights with{trial.empty_results(false).out,
                   Tensor({a.q.size(0), a.q.size(1), a.q.size(2), a.k.size(2)}, trial.out_type)};
  AttentionOutputs outputs;
  outputs.weights = with.weights;
  run_forward(kernel, a.q, a.k, a.v, with.out, a.options, outputs);
  return with;
}

// pytorch #160064
TEST(Traps, a_hidden_head_is_the_same_with_weights_and_without) {
  Trial trial = make_trial({.batch = 2, .heads = 3, .kv_heads = 3, .q_length = 4, .k_length = 5});
  trial.mask = Tensor({1, 3, 1, 1}, DType::i32);
  trial.mask.at<std::int32_t>({0, 0, 0, 0}) = trial.mask.at<std::int32_t>({0, 2, 0, 0}) = 1;
  for (const KernelUnderTest& kernel : forward_kernels()) {
    const auto without = trial.run(kernel);
    ASSERT_TRUE(without);
    const WithWeights with = run_with_weights(trial, kernel);
    EXPECT_TRUE(same_bits(without->out, with.out)) << kernel.name;
    EXPECT_TRUE(all_zero(take(with.out, 1, {1}))) << kernel.name;
    EXPECT_TRUE(all_zero(take(with.weights, 1, {1}))) << kernel.name;
    EXPECT_FALSE(all_zero(take(with.weights, 1, {0}))) << kernel.name;
  }
}

// pytorch #163997, PR #190486: train, eval and fast path disagree.
TEST(Traps, training_and_inference_give_the_same_bits) {
  for (const DType type : cases::kTypes) {
    const Trial trial = make_trial({.type = type,
                                    .batch = 2,
                                    .heads = 4,
                                    .kv_heads = 2,
                                    .q_length = 9,
                                    .k_length = 9,
                                    .causal = true,
                                    .mask = cases::Mask::rows});
    const Arguments a = trial.arguments();
    for (const KernelUnderTest& kernel : forward_kernels(type)) {
      SCOPED_TRACE(kernel.name + " " + std::string(name_of(type)));
      const auto training = trial.run(kernel);  // with lse
      if (!training && kernel.takes_few_options()) continue;
      ASSERT_TRUE(training);
      Tensor inference = trial.empty_results(false).out;
      run_forward(kernel, a.q, a.k, a.v, inference, a.options);
      EXPECT_TRUE(same_bits(training->out, inference));
      EXPECT_TRUE(same_bits(training->out, run_with_weights(trial, kernel).out));
      Trial no_drops = trial;
      no_drops.plain.dropout = {.p = 1e-6, .seed = 5};  // rounds to 0 in steps of 1/65536
      EXPECT_TRUE(same_bits(*training, *no_drops.run(kernel)));
    }
    Tensor planned = trial.empty_results(false).out;
    attention(a.q, a.k, a.v, planned, a.options);
    EXPECT_TRUE(same_bits(planned, attention(a.q, a.k, a.v, a.options)));
  }
}

// pytorch #101967, #141128
TEST(Traps, nan_in_a_visible_query_is_not_hidden) {
  Trial trial = make_trial({.batch = 2, .heads = 2, .kv_heads = 2, .q_length = 4, .k_length = 5});
  set_value(trial.q, {1, 0, 2, 3}, NAN);
  for (const KernelUnderTest& kernel : all_kernels()) {
    const auto written = trial.run(kernel);
    ASSERT_TRUE(written);
    for (const double o : widen(take(take(take(written->out, 0, {1}), 1, {0}), 2, {2})))
      EXPECT_TRUE(std::isnan(o)) << kernel.name;
    EXPECT_TRUE(std::isnan(value_at(written->lse, {1, 0, 2}))) << kernel.name;
    EXPECT_TRUE(all_finite(take(written->out, 0, {0}))) << kernel.name;
    if (!kernel.backward) continue;
    EXPECT_TRUE(std::isnan(value_at(written->dq, {1, 0, 2, 0})));
    EXPECT_TRUE(all_finite(take(take(written->dq, 0, {1}), 2, {0, 1, 3})));
    EXPECT_TRUE(all_finite(take(written->dk, 0, {0})));
  }
}

// flashinfer #4051, axolotl #3026
TEST(Traps, merge_of_two_empty_parts) {
  Tensor o({1, 2, 3, 4}, DType::f32), lse({1, 2, 3}, DType::f32);
  fill(o, NAN);
  fill(lse, -INFINITY);
  Tensor out({1, 2, 3, 4}, DType::f32), lse_out({1, 2, 3}, DType::f32);
  fill(out, 7);
  CallMemory memory;
  const ConstTensorView o_there = memory.in(o), lse_there = memory.in(lse);
  const TensorView to = memory.out(out), lse_to = memory.out(lse_out);
  const Where where = memory.begin();
  attend::merge({o_there, o_there}, {lse_there, lse_there}, to, lse_to, where);
  memory.end();
  EXPECT_TRUE(all_zero(out));
  for (const double l : widen(lse_out)) EXPECT_EQ(l, -INFINITY);
}

}  // namespace
}  // namespace attend::test
