// P11, P27: keys given part by part. A partial state to which keys were added in ascending order,
// cut at multiples of 256, finishes to the bits of the undivided call, on every kernel and in every
// type; states of single chunks do when they are merged. The textbook kernel keeps no state.
#include "support/property_compare.h"
#include "support/property_memory.h"

#include "cases/random.h"

#include <cfloat>
#include <cmath>
#include <map>
#include <memory>

namespace attend::test {
namespace {

using cases::Case;

Context& forcing(const KernelUnderTest& kernel) {
  static std::map<std::string, std::unique_ptr<Context>> contexts;
  auto& context = contexts[kernel.name];
  if (!context) {
    ContextOptions options;
    options.kernels = "forward:" + kernel.name;
    options.threads = 1;  // many small calls; threads have a test of their own below
    context = std::make_unique<Context>(options);
  }
  return *context;
}

bool keeps_states(const KernelUnderTest& kernel) {
  return !kernel.yardstick && !kernel.takes_few_options();
}

Tensor empty_state(const Trial& trial) {
  return Tensor(partial_state_shape(trial.q, trial.v), DType::f64);
}

void add(const Trial& part, const TensorView& state, Context& context) {
  CallMemory memory;
  const ConstTensorView q = memory.in(part.q), k = memory.in(part.k), v = memory.in(part.v);
  const AttentionOptions options = memory.in(part.q, part.k, part.v, part.options());
  const TensorView state_there = memory.out(state);
  const Where where = memory.begin(context);
  attention_partial(q, k, v, state_there, options, where);
  memory.end();
}

std::vector<ConstTensorView> all_in(CallMemory& memory, const std::vector<ConstTensorView>& views) {
  std::vector<ConstTensorView> there;
  for (const ConstTensorView& view : views) there.push_back(memory.in(view));
  return there;
}

// A row of 16-bit tensors alone does not join: states are of its sums' type.
void merge_in(Context& context, const std::vector<ConstTensorView>& states, const TensorView& to) {
  CallMemory memory;
  const std::vector<ConstTensorView> there = all_in(memory, states);
  const TensorView to_there = memory.out(to);
  try {
    merge_partial(there, to_there, memory.begin(context));
  } catch (const Unsupported&) {
    merge_partial(there, to_there, memory.begin());
  }
  memory.end();
}

Written finished(const Trial& trial, const std::vector<ConstTensorView>& states, Context& context) {
  Written written = trial.empty_results(false);
  CallMemory memory;
  const std::vector<ConstTensorView> there = all_in(memory, states);
  const TensorView out = memory.out(written.out), lse = memory.out(written.lse);
  try {
    finish_partial(there, out, lse, memory.begin(context));
  } catch (const Unsupported&) {
    finish_partial(there, out, lse, memory.begin());
  }
  memory.end();
  return written;
}

std::vector<std::int64_t> all_cuts(std::int64_t keys) {
  std::vector<std::int64_t> cuts;
  for (std::int64_t at = 0; at < keys; at += 256) cuts.push_back(at);
  cuts.push_back(keys);
  return cuts;
}

std::vector<std::int64_t> some_cuts(std::int64_t keys, std::uint64_t seed) {
  std::vector<std::int64_t> cuts = {0};
  const cases::Random random(seed, 11);
  for (std::int64_t at = 256; at < keys; at += 256)
    if (random.chance(0.5, static_cast<std::uint64_t>(at))) cuts.push_back(at);
  cuts.push_back(keys);
  return cuts;
}

// The options are the same for every part: sinks count once, with the first keys.
Tensor added_in_turn(const Trial& trial, const std::vector<std::int64_t>& cuts, Context& context) {
  Tensor state = empty_state(trial);
  for (std::size_t n = 1; n < cuts.size(); ++n)
    add(keys_of(trial, cuts[n - 1], cuts[n]), state, context);
  return state;
}

std::vector<Tensor> each_by_itself(const Trial& trial, const std::vector<std::int64_t>& cuts,
                                   Context& context) {
  std::vector<Tensor> states;
  for (std::size_t n = 1; n < cuts.size(); ++n) {
    Trial part = keys_of(trial, cuts[n - 1], cuts[n]);
    if (n > 1) part.sinks = {};
    states.push_back(empty_state(trial));
    add(part, states.back(), context);
  }
  return states;
}

std::vector<ConstTensorView> views(const std::vector<Tensor>& tensors) {
  return {tensors.begin(), tensors.end()};
}

void with_several_chunks(Case& c) {
  c.addressing = cases::Addressing::dense;
  c.batch = 1 + static_cast<std::int64_t>(c.seed % 2);
  c.q_length = 1 + static_cast<std::int64_t>(c.seed % 6);
  c.k_length = 200 + static_cast<std::int64_t>(c.seed * 37 % 1000);
  if (c.window_left != kUnlimited) c.window_left += 300;
}

TEST(PropertiesParts, p11_keys_added_in_turn_give_the_bits_of_the_whole) {
  for_trials(every_forward_kernel(), 11000, 100, with_several_chunks,
             [](const Trial& trial, const KernelUnderTest& kernel, Written& whole) {
               if (!keeps_states(kernel)) return;
               Context& context = forcing(kernel);
               const std::int64_t keys = trial.k.size(2);
               for (const auto& cuts : {all_cuts(keys), some_cuts(keys, trial.line.size())}) {
                 const Tensor state = added_in_turn(trial, cuts, context);
                 const Written written = finished(trial, {state}, context);
                 EXPECT_TRUE(same_bits(whole, written)) << cuts.size() - 1 << " parts";
               }
             });
}

TEST(PropertiesParts, p11_states_of_one_chunk_merge_to_the_bits_of_the_whole) {
  for_trials(every_forward_kernel(), 11200, 60, with_several_chunks,
             [](const Trial& trial, const KernelUnderTest& kernel, Written& whole) {
               if (!keeps_states(kernel)) return;
               Context& context = forcing(kernel);
               std::vector<std::int64_t> cuts = all_cuts(trial.k.size(2));
               if (cuts.size() > 3) cuts.erase(cuts.begin() + 1);  // the first may be of several
               const std::vector<Tensor> states = each_by_itself(trial, cuts, context);
               EXPECT_TRUE(same_bits(whole, finished(trial, views(states), context)));
               Tensor joined = states[0];
               for (std::size_t n = 1; n < states.size(); ++n) {
                 Tensor next = empty_state(trial);
                 merge_in(context, {joined, states[n]}, next);
                 joined = next;
               }
               EXPECT_TRUE(same_bits(whole, finished(trial, {joined}, context)));
             });
}

// A merged state remembers that one of its parts has counted the sink.
TEST(PropertiesParts, p11_keys_added_to_merged_states_count_no_sink_again) {
  const auto adapt = [](Case& c) {
    with_several_chunks(c);
    c.k_length += 600;
    c.sinks = true;
  };
  for_trials(forward_kernels(), 11300, 20, adapt,
             [](const Trial& trial, const KernelUnderTest& kernel, Written& whole) {
               if (!keeps_states(kernel)) return;
               Context& context = forcing(kernel);
               const std::int64_t keys = trial.k.size(2);
               const auto states = each_by_itself(trial, {0, 256, 512}, context);
               Tensor joined = empty_state(trial);
               merge_in(context, views(states), joined);
               add(keys_of(trial, 512, keys), joined, context);
               EXPECT_TRUE(same_bits(whole, finished(trial, {joined}, context)));
             });
}

// States of several chunks each, and cuts anywhere.
TEST(PropertiesParts, p11_any_states_merge_to_nearly_the_whole) {
  const auto adapt = [](Case& c) {
    with_several_chunks(c);
    c.width = cases::Width::f64;
    c.lse_f64 = true;
  };
  for_trials(every_forward_kernel(), 11400, 60, adapt,
             [](const Trial& trial, const KernelUnderTest& kernel, Written& whole) {
               if (!keeps_states(kernel)) return;
               Context& context = forcing(kernel);
               const std::int64_t keys = trial.k.size(2);
               const auto chunks = finished(
                   trial, views(each_by_itself(trial, some_cuts(keys, trial.line.size()), context)),
                   context);
               EXPECT_TRUE(close(whole.out, chunks.out, 16 * DBL_EPSILON, 1));
               EXPECT_TRUE(close(whole.lse, chunks.lse, 16 * DBL_EPSILON, 1));
               const auto anywhere = finished(
                   trial, views(each_by_itself(trial, {0, 0, keys / 3, keys / 2, keys}, context)),
                   context);
               const double error = 2 * usual_error(trial.q.dtype());
               EXPECT_TRUE(close(whole.out, anywhere.out, error, 1));
               EXPECT_TRUE(close(whole.lse, anywhere.lse, error, 1));
             });
}

// Equal weights: the sums of the chunks are f32 numbers, f64 adds them without rounding, and so
// even states of several chunks join to the bits of the whole. Ties of rounding are common there.
TEST(PropertiesParts, p27_states_of_equal_weights_merge_to_the_bits_of_the_whole) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16})
    for (const KernelUnderTest& kernel : forward_kernels(type)) {
      if (!keeps_states(kernel)) continue;
      Trial trial;
      trial.line = "q=0 k=1024";
      trial.q = Tensor({1, 1, 16, 64}, type);
      trial.k = gaussian({1, 1, 1024, 64}, type, 1);
      trial.v = gaussian({1, 1, 1024, 64}, type, 2);
      trial.out_type = type;
      const auto whole = trial.run(kernel);
      if (!whole) continue;
      Context& context = forcing(kernel);
      for (const std::int64_t cut : {256, 512, 768}) {
        const auto states = each_by_itself(trial, {0, cut, 1024}, context);
        EXPECT_TRUE(same_bits(*whole, finished(trial, views(states), context)))
            << kernel.name << " " << name_of(type) << " cut at " << cut;
      }
    }
}

