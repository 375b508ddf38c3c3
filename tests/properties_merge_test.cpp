// P11: keys split into parts, attended to one by one, and their (o, lse) merged: near the undivided
// call by a bound that grows with |lse|. Partial states, which give its bits:
// properties_parts_test.
#include "support/property_compare.h"
#include "support/property_memory.h"

#include "cases/arena.h"
#include "cases/random.h"

#include <cmath>
#include <memory>

namespace attend::test {
namespace {

using cases::Case;

struct Parts {
  std::vector<Tensor> o, lse;
  std::vector<ConstTensorView> o_views() const { return {o.begin(), o.end()}; }
  std::vector<ConstTensorView> lse_views() const { return {lse.begin(), lse.end()}; }
};

Parts attend_to_parts(const Trial& trial, const std::vector<std::int64_t>& cuts,
                      const KernelUnderTest& kernel) {
  Parts parts;
  for (std::size_t n = 1; n < cuts.size(); ++n) {
    Trial part = keys_of(trial, cuts[n - 1], cuts[n]);
    if (trial.q.dtype() != DType::f64) part.out_type = part.lse_type = DType::f64;
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
    if (info.operation != "merge" || info.name.starts_with("cuda.") != on_gpu()) continue;
    ContextOptions options;
    options.kernels = "merge:" + info.name;
    contexts.push_back(std::make_unique<Context>(options));
  }
  return contexts;
}

// merge(), on the host or on the GPU.
void merge_parts(const std::vector<ConstTensorView>& o, const std::vector<ConstTensorView>& lse,
                 const TensorView& out, const TensorView& lse_out = {},
                 Context& context = default_context()) {
  CallMemory memory;
  std::vector<ConstTensorView> o_there, lse_there;
  for (const ConstTensorView& part : o) o_there.push_back(memory.in(part));
  for (const ConstTensorView& part : lse) lse_there.push_back(memory.in(part));
  const TensorView out_there = memory.out(out), lse_out_there = memory.out(lse_out);
  const Where where = memory.begin(context);
  attend::merge(o_there, lse_there, out_there, lse_out_there, where);
  memory.end();
}

Tensor rounded(const Tensor& tensor) {  // to f32
  Tensor result(tensor.shape());
  cases::for_each_index(tensor.shape(),
                        [&](const Shape& at) { set_value(result, at, value_at(tensor, at)); });
  return result;
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

// How far a merge may lie from the undivided call, as attention.h says it: 16 u (L + 32 + n) times
// the largest |o| of the row, and the rounding of both results.
void near_the_whole(const Tensor& whole, const Tensor& merged, const Parts& parts, DType lse_type) {
  const double u = lse_type == DType::f64 ? 0x1p-53 : 0x1p-24;
  const double rounding = std::max(usual_error(whole.dtype()), 0x1p-52);
  Shape row = whole.shape();
  row[3] = 1;
  cases::for_each_index(row, [&](const Shape& at) {
    double lse = 0, largest = 0;
    for (std::size_t n = 0; n < parts.o.size(); ++n) {
      const double of_part = value_at(parts.lse[n], {at[0], at[1], at[2]});
      if (of_part == -INFINITY) continue;
      lse = std::max(lse, std::abs(of_part));
      for (std::int64_t x = 0; x < whole.size(3); ++x)
        largest = std::max(largest, std::abs(value_at(parts.o[n], {at[0], at[1], at[2], x})));
    }
    const double bound = 16 * u * (lse + 32 + static_cast<double>(parts.o.size())) + rounding;
    for (std::int64_t x = 0; x < whole.size(3); ++x) {
      const Shape element{at[0], at[1], at[2], x};
      EXPECT_NEAR(value_at(whole, element), value_at(merged, element), bound * largest) << x;
    }
  });
}

TEST(Properties, p11_parts_cut_at_multiples_of_256_merge_to_within_the_bound) {
  const auto contexts = contexts_of_merge_kernels();
  ASSERT_FALSE(contexts.empty());
  for_trials(every_forward_kernel(), 11000, 120, with_several_chunks,
             [&](const Trial& trial, const KernelUnderTest& kernel, Written& whole) {
               if (kernel.yardstick || kernel.takes_few_options()) return;  // keeps no wide parts
               std::vector<std::int64_t> cuts = {0};
               const cases::Random random(trial.line.size(), 11);
               for (std::int64_t at = 256; at < trial.k.size(2); at += 256)
                 if (random.chance(0.7, static_cast<std::uint64_t>(at))) cuts.push_back(at);
               cuts.push_back(trial.k.size(2));
               const Parts parts = attend_to_parts(trial, cuts, kernel);
               for (const auto& context : contexts) {
                 Written merged = trial.empty_results(false);
                 merge_parts(parts.o_views(), parts.lse_views(), merged.out, merged.lse, *context);
                 near_the_whole(whole.out, merged.out, parts, DType::f64);
                 EXPECT_TRUE(close(whole.lse, merged.lse, 8 * usual_error(trial.lse_type)));
               }
             });
}

// P27. A bias on every score moves lse and nothing else: the bound grows with it, and where lse no
// longer tells parts apart, merge says so instead of joining them to something.
TEST(Properties, p27_parts_of_large_lse_merge_to_within_the_bound_or_are_refused) {
  if (on_gpu()) GTEST_SKIP() << "the host does not read lse of a GPU, and cannot refuse it";
  for (const DType lse_type : {DType::f64, DType::f32})
    for (const double size : {0.0, 1e2, 1e4, 6e4, 1e5, 1e9, 1e12, 3e13, 1e14, 1e17, 1e30})
      for (const double bias : {size, -size}) {
        Trial trial;
        trial.q = gaussian({1, 2, 3, 8}, DType::f64, 1);
        trial.k = gaussian({1, 2, 320, 8}, DType::f64, 2);
        trial.v = gaussian({1, 2, 320, 8}, DType::f64, 3);
        trial.bias = Tensor({1, 1, 1, 320}, DType::f64);
        fill(trial.bias, bias);
        trial.out_type = trial.lse_type = DType::f64;
        const auto whole = trial.run({forward_kernels()[0].name});
        if (!whole) continue;
        Parts parts = attend_to_parts(trial, {0, 100, 320}, {forward_kernels()[0].name});
        for (Tensor& lse : parts.lse)
          if (lse_type == DType::f32) lse = rounded(lse);
        Tensor merged({1, 2, 3, 8}, DType::f64);
        const auto join = [&] { attend::merge(parts.o_views(), parts.lse_views(), merged); };
        if (size * (lse_type == DType::f64 ? 0x1p-53 : 0x1p-24) > 0x1p-8) {
          EXPECT_THROW(join(), InvalidArgument) << bias;
          parts.lse[0] = Tensor({1, 2, 3}, lse_type);  // far from the other's: nothing to compare
          fill(parts.lse[0], bias > 0 ? 0 : bias * 2);
          join();
          EXPECT_TRUE(same_bits(parts.o[1], merged)) << bias;
        } else {
          join();
          near_the_whole(whole->out, merged, parts, lse_type);
        }
      }
}

TEST(Properties, p11_parts_cut_anywhere_merge_to_nearly_the_whole) {
  const auto adapt = [](Case& c) {
    with_several_chunks(c);
    c.k_length = c.k_length % 60 + 2;
  };
  for_trials(every_forward_kernel(), 11500, 150, adapt,
             [](const Trial& trial, const KernelUnderTest& kernel, Written& whole) {
               if (kernel.takes_few_options()) return;  // keeps no wide parts
               const std::int64_t keys = trial.k.size(2);
               std::vector<std::int64_t> cuts = {0, 0};  // an empty part, too
               const cases::Random random(trial.line.size(), 12);
               for (std::int64_t at = 1; at < keys; ++at)
                 if (random.chance(0.2, static_cast<std::uint64_t>(at))) cuts.push_back(at);
               cuts.push_back(keys);
               const Parts parts = attend_to_parts(trial, cuts, kernel);
               Written merged = trial.empty_results(false);
               merge_parts(parts.o_views(), parts.lse_views(), merged.out, merged.lse);
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
  merge_parts(parts.o_views(), parts.lse_views(), result.out, result.lse, context);
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
      merge_parts(o, lse, out, lse_out, context);
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
