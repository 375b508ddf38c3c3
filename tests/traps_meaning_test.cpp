// Traps that other libraries fell into: what an option means. Each test names its trap and where it
// was seen; every kernel is put to it.
#include "support/property_truth.h"

#include <cmath>

namespace attend::test {
namespace {

// Which keys each query sees, "1" or "0", read off the scores that the softmax saw, and confirmed
// by the weights.
std::vector<std::string> seen(std::int64_t queries, std::int64_t keys,
                              const AttentionOptions& options, const KernelUnderTest& kernel) {
  const Tensor q = gaussian({1, 1, queries, 3}, DType::f32, 1);
  const Tensor k = gaussian({1, 1, keys, 3}, DType::f32, 2);
  Tensor out({1, 1, queries, 3}), scores({1, 1, queries, keys}), weights({1, 1, queries, keys});
  AttentionOutputs outputs;
  outputs.scores = scores;
  outputs.weights = weights;
  run_forward(kernel, q, k, k, out, options, outputs);
  std::vector<std::string> rows;
  for (std::int64_t i = 0; i < queries; ++i) {
    std::string row;
    for (std::int64_t j = 0; j < keys; ++j) {
      const bool visible = scores.at<float>({0, 0, i, j}) != -INFINITY;
      EXPECT_EQ(visible, weights.at<float>({0, 0, i, j}) > 0) << "query " << i << " key " << j;
      row += visible ? '1' : '0';
    }
    rows.push_back(row);
  }
  return rows;
}

using SeenKeys = std::vector<std::string>;

void expect_seen(std::int64_t queries, std::int64_t keys, const AttentionOptions& options,
                 const SeenKeys& rows) {
  for (const KernelUnderTest& kernel : forward_kernels())
    EXPECT_EQ(seen(queries, keys, options, kernel), rows) << kernel.name;
}

// onnxruntime #29020, pytorch #110144: the last query meets the last key, on every device.
TEST(Traps, causal_alignment_for_unequal_lengths) {
  AttentionOptions causal;
  causal.causal = true;
  expect_seen(3, 3, causal, {"100", "110", "111"});
  expect_seen(2, 4, causal, {"1110", "1111"});
  expect_seen(4, 2, causal, {"00", "00", "10", "11"});
  expect_seen(1, 5, causal, {"11111"});
  causal.query_offset = 0;  // the first query meets the first key
  expect_seen(2, 4, causal, {"1000", "1100"});
  expect_seen(4, 2, causal, {"10", "11", "11", "11"});
  causal.query_offset = 1;
  expect_seen(2, 4, causal, {"1100", "1110"});
  const Tensor length = integers_of({3});
  causal.query_offset = {};
  causal.key_lengths = length;
  expect_seen(2, 4, causal, {"1100", "1110"});
}

// transformers #39408, flash-attention #1133, vllm #3385
TEST(Traps, window_off_by_one) {
  const auto window = [](std::int64_t left, std::int64_t right) {
    AttentionOptions options;
    options.window = {left, right};
    return options;
  };
  expect_seen(4, 4, window(0, 0), {"1000", "0100", "0010", "0001"});
  expect_seen(4, 4, window(1, 0), {"1000", "1100", "0110", "0011"});
  expect_seen(4, 4, window(0, 1), {"1100", "0110", "0011", "0001"});
  expect_seen(4, 4, window(1, 1), {"1100", "1110", "0111", "0011"});
  expect_seen(4, 4, window(2, 0), {"1000", "1100", "1110", "0111"});
  expect_seen(4, 4, window(kUnlimited, 1), {"1100", "1110", "1111", "1111"});
  expect_seen(4, 4, window(1, kUnlimited), {"1111", "1111", "0111", "0011"});
  expect_seen(2, 5, window(1, 0), {"00110", "00011"});
  expect_seen(2, 5, window(1, 1), {"00111", "00011"});
  expect_seen(5, 2, window(1, 0), {"00", "00", "00", "10", "11"});
  AttentionOptions causal = window(1, 2);  // causal hides what the window's right side shows
  causal.causal = true;
  expect_seen(4, 4, causal, {"1000", "1100", "0110", "0011"});
}

// Every small combination, by the words of the documentation.
TEST(Traps, window_causal_and_offset_for_every_small_size) {
  for (const KernelUnderTest& kernel : forward_kernels())
    for (std::int64_t queries = 1; queries <= 4; ++queries)
      for (std::int64_t keys = 1; keys <= 5; ++keys)
        for (std::int64_t left = 0; left <= 3; ++left)
          for (std::int64_t right = 0; right <= 3; ++right)
            for (std::int64_t offset = -3; offset <= 4; ++offset)
              for (const bool causal : {false, true}) {
                AttentionOptions options;
                options.window = {left == 3 ? kUnlimited : left, right == 3 ? kUnlimited : right};
                options.causal = causal;
                if (offset < 4) options.query_offset = offset;
                SeenKeys rows;
                for (std::int64_t i = 0; i < queries; ++i) {
                  const std::int64_t at = i + (offset < 4 ? offset : keys - queries);
                  std::string row;
                  for (std::int64_t j = 0; j < keys; ++j)
                    row += (!causal || j <= at) && (left == 3 || at - left <= j) &&
                                   (right == 3 || j <= at + right)
                               ? '1'
                               : '0';
                  rows.push_back(row);
                }
                ASSERT_EQ(seen(queries, keys, options, kernel), rows)
                    << kernel.name << " queries " << queries << " keys " << keys << " left " << left
                    << " right " << right << " offset " << offset << " causal " << causal;
              }
}

// pytorch #195910: a kernel that takes queries four at a time showed all of them the fourth's keys.
TEST(Traps, future_tokens_do_not_leak) {
  for (const std::int64_t queries : {1, 3, 4, 5, 8, 13}) {
    const Trial trial = make_trial(
        {.heads = 2, .kv_heads = 1, .q_length = queries, .k_length = 17, .causal = true});
    for (const KernelUnderTest& kernel : forward_kernels()) {
      const auto whole = trial.run(kernel);
      for (std::int64_t i = 0; i < queries; ++i) {
        Trial past = trial;  // everything behind query i's own position is garbage
        for (std::int64_t j = 17 - queries + i + 1; j < 17; ++j)
          for (std::int64_t x = 0; x < 8; ++x) {
            set_value(past.k, {0, 0, j, x}, 1e4);
            set_value(past.v, {0, 0, j, x}, NAN);
          }
        EXPECT_TRUE(same_bits(take(whole->out, 2, {i}), take(past.run(kernel)->out, 2, {i})))
            << kernel.name << ", query " << i << " of " << queries;
      }
    }
  }
}

// onnx PR #7274: query head h uses key head h / group, not h % key heads.
TEST(Traps, grouped_heads_are_interleaved_not_tiled) {
  const Tensor q = gaussian({1, 6, 2, 3}, DType::f32, 1), k = gaussian({1, 2, 4, 3}, DType::f32, 2);
  Tensor v({1, 2, 4, 1});
  for (std::int64_t j = 0; j < 4; ++j) set_value(v, {0, 1, j, 0}, 1);  // a value is its head
  Tensor out({1, 6, 2, 1});
  for (const KernelUnderTest& kernel : forward_kernels()) {
    run_forward(kernel, q, k, v, out);
    for (std::int64_t h = 0; h < 6; ++h)
      EXPECT_NEAR(value_at(out, {0, h, 1, 0}), h < 3 ? 0 : 1, 1e-6) << kernel.name << " head " << h;
  }
}

// Two keys with scores 10 and 0; what the second one's weight is.
double second_weight(const AttentionOptions& options, const KernelUnderTest& kernel) {
  const Tensor q({1.0}, {1, 1, 1, 1}), k({10.0, 0.0}, {1, 1, 2, 1}), v({0.0, 1.0}, {1, 1, 2, 1});
  Tensor out({1, 1, 1, 1}, DType::f64);
  run_forward(kernel, q, k, v, out, options);
  return out.at<double>({0, 0, 0, 0});
}

double logistic(double x) { return 1 / (1 + std::exp(-x)); }

// onnxruntime PR #28379
TEST(Traps, softcap_before_the_bias) {
  const Tensor bias({0.0, 5.0}, {2});
  AttentionOptions options;
  options.bias = bias;
  options.softcap = 2;
  for (const KernelUnderTest& kernel : forward_kernels()) {
    options.bias_before_softcap = false;
    EXPECT_NEAR(second_weight(options, kernel), logistic(5 - 2 * std::tanh(5.0)), 1e-15);
    options.bias_before_softcap = true;
    EXPECT_NEAR(second_weight(options, kernel), logistic(2 * std::tanh(2.5) - 2 * std::tanh(5.0)),
                1e-15);
  }
}

// A softcap after the mask turns -inf into -softcap, and the hidden key is seen again.
TEST(Traps, softcap_shows_no_hidden_key) {
  const Tensor mask({true, false}, {2}), bias({0.0, double{-INFINITY}}, {2});
  for (const KernelUnderTest& kernel : forward_kernels())
    for (const bool before : {false, true}) {
      AttentionOptions options;
      options.softcap = 2;
      options.bias_before_softcap = before;
      options.mask = mask;
      EXPECT_EQ(second_weight(options, kernel), 0) << kernel.name;
      options.mask = {};
      options.bias = bias;
      EXPECT_EQ(second_weight(options, kernel), 0) << kernel.name;
    }
}

// pytorch #99282: is_causal was ignored when weights were asked for.
TEST(Traps, causal_holds_when_weights_are_asked_for) {
  AttentionOptions options;
  options.causal = true;
  for (const KernelUnderTest& kernel : forward_kernels())  // seen() asks for them
    EXPECT_EQ(seen(4, 4, options, kernel), (SeenKeys{"1000", "1100", "1110", "1111"}))
        << kernel.name;
}

// pytorch #107084: a float mask was taken for a boolean one. Here it is refused, with a hint.
TEST(Traps, a_float_mask_is_refused_not_ignored) {
  const Tensor q({1, 1, 2, 3});
  const Tensor mask({2, 2});
  AttentionOptions options;
  options.mask = mask;
  try {
    attention(q, q, q, options);
    FAIL() << "a float mask was accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("bias"), std::string::npos) << error.what();
  }
}

// pytorch #97409: a mask of [batch * heads, L, S] is no mask of [heads, L, S].
TEST(Traps, a_mask_of_batch_times_heads_is_refused_unless_it_is_reshaped) {
  const Trial trial = make_trial({.batch = 2,
                                  .heads = 3,
                                  .kv_heads = 3,
                                  .q_length = 4,
                                  .k_length = 5,
                                  .mask = cases::Mask::full});
  const Tensor& mask = trial.mask;
  AttentionOptions options;
  options.mask = ConstTensorView(mask.data<bool>(), {6, 4, 5});
  EXPECT_THROW(attention(trial.q, trial.k, trial.v, options), InvalidArgument);
  options.mask = ConstTensorView(mask.data<bool>(), {2, 3, 4, 5});
  EXPECT_TRUE(close(truth_of(trial).out, attention(trial.q, trial.k, trial.v, options), 1e-6));
}

// A short mask padded with 0 where 0 means "add nothing", so that the rest is seen.
TEST(Traps, short_mask_hides_the_rest) {
  const Trial trial =
      make_trial({.batch = 2, .heads = 2, .kv_heads = 2, .q_length = 3, .k_length = 7});
  Trial masked = trial, biased = trial;
  masked.mask = Tensor({1, 1, 1, 4}, DType::boolean);
  fill(masked.mask, 1);
  biased.bias = Tensor({1, 1, 1, 4});
  const Trial cut = keys_up_to(trial, 4);
  for (const KernelUnderTest& kernel : all_kernels()) {
    const auto expected = cut.run(kernel), by_mask = masked.run(kernel),
               by_bias = biased.run(kernel);
    ASSERT_TRUE(expected && by_mask && by_bias);
    for (const auto& shorter : {*by_mask, *by_bias}) {
      EXPECT_TRUE(same_bits(expected->out, shorter.out)) << kernel.name;
      EXPECT_TRUE(same_bits(expected->lse, shorter.lse)) << kernel.name;
      if (!kernel.backward) continue;
      EXPECT_TRUE(same_bits(expected->dq, shorter.dq)) << kernel.name;
      EXPECT_TRUE(same_bits(expected->dk, take(shorter.dk, 2, range(0, 4)))) << kernel.name;
      EXPECT_TRUE(all_zero(take(shorter.dk, 2, range(4, 7)))) << kernel.name;
      EXPECT_TRUE(all_zero(take(shorter.dv, 2, range(4, 7)))) << kernel.name;
    }
  }
}

}  // namespace
}  // namespace attend::test