// A bias of -1e17 or 1e30 leaves nothing of log n in lse; the states hold the sums themselves.
TEST(PropertiesParts, p27_states_join_whatever_the_size_of_lse) {
  for (const DType type : {DType::f64, DType::f32})
    for (const double bias : {0.0, -1e9, -1e15, -1e17, 1e17, -1e30, 1e30, -double{FLT_MAX}})
      for (const KernelUnderTest& kernel : forward_kernels(type)) {
        if (!keeps_states(kernel)) continue;
        Trial trial;
        trial.line = "bias=" + std::to_string(bias);
        trial.q = Tensor({1, 1, 1, 1}, type);
        trial.k = Tensor({1, 1, 320, 1}, type);
        trial.v = Tensor({1, 1, 320, 1}, type);
        for (std::int64_t j = 0; j < 320; ++j) set_value(trial.v, {0, 0, j, 0}, j < 256 ? 1 : 2);
        trial.bias = Tensor({1, 1, 1, 320}, type);
        fill(trial.bias, bias);
        trial.out_type = trial.lse_type = type;
        const auto whole = trial.run(kernel);
        if (!whole) continue;
        Context& context = forcing(kernel);
        const auto states = each_by_itself(trial, {0, 256, 320}, context);
        const Written joined = finished(trial, views(states), context);
        EXPECT_TRUE(same_bits(*whole, joined)) << kernel.name << " " << trial.line;
        EXPECT_NEAR(value_at(joined.out, {0, 0, 0, 0}), 1.2, 1e-6) << kernel.name << trial.line;
      }
}

