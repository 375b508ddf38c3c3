// Traps that other libraries fell into: lengths, packed sequences and pages of keys.
#include "support/property_truth.h"

#include <cmath>
#include <limits>

namespace attend::test {
namespace {

using cases::Addressing;
using cases::Case;
using cases::Lengths;

// Whether the trial is refused, forward and backward, with every output left as it was.
void expect_refused(const Trial& trial, const std::string& why) {
  const Arguments a = trial.arguments();
  Written written = trial.empty_results(true);
  for (Tensor* t : {&written.out, &written.lse, &written.dq, &written.dk, &written.dv})
    fill(*t, 42);
  const Written before = written;
  AttentionOutputs outputs;
  outputs.lse = written.lse;
  EXPECT_THROW(attention(a.q, a.k, a.v, written.out, a.options, outputs), InvalidArgument) << why;
  EXPECT_THROW(
      attention_backward(
          {.q = a.q, .k = a.k, .v = a.v, .out = written.out, .lse = written.lse, .dout = a.dout},
          a.options, written.views().gradients),
      InvalidArgument)
      << why;
  EXPECT_TRUE(same_bits(before, written)) << why;
}

constexpr const char* kNotRead =
    "the host does not read numbers of a GPU, and cannot refuse them; cuda_test asks that they do "
    "no harm";
constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

// onnxruntime PR #28031 #28277 #29447
TEST(Traps, sequence_length_past_the_cache_is_refused) {
  if (on_gpu()) GTEST_SKIP() << kNotRead;
  const Trial trial =
      make_trial({.batch = 3, .heads = 4, .kv_heads = 2, .q_length = 2, .k_length = 5});
  for (const std::int64_t length : {std::int64_t{6}, std::int64_t{-1}, kHuge, -kHuge - 1}) {
    Trial wrong = trial;
    wrong.key_lengths = integers_of({5, 0, length});
    expect_refused(wrong, "key length " + std::to_string(length));
  }
  Trial narrow = trial;
  narrow.key_lengths = Tensor({std::int32_t{5}, std::int32_t{-2147483647}, std::int32_t{1}}, {3});
  expect_refused(narrow, "a negative i32");
}

TEST(Traps, a_page_past_the_cache_is_refused) {
  if (on_gpu()) GTEST_SKIP() << kNotRead;
  const Trial trial = make_trial({.batch = 2,
                                  .heads = 2,
                                  .kv_heads = 2,
                                  .q_length = 2,
                                  .k_length = 10,
                                  .addressing = Addressing::paged,
                                  .page_size = 4,
                                  .index_type = DType::i64,
                                  .key_lengths = Lengths::full});
  const std::int64_t pages = trial.k.size(0);
  for (const std::int64_t page : {pages, std::int64_t{-1}, kHuge, -kHuge}) {
    Trial wrong = trial;
    wrong.block_table.at<std::int64_t>({1, 2}) = page;
    expect_refused(wrong, "page " + std::to_string(page));
  }
  Trial long_one = trial;
  long_one.key_lengths = integers_of({10, 13});
  expect_refused(long_one, "13 keys on 3 pages of 4");
  Trial unlimited = trial;
  unlimited.key_lengths = {};
  expect_refused(unlimited, "pages without key_lengths");

  Trial unread = trial;  // a page that no key needs may be anything
  unread.key_lengths = integers_of({10, 8});
  unread.block_table.at<std::int64_t>({1, 2}) = -7;
  for (const KernelUnderTest& kernel : forward_kernels())
    EXPECT_TRUE(close_to_truth(unread, *unread.run(kernel), 1e-5)) << kernel.name;
}

TEST(Traps, starts_of_packed_sequences_past_the_end_are_refused) {
  if (on_gpu()) GTEST_SKIP() << kNotRead;
  const Trial trial =
      make_trial({.batch = 1, .heads = 2, .kv_heads = 2, .q_length = 6, .k_length = 6});
  const std::vector<std::int64_t> wrong_starts[] = {
      {0, 3, 7}, {0, 3, 5}, {1, 6}, {0, 4, 3, 6}, {0, -1, 6}, {0, kHuge, 6}, {-1, 6}, {0}};
  for (const auto& starts : wrong_starts) {
    Trial wrong = trial;
    wrong.cu_seqlens_q = integers_of(starts);
    expect_refused(wrong, "starts to " + std::to_string(starts.back()));
    wrong.cu_seqlens_q = integers_of(std::vector<std::int64_t>(starts.size(), 0));
    wrong.cu_seqlens_q.data<std::int64_t>()[starts.size() - 1] = 6;
    wrong.cu_seqlens_k = integers_of(starts);
    if (starts.size() > 1) expect_refused(wrong, "key starts to " + std::to_string(starts.back()));
  }
}

TEST(Traps, packed_queries_with_paged_keys_equal_dense_calls) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    const Trial trial = make_trial({.batch = 4,
                                    .heads = 6,
                                    .kv_heads = 2,
                                    .q_length = 5,
                                    .k_length = 19,
                                    .d = 7,
                                    .dv = 3,
                                    .seed = seed,
                                    .addressing = Addressing::packed_paged,
                                    .page_size = 4,
                                    .key_lengths = Lengths::mixed,
                                    .causal = true});
    for (const KernelUnderTest& kernel : all_kernels()) {
      const auto whole = trial.run(kernel);
      if (!whole) continue;
      EXPECT_TRUE(close_to_truth(trial, *whole, 1e-5)) << kernel.name << " seed " << seed;
      for (std::int64_t b = 0; b < 4; ++b) {
        const SequenceRows rows = rows_of(trial.arguments(), b);
        const auto dense = element_of(trial, b).run(kernel);
        ASSERT_TRUE(dense);
        EXPECT_TRUE(same_bits(gather_rows(whole->out, rows.queries), dense->out)) << kernel.name;
        EXPECT_TRUE(same_bits(gather_rows(whole->dq, rows.queries), dense->dq)) << kernel.name;
        EXPECT_TRUE(same_bits(gather_rows(whole->dk, rows.keys), dense->dk)) << kernel.name;
        EXPECT_TRUE(same_bits(gather_rows(whole->dv, rows.keys), dense->dv)) << kernel.name;
      }
    }
  }
}

