// P11: keys split into parts, attended to one by one and merged. Cut at multiples of 256, with
// parts kept in f64, the result has the bits of the undivided call; cut anywhere it is close. The
// textbook kernel rounds its parts to the tensors' type and is exempt from the bits.
#include "support/property_compare.h"
#include "support/property_memory.h"

#include "cases/random.h"

#include <cmath>
#include <memory>

namespace attend::test {
namespace {

using cases::Case;

// Keys [begin, end) of a dense trial as a problem of their own.
Trial part_of_keys(const Trial& trial, std::int64_t begin, std::int64_t end) {
  const std::vector<std::int64_t> order = range(begin, end);
  Trial part = trial;
  part.line += " keys=" + std::to_string(begin) + ".." + std::to_string(end);
  part.k = take(trial.k, 2, order);
  part.v = take(trial.v, 2, order);
  part.mask = take_of_repeated(with_all_keys(trial.mask, trial.k.size(2)), 3, order);
  part.bias = take_of_repeated(with_all_keys(trial.bias, trial.k.size(2)), 3, order);
  if (trial.blocks) {  // blocks of one key, so that the cut may fall anywhere
    std::vector<std::int64_t> blocks = order;
    for (std::int64_t& j : blocks) j /= trial.plain.blocks.key_size;
    part.blocks = take_of_repeated(trial.blocks, 3, blocks);
    part.plain.blocks.key_size = 1;
  }
  std::vector<std::int64_t> offsets, lengths;
  for (std::int64_t b = 0; b < trial.q.size(0); ++b) {
    const SequenceRows rows = rows_of(trial.arguments(), b);
    offsets.push_back(rows.offset - begin);
    lengths.push_back(std::clamp<std::int64_t>(rows.key_length - begin, 0, end - begin));
  }
  part.query_offset = integers_of(offsets);
  part.plain.query_offset = {};
  if (trial.key_lengths) part.key_lengths = integers_of(lengths);
  part.plain.dropout.origin.j += begin;
  if (trial.q.dtype() != DType::f64) part.out_type = part.lse_type = DType::f64;
  return part;
}

struct Parts {
  std::vector<Tensor> o, lse;
  std::vector<ConstTensorView> o_views() const { return {o.begin(), o.end()}; }
  std::vector<ConstTensorView> lse_views() const { return {lse.begin(), lse.end()}; }
};

Parts attend_to_parts(const Trial& trial, const std::vector<std::int64_t>& cuts,
                      const KernelUnderTest& kernel) {
  Parts parts;
  for (std::size_t n = 1; n < cuts.size(); ++n) {
    Trial part = part_of_keys(trial, cuts[n - 1], cuts[n]);
    if (n > 1) part.sinks = {};  // the sink is summed once
    auto results = part.run(kernel);
    if (!results) throw std::runtime_error("a kernel takes the whole and declines a part");
    parts.o.push_back(std::move(results->out));
    parts.lse.push_back(std::move(results->lse));
  }
  return parts;
}

// Contexts that force each kernel that merges.
std::vector<std::unique_ptr<Context>> contexts_of_merge_kernels() {
  std::vector<std::unique_ptr<Context>> contexts;
  for (const KernelInfo& info : Context::kernels()) {
    if (info.operation != "merge") continue;
    ContextOptions options;
    options.kernels = "merge:" + info.name;
    contexts.push_back(std::make_unique<Context>(options));
  }
  return contexts;
}

void with_several_chunks(Case& c) {
  c.addressing = cases::Addressing::dense;
  c.batch = 1 + static_cast<std::int64_t>(c.seed % 2);
  c.q_length = 1 + static_cast<std::int64_t>(c.seed % 6);
  c.k_length = 257 + static_cast<std::int64_t>(c.seed * 37 % 900);
  c.width = cases::Width::same;  // of f64 there is nothing wider to keep the parts in
  c.lse_f64 = false;
  if (c.window_left != kUnlimited) c.window_left += 300;
}

TEST(Properties, p11_parts_cut_at_multiples_of_256_merge_to_the_bits_of_the_whole) {
  const auto contexts = contexts_of_merge_kernels();
  ASSERT_FALSE(contexts.empty());
  for_trials(forward_kernels(), 11000, 120, with_several_chunks,
             [&](const Trial& trial, const KernelUnderTest& kernel, Written& whole) {
               if (kernel.yardstick) return;
               std::vector<std::int64_t> cuts = {0};
               const cases::Random random(trial.line.size(), 11);
               for (std::int64_t at = 256; at < trial.k.size(2); at += 256)
                 if (random.chance(0.7, static_cast<std::uint64_t>(at))) cuts.push_back(at);
               cuts.push_back(trial.k.size(2));
               const Parts parts = attend_to_parts(trial, cuts, kernel);
               for (const auto& context : contexts) {
                 Written merged = trial.empty_results(false);
                 attend::merge(parts.o_views(), parts.lse_views(), merged.out, merged.lse,
                               *context);
                 if (trial.q.dtype() != DType::f64) {
                   EXPECT_TRUE(same_bits(whole, merged)) << cuts.size() - 1 << " parts";
                 } else {
                   EXPECT_TRUE(close(whole.out, merged.out, 8 * usual_error(DType::f64)));
                   EXPECT_TRUE(close(whole.lse, merged.lse, 8 * usual_error(DType::f64)));
                 }
               }
             });
}

TEST(Properties, p11_parts_cut_anywhere_merge_to_nearly_the_whole) {
  const auto adapt = [](Case& c) {
    with_several_chunks(c);
    c.k_length = c.k_length % 60 + 2;
  };
  for_trials(forward_kernels(), 11500, 150, adapt,
             [](const Trial& trial, const KernelUnderTest& kernel, Written& whole) {
               const std::int64_t keys = trial.k.size(2);
               std::vector<std::int64_t> cuts = {0, 0};  // an empty part, too
               const cases::Random random(trial.line.size(), 12);
               for (std::int64_t at = 1; at < keys; ++at)
                 if (random.chance(0.2, static_cast<std::uint64_t>(at))) cuts.push_back(at);
               cuts.push_back(keys);
               const Parts parts = attend_to_parts(trial, cuts, kernel);
               Written merged = trial.empty_results(false);
               attend::merge(parts.o_views(), parts.lse_views(), merged.out, merged.lse);
               const double error = 2 * usual_error(trial.q.dtype());
               EXPECT_TRUE(close(whole.out, merged.out, error, 1)) << cuts.size() - 1 << " parts";
               EXPECT_TRUE(close(whole.lse, merged.lse, error, 1)) << cuts.size() - 1 << " parts";
             });
}

// ---- merge() by itself -------------------------------------------------------------------------

constexpr std::int64_t kRows = 37, kDv = 5;

Parts random_parts(int count, std::uint64_t seed, DType type = DType::f64) {
  Parts parts;
  for (int n = 0; n < count; ++n) {
    const std::uint64_t stream = seed * 100 + static_cast<std::uint64_t>(n);
    parts.o.push_back(gaussian({2, 3, kRows, kDv}, type, stream));
    parts.lse.push_back(
        gaussian({2, 3, kRows}, type == DType::f64 ? type : DType::f32, stream + 50, 8));
  }
  return parts;
}

struct Merged {
  Tensor out{{2, 3, kRows, kDv}, DType::f64}, lse{{2, 3, kRows}, DType::f64};
};

Merged merged(const Parts& parts, Context& context = default_context()) {
  Merged result;
  attend::merge(parts.o_views(), parts.lse_views(), result.out, result.lse, context);
  return result;
}

TEST(Properties, p11_one_part_merges_to_itself) {
  const Parts parts = random_parts(1, 1);
  const Merged result = merged(parts);
  EXPECT_TRUE(same_bits(parts.o[0], result.out));
  EXPECT_TRUE(same_bits(parts.lse[0], result.lse));
}

// A part that saw no key has lse -inf, and its o may hold anything.
TEST(Properties, p11_empty_parts_change_no_bit) {
  const Parts parts = random_parts(3, 2);
  const Merged expected = merged(parts);
  Tensor nothing({2, 3, kRows, kDv}, DType::f64), nowhere({2, 3, kRows}, DType::f64);
  fill(nothing, NAN);
  fill(nowhere, -INFINITY);
  for (std::ptrdiff_t at = 0; at <= 3; ++at) {
    Parts more = parts;
    more.o.insert(more.o.begin() + at, nothing);
    more.lse.insert(more.lse.begin() + at, nowhere);
    const Merged result = merged(more);
    EXPECT_TRUE(same_bits(expected.out, result.out)) << "empty part at " << at;
    EXPECT_TRUE(same_bits(expected.lse, result.lse)) << "empty part at " << at;
  }
}

TEST(Properties, p11_a_visible_nan_in_a_part_reaches_the_merged_row) {
  Parts parts = random_parts(3, 3);
  set_value(parts.lse[1], {1, 2, 3}, NAN);
  set_value(parts.o[2], {0, 1, 4, 2}, NAN);
  const Merged result = merged(parts);
  for (std::int64_t x = 0; x < kDv; ++x) {
    EXPECT_TRUE(std::isnan(result.out.at<double>({1, 2, 3, x})));
    EXPECT_EQ(std::isnan(result.out.at<double>({0, 1, 4, x})), x == 2);
  }
  EXPECT_TRUE(std::isnan(result.lse.at<double>({1, 2, 3})));
  EXPECT_TRUE(all_finite(take(take(result.out, 0, {1}), 1, {0, 1})));
}

TEST(Properties, p11_layout_and_threads_change_no_bit_of_a_merge) {
  for (const DType type : cases::kTypes) {
    const Parts parts = random_parts(5, 4, type);
    const Merged expected = merged(parts);
    for (int threads = 1; threads <= 8; ++threads) {
      ContextOptions options;
      options.threads = threads;
      options.allocator = filled_allocator(0xff);
      Context context(options);
      ScatteredMemory memory(static_cast<std::uint64_t>(threads));
      Parts same;
      std::vector<ConstTensorView> o, lse;
      for (const Tensor& t : parts.o) o.push_back(memory.scatter(t));
      for (const Tensor& t : parts.lse) lse.push_back(memory.scatter(t));
      Merged result;
      const TensorView out = memory.scatter(result.out), lse_out = memory.scatter(result.lse);
      attend::merge(o, lse, out, lse_out, context);
      EXPECT_TRUE(same_bits(expected.out, out)) << name_of(type) << ", " << threads << " threads";
      EXPECT_TRUE(same_bits(expected.lse, lse_out)) << name_of(type) << ", " << threads;
      EXPECT_TRUE(memory.gaps_untouched());
    }
  }
}

// The order in which parts come matters to the last bits at most.
TEST(Properties, p11_parts_in_another_order_merge_to_nearly_the_same) {
  Parts parts = random_parts(4, 5);
  const Merged expected = merged(parts);
  std::swap(parts.o[0], parts.o[3]);
  std::swap(parts.lse[0], parts.lse[3]);
  const Merged result = merged(parts);
  EXPECT_TRUE(close(expected.out, result.out, usual_error(DType::f64)));
  EXPECT_TRUE(close(expected.lse, result.lse, usual_error(DType::f64)));
}

}  // namespace
}  // namespace attend::test