TEST(PropertiesParts, p11_empty_states_change_no_bit) {
  for_trials(every_forward_kernel(), 11600, 30, with_several_chunks,
             [](const Trial& trial, const KernelUnderTest& kernel, Written& whole) {
               if (!keeps_states(kernel)) return;
               Context& context = forcing(kernel);
               const std::int64_t keys = trial.k.size(2);
               Tensor state = empty_state(trial);
               add(keys_of(trial, 0, 0), state, context);
               Trial hidden = keys_of(trial, 0, keys);
               hidden.mask = Tensor({1, 1, 1, 1}, DType::boolean);  // zero: everything hidden
               fill(hidden.k, NAN);
               fill(hidden.v, NAN);
               add(hidden, state, context);
               add(keys_of(trial, 0, keys), state, context);
               const Tensor nothing = empty_state(trial);
               const Written written = finished(trial, {nothing, state, nothing}, context);
               EXPECT_TRUE(same_bits(whole, written));
               const Written zeros = finished(trial, {nothing}, context);
               EXPECT_TRUE(all_zero(zeros.out));
               EXPECT_EQ(value_at(zeros.lse, {0, 0, 0}), -INFINITY);
             });
}

TEST(PropertiesParts, p6_a_visible_nan_reaches_the_rows_that_see_it) {
  const auto adapt = [](Case& c) {
    with_several_chunks(c);
    c.k_length = 700;
  };
  for_trials(every_forward_kernel(), 11700, 40, adapt,
             [](const Trial& given, const KernelUnderTest& kernel, Written&) {
               if (!keeps_states(kernel)) return;
               for (const std::int64_t at : {3, 300, 650})
                 for (const bool key : {false, true}) {
                   Trial trial = given;
                   set_value(key ? trial.k : trial.v, {0, 0, at, 0}, NAN);
                   const auto whole = trial.run(kernel);
                   ASSERT_TRUE(whole);
                   const Tensor state = added_in_turn(trial, {0, 256, 700}, forcing(kernel));
                   EXPECT_TRUE(same_bits(*whole, finished(trial, {state}, forcing(kernel))))
                       << "NaN in " << (key ? "k " : "v ") << at;
                 }
             });
}