// dk and dv of a page are sums over everybody who reads it, and zero where nobody does.
void expect_shared_pages_are_summed(const Trial& trial) {
  const Extents e = extents_of(trial.arguments());
  for (const KernelUnderTest& kernel : all_kernels()) {
    if (!kernel.backward) continue;
    const auto whole = trial.run(kernel);
    if (!whole) continue;
    for (const auto& [member, d] : {std::pair{&Written::dk, e.d}, {&Written::dv, e.dv}}) {
      Tensor sum(((*whole).*member).shape(), DType::f64);
      for (std::int64_t b = 0; b < e.batch; ++b) {
        const SequenceRows rows = rows_of(trial.arguments(), b);
        const auto dense = element_of(trial, b).run(kernel);
        ASSERT_TRUE(dense);
        for (std::size_t j = 0; j < rows.keys.size(); ++j)
          for (std::int64_t h = 0; h < e.kv_heads; ++h)
            for (std::int64_t x = 0; x < d; ++x)
              sum.at<double>({rows.keys[j].b, h, rows.keys[j].t, x}) +=
                  value_at((*dense).*member, {0, h, static_cast<std::int64_t>(j), x});
      }
      EXPECT_TRUE(close(sum, (*whole).*member, 1e-5)) << kernel.name;
    }
    EXPECT_TRUE(close_to_truth(trial, *whole, 1e-5)) << kernel.name;
  }
}

TEST(Traps, pages_shared_by_sequences_sum_their_gradients) {
  expect_shared_pages_are_summed(make_trial({.batch = 3,
                                             .heads = 4,
                                             .kv_heads = 2,
                                             .q_length = 3,
                                             .k_length = 14,
                                             .d = 5,
                                             .dv = 6,
                                             .addressing = Addressing::paged_shared,
                                             .page_size = 3,
                                             .key_lengths = Lengths::full,
                                             .causal = true}));
}

TEST(Traps, a_page_listed_twice_in_one_sequence_sums_its_gradients) {
  Trial trial = make_trial({.batch = 2,
                            .heads = 2,
                            .kv_heads = 1,
                            .q_length = 3,
                            .k_length = 12,
                            .addressing = Addressing::paged,
                            .page_size = 4,
                            .index_type = DType::i64,
                            .key_lengths = Lengths::full});
  trial.block_table.at<std::int64_t>({0, 2}) = trial.block_table.at<std::int64_t>({0, 0});
  expect_shared_pages_are_summed(trial);
}

// One Plan serves a cache that grows: lengths are data, not part of the plan.
TEST(Traps, one_plan_serves_every_length_of_a_cache) {
  Trial trial = make_trial(
      {.batch = 2, .heads = 4, .kv_heads = 2, .q_length = 1, .k_length = 20, .causal = true});
  trial.key_lengths = integers_of({1, 1});
  for (const KernelUnderTest& kernel : forward_kernels()) {
    Written written = trial.empty_results(false);
    CallMemory memory;
    const ConstTensorView q = memory.in(trial.q), k = memory.in(trial.k), v = memory.in(trial.v);
    const TensorView out = memory.out(written.out);
    const AttentionOptions options = memory.in(trial.q, trial.k, trial.v, trial.options());
    const AttentionOutputs outputs = memory.out(AttentionOutputs{.lse = written.lse});
    const Plan plan = Plan::attention(q, k, v, out, options, outputs, {kernel.name});
    for (std::int64_t length = 0; length <= 20; ++length) {
      trial.key_lengths.data<std::int64_t>()[0] = length;
      trial.key_lengths.data<std::int64_t>()[1] = 20 - length;
      plan.run(q, k, v, out, options, outputs, memory.begin().queue());
      memory.end();
      for (std::int64_t b = 0; b < 2; ++b) {
        const Trial cut = element_of(trial, b, b == 0 ? length : 20 - length);
        const auto alone = cut.run(kernel);
        EXPECT_TRUE(same_bits(take(written.out, 0, {b}), alone->out)) << kernel.name << length;
        EXPECT_TRUE(same_bits(take(written.lse, 0, {b}), alone->lse)) << kernel.name << length;
      }
    }
  }
}

}  // namespace
}  // namespace attend::test