// Keys on pages and packed sequences: the state lies as q does.
TEST(PropertiesParts, packed_and_paged_keys_leave_states_too) {
  const auto adapt = [](Case& c) {
    if (c.addressing == cases::Addressing::dense) c.addressing = cases::Addressing::packed;
    if (is_paged(c) && c.key_lengths == cases::Lengths::none) c.key_lengths = cases::Lengths::full;
    if (c.addressing != cases::Addressing::packed_self) c.k_length = 300 + c.k_length % 300;
  };
  for_trials(every_forward_kernel(), 11800, 60, adapt,
             [](const Trial& trial, const KernelUnderTest& kernel, Written& whole) {
               if (!keeps_states(kernel)) return;
               Tensor state = empty_state(trial);
               add(trial, state, forcing(kernel));
               EXPECT_TRUE(same_bits(whole, finished(trial, {state}, forcing(kernel))));
             });
}

TEST(PropertiesParts, pages_added_in_turn_give_the_bits_of_the_whole) {
  constexpr std::int64_t kPage = 64, kPages = 13, kKeys = kPage * kPages;
  const Tensor lengths = integers_of({kKeys - 5, 200});
  Trial trial;
  trial.q = gaussian({2, 4, 3, 16}, DType::f32, 1);
  trial.k = gaussian({2 * kPages, 2, kPage, 16}, DType::f32, 2);
  trial.v = gaussian({2 * kPages, 2, kPage, 24}, DType::f32, 3);
  trial.block_table = integers_of(shuffled(2 * kPages, 4));
  trial.block_table =
      Tensor::copy_of(ConstTensorView(trial.block_table.view().data(), DType::i64, {2, kPages}));
  trial.key_lengths = lengths;
  trial.plain.causal = true;
  trial.plain.query_offset = kKeys - 8;
  for (const KernelUnderTest& kernel : forward_kernels()) {
    if (!keeps_states(kernel)) continue;
    const auto whole = trial.run(kernel);
    if (!whole) continue;
    Tensor state = empty_state(trial);
    for (std::int64_t page = 0; page < kPages; page += 4) {  // 256 keys
      const std::int64_t end = std::min(page + 4, kPages), first = page * kPage;
      Trial part = trial;
      part.block_table = take(trial.block_table, 1, range(page, end));
      std::vector<std::int64_t> rest;
      for (const std::int64_t length : {kKeys - 5, std::int64_t{200}})
        rest.push_back(std::clamp<std::int64_t>(length - first, 0, (end - page) * kPage));
      part.key_lengths = integers_of(rest);
      part.plain.key_offset = first;
      add(part, state, forcing(kernel));
    }
    EXPECT_TRUE(same_bits(*whole, finished(trial, {state}, forcing(kernel)))) << kernel.name;
  }
}

TEST(PropertiesParts, p11_layout_and_threads_change_no_bit_of_a_state) {
  Case c =
      cases::parse("type=bf16 batch=2 heads=4 kv_heads=2 q=33 k=900 d=24 dv=20 causal=1 sinks=1");
  for (const std::int64_t queries : {1, 33, 300}) {
    c.q_length = queries;
    const Trial trial = make_trial(c);
    const Tensor expected = added_in_turn(trial, all_cuts(900), default_context());
    const Written results = finished(trial, {expected}, default_context());
    for (int threads = 1; threads <= 8; ++threads) {
      ContextOptions options;
      options.threads = threads;
      options.allocator = filled_allocator(0xff);
      Context context(options);
      ScatteredMemory memory(static_cast<std::uint64_t>(threads));
      const TensorView state = memory.scatter(empty_state(trial));
      for (const auto& [begin, end] : {std::pair{0, 256}, std::pair{256, 768}, std::pair{768, 900}})
        add(keys_of(trial, begin, end), state, context);
      EXPECT_TRUE(same_bits(expected, state)) << threads << " threads";
      EXPECT_TRUE(same_bits(results, finished(trial, {state}, context))) << threads << " threads";
      EXPECT_TRUE(memory.gaps_untouched());
    }
  }
}

// ---- key_offset --------------------------------------------------------------------------------

// What key_offset says of a part can be said without it, if one knows how.
TEST(PropertiesParts, key_offset_moves_queries_and_draws_and_nothing_else) {
  const auto adapt = [](Case& c) {
    c.addressing = cases::Addressing::dense;
    c.dropout_origin = false;
  };
  for_trials(every_kernel(), 11900, 100, adapt,
             [](const Trial& trial, const KernelUnderTest& kernel, Written&) {
               const std::int64_t keys = trial.k.size(2), cut = keys / 2;
               const Trial part = keys_of(trial, cut, keys);
               Trial moved = part;
               std::vector<std::int64_t> offsets;
               for (std::int64_t b = 0; b < trial.q.size(0); ++b)
                 offsets.push_back(rows_of(trial.arguments(), b).offset - cut);
               moved.query_offset = integers_of(offsets);
               moved.plain.dropout.origin.j = *part.plain.key_offset;
               moved.plain.key_offset = {};
               const auto expected = moved.run(kernel), results = part.run(kernel);
               ASSERT_EQ(expected.has_value(), results.has_value());
               if (results) {
                 EXPECT_TRUE(same_bits(*expected, *results));
               }
             });
}

// Halves of the keys of a causal call, joined: right with key_offset, and refused where it alone
// is given, since the last query would stand at the part's last key.
TEST(PropertiesParts, causal_halves_join_to_the_whole) {
  if (on_gpu()) GTEST_SKIP() << "the functions are called as on the host; p11 asks it of the GPU";
  const Tensor q = gaussian({1, 1, 512, 16}, DType::f32, 1),
               k = gaussian({1, 1, 512, 16}, DType::f32, 2),
               v = gaussian({1, 1, 512, 16}, DType::f32, 3);
  const Tensor whole = attention(q, k, v, {.causal = true});
  Tensor state(partial_state_shape(q, v), DType::f64), joined({1, 1, 512, 16});
  std::vector<Tensor> o, lse;
  for (const std::int64_t begin : {0, 256}) {
    const ConstTensorView keys = k.view().slice(2, begin, begin + 256);
    const ConstTensorView values = v.view().slice(2, begin, begin + 256);
    const AttentionOptions options{.causal = true, .query_offset = 0, .key_offset = begin};
    attention_partial(q, keys, values, state, options);
    o.emplace_back(Shape{1, 1, 512, 16}, DType::f64);
    lse.emplace_back(Shape{1, 1, 512}, DType::f64);
    attention(q, keys, values, o.back(), options, {.lse = lse.back()});
    EXPECT_THROW(attention(q, keys, values, {.causal = true, .key_offset = begin}),
                 InvalidArgument);
  }
  finish_partial({state}, joined);
  EXPECT_TRUE(same_bits(whole, joined));
  merge({o[0], o[1]}, {lse[0], lse[1]}, joined);
  EXPECT_TRUE(close(whole, joined, FLT_EPSILON, 1));
}

}  // namespace
}  // namespace attend::test
