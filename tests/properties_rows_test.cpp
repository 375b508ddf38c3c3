// Properties of rows: what a row's bits depend on, and what they do not. P3, P4, P5, P12, P23.
// The textbook kernel is held to all of them as well.
#include "support/property_compare.h"
#include "support/property_trial.h"

namespace attend::test {
namespace {

using cases::Addressing;
using cases::Case;

void without_positions(Case& c) {
  c.causal = c.alibi = false;
  c.window_left = c.window_right = kUnlimited;
}

void without_packing(Case& c) {
  if (c.addressing == Addressing::packed_paged) c.addressing = Addressing::paged;
  if (is_packed(c)) c.addressing = Addressing::dense;
}

TEST(Properties, p3_permuted_queries_give_permuted_output) {
  const auto adapt = [](Case& c) {
    without_positions(c);
    without_packing(c);
    c.dropout = 0;
    c.block_q = 1;
    c.values = cases::Values::gaussian;  // sums in another order are compared
  };
  for_trials(every_kernel(), 3000, 150, adapt,
             [](const Trial& trial, const KernelUnderTest& kernel, Written& before) {
               const std::vector<std::int64_t> order = shuffled(trial.q.size(2), 3);
               Trial permuted = trial;
               for (Tensor* t : {&permuted.q, &permuted.dout, &permuted.dlse})
                 *t = take(*t, 2, order);
               for (Tensor* t : {&permuted.mask, &permuted.bias, &permuted.blocks})
                 *t = take_of_repeated(*t, 2, order);
               const auto after = permuted.run(kernel);
               ASSERT_TRUE(after);
               EXPECT_TRUE(same_bits(take(before.out, 2, order), after->out));
               EXPECT_TRUE(same_bits(take(before.lse, 2, order), after->lse));
               if (!kernel.backward) return;
               EXPECT_TRUE(same_bits(take(before.dq, 2, order), after->dq));
               const double error =
                   usual_error(trial.q.dtype());  // sums over queries take another order
               EXPECT_TRUE(close(before.dk, after->dk, error));
               EXPECT_TRUE(close(before.dv, after->dv, error));
               if (kernel.yardstick) return;
               EXPECT_TRUE(close(take_of_repeated(before.dbias, 2, order), after->dbias, error, 1));
               EXPECT_TRUE(close(before.dsinks, after->dsinks, error, 1));
             });
}

// What the whole gave for one batch element, in the shapes of `part`.
Written results_of_element(const Written& whole, const Trial& trial, const Trial& part,
                           std::int64_t b) {
  SequenceRows rows = rows_of(trial.arguments(), b);
  rows.keys.resize(static_cast<std::size_t>(part.k.size(2)));
  Written results;
  results.out = gather_rows(whole.out, rows.queries);
  results.lse = gather_rows(whole.lse, rows.queries);
  results.dq = gather_rows(whole.dq, rows.queries);
  results.dk = gather_rows(whole.dk, rows.keys);
  results.dv = gather_rows(whole.dv, rows.keys);
  return results;
}

// A gradient that is summed over the batch, over heads or over queries is not a row's own.
void drop_sums(Written& results) { results.dbias = results.dsinks = results.dalibi = {}; }

// Every batch element equals the element alone, with its padding and without it, and a row of it
// equals the row alone.
void expect_elements_equal_themselves_alone(const Trial& trial, const KernelUnderTest& kernel,
                                            Written& whole) {
  const Extents extents = extents_of(trial.arguments());
  for (std::int64_t b = 0; b < extents.batch; ++b) {
    const SequenceRows rows = rows_of(trial.arguments(), b);
    for (const std::int64_t keys_kept : {kUnlimited, rows.key_length}) {
      const Trial part = element_of(trial, b, keys_kept);
      SCOPED_TRACE(part.line);
      auto alone = part.run(kernel);
      ASSERT_TRUE(alone) << "accepted the whole, declines a part";
      drop_sums(*alone);
      EXPECT_TRUE(same_bits(results_of_element(whole, trial, part, b), *alone));
    }
    const auto queries = static_cast<std::int64_t>(rows.queries.size());
    if (queries == 0) continue;
    const std::int64_t h = (b + 1) % extents.heads, i = (7 * b + 3) % queries;
    const Trial element = element_of(trial, b);
    const Trial row = queries_of(head_of(element, h), i, i + 1);
    SCOPED_TRACE(row.line);
    const auto of_element = element.run(kernel), alone = row.run(kernel);
    ASSERT_TRUE(of_element && alone) << "accepted the whole, declines a row";
    for (const auto member : {&Written::out, &Written::lse, &Written::dq}) {
      if (!(*alone.*member)) continue;
      EXPECT_TRUE(same_bits(take(take(*of_element.*member, 1, {h}), 2, {i}), *alone.*member));
    }
  }
}

// With dropout too: an origin says where the part lies, so that it draws the same numbers.
TEST(Properties, p4_a_row_of_a_batch_equals_the_row_alone) {
  for_trials(every_kernel(), 4000, 150, without_packing, expect_elements_equal_themselves_alone);
}

// Few rows against many keys have a way of their own; among many rows they take the common one.
// Every number of rows and of keys around what that way takes at a time, in one chunk and several;
// and, causal, rows that see different keys, where only one alone sees all of its own.
TEST(Properties, p4_few_rows_of_many_keys_equal_them_among_many) {
  const auto adapt = [](Case& c) {
    const auto pick = [&](std::uint64_t period, std::initializer_list<std::int64_t> of) {
      return of.begin()[c.seed / period % of.size()];
    };
    c = {.type = c.type,
         .heads = pick(1, {1, 1, 2, 3, 4, 8}),
         .q_length = 40,
         .k_length = pick(6, {128, 129, 131, 143, 200, 255, 256, 300, 511, 700}),
         .d = pick(3, {64, 16, 128, 24, 272, 528}),
         .dv = pick(2, {64, 24, 128, 17}),
         .seed = c.seed,
         .causal = c.seed % 5 == 0,
         .scale = c.scale,
         .gradients = c.gradients};
  };
  for_trials(every_kernel(), 4500, 60, adapt,
             [](const Trial& trial, const KernelUnderTest& kernel, Written& whole) {
               for (const std::int64_t rows : {1, 2, 3, 4, 7}) {
                 const std::int64_t first = 4 * rows;
                 const auto few = queries_of(trial, first, first + rows).run(kernel);
                 ASSERT_TRUE(few) << "accepted the whole, declines some rows";
                 const std::vector<std::int64_t> taken = range(first, first + rows);
                 EXPECT_TRUE(same_bits(take(whole.out, 2, taken), few->out)) << rows;
                 EXPECT_TRUE(same_bits(take(whole.lse, 2, taken), few->lse)) << rows;
               }
             });
}

// The last rows of a task are a tile as wide as they need. Some sums are made to vanish from below,
// to -0, so that a sign would tell which keys the other rows of a tile see.
TEST(Properties, p4_rows_in_tiles_of_every_width_equal_them_among_many) {
  const auto adapt = [](Case& c) {
    const auto pick = [&](std::uint64_t period, std::initializer_list<std::int64_t> of) {
      return of.begin()[c.seed / period % of.size()];
    };
    constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f64, DType::f32, DType::f16};
    c = {.type = kTypes[pick(1, {0, 1, 2, 3, 4})],
         .heads = pick(2, {1, 2}),
         .q_length = 70,
         .k_length = pick(1, {3, 10, 20, 63, 255, 257, 290}),
         .d = pick(3, {64, 16, 24, 5, 300, 521}),
         .dv = pick(2, {64, 24, 17}),
         .seed = c.seed,
         .causal = c.seed % 2 == 0,
         .scale = c.scale};
  };
  // A weight below one half times the smallest number is -0.
  const auto vanishing = [](Tensor& v) {
    const auto set = [&](auto* at) {
      using T = std::remove_pointer_t<decltype(at)>;
      for (std::int64_t x = 0; x < v.count(); ++x)
        at[x] = x % 3 == 0 ? -std::numeric_limits<T>::denorm_min() : T{0};
    };
    if (v.dtype() == DType::f64) set(v.data<double>());
    if (v.dtype() == DType::f32) set(v.data<float>());
  };
  for_trials(every_kernel(), 4700, 42, adapt,
             [&](const Trial& given, const KernelUnderTest& kernel, Written&) {
               Trial trial = given;
               if (given.k.size(2) % 2 == 1) vanishing(trial.v);
               const auto whole = trial.run(kernel);
               ASSERT_TRUE(whole);
               for (const std::int64_t rows : {5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 33}) {
                 const std::int64_t first = 64 - rows;
                 const auto some = queries_of(trial, first, first + rows).run(kernel);
                 ASSERT_TRUE(some) << "accepted the whole, declines some rows";
                 const std::vector<std::int64_t> taken = range(first, first + rows);
                 EXPECT_TRUE(same_bits(take(whole->out, 2, taken), some->out)) << rows;
                 EXPECT_TRUE(same_bits(take(whole->lse, 2, taken), some->lse)) << rows;
               }
             });
}

// Weights so small that they count as 0 do so in every row, whatever the other rows of its tile
// see.
TEST(Properties, p4_vanishing_weights_vanish_in_the_row_alone_too) {
  constexpr std::int64_t kRows = 9;
  for (const DType type : {DType::f32, DType::f64}) {
    Trial trial = make_trial(
        {.type = type, .q_length = kRows, .k_length = kRows, .d = 4, .dv = 3, .causal = true});
    fill(trial.q, 0);
    fill(trial.k, 0);
    // The first key weighs a subnormal number, and its k is all that dq is made of.
    const double large = type == DType::f32 ? 0x1p100 : 0x1p600,
                 score = type == DType::f32 ? -89.5 : -711.0;
    trial.plain.scale = 1;
    set_value(trial.k, {0, 0, 0, 0}, large);
    for (std::int64_t i = 0; i < kRows; ++i) set_value(trial.q, {0, 0, i, 0}, score / large);
    for (const KernelUnderTest& kernel : all_kernels(type)) {
      if (!kernel.backward) continue;
      SCOPED_TRACE(kernel.name);
      const auto whole = trial.run(kernel);
      if (!whole) continue;
      for (std::int64_t i = 1; i < kRows; ++i) {
        const auto alone = queries_of(trial, i, i + 1).run(kernel);
        ASSERT_TRUE(alone);
        EXPECT_TRUE(same_bits(take(whole->dq, 2, {i}), alone->dq)) << "row " << i;
      }
    }
  }
}

TEST(Properties, p5_packed_sequences_equal_separate_calls) {
  const auto adapt = [](Case& c) {
    const Addressing packed[] = {Addressing::packed, Addressing::packed_self,
                                 Addressing::packed_paged};
    c.addressing = packed[c.seed % 3];
    c.batch = 1 + static_cast<std::int64_t>(c.seed % 4);
    if (c.addressing == Addressing::packed_self) c.k_length = c.q_length;
    if (is_paged(c) && c.key_lengths == cases::Lengths::none) c.key_lengths = cases::Lengths::full;
  };
  for_trials(every_kernel(), 5000, 150, adapt, expect_elements_equal_themselves_alone);
}

// The same sequences side by side in one batch element, held apart by a mask.
TEST(Properties, p5_block_diagonal_mask_is_close_to_packed_sequences) {
  const auto adapt = [](Case& c) {
    const std::uint64_t seed = c.seed;
    c = {.type = c.type,
         .batch = 3,
         .heads = c.heads,
         .kv_heads = c.kv_heads,
         .q_length = c.q_length,
         .k_length = c.k_length,
         .d = c.d,
         .dv = c.dv,
         .seed = seed,
         .addressing = Addressing::packed,
         .scale = c.scale,
         .softcap = c.softcap,
         .sinks = c.sinks,
         .lse_f64 = c.lse_f64,
         .width = c.width,
         .dlse = c.dlse};
  };
  for_trials(every_kernel(), 5500, 30, adapt,
             [](const Trial& trial, const KernelUnderTest& kernel, Written& packed) {
               Trial diagonal = trial;
               diagonal.cu_seqlens_q = diagonal.cu_seqlens_k = {};
               diagonal.mask = Tensor({1, 1, trial.q.size(2), trial.k.size(2)}, DType::boolean);
               for (std::int64_t b = 0; b < 3; ++b) {
                 const SequenceRows rows = rows_of(trial.arguments(), b);
                 for (const RowAddress& query : rows.queries)
                   for (const RowAddress& key : rows.keys)
                     diagonal.mask.at<bool>({0, 0, query.t, key.t}) = true;
               }
               const auto masked = diagonal.run(kernel);
               if (!masked && kernel.takes_few_options()) return;
               ASSERT_TRUE(masked);
               const double error = usual_error(trial.q.dtype());
               EXPECT_TRUE(close(packed.out, masked->out, error));
               EXPECT_TRUE(close(packed.lse, masked->lse, error, 1));
               if (!kernel.backward) return;
               EXPECT_TRUE(close(packed.dq, masked->dq, error, 1));
               EXPECT_TRUE(close(packed.dk, masked->dk, error, 1));
               EXPECT_TRUE(close(packed.dv, masked->dv, error, 1));
             });
}

// A sum over each group of heads, in f64.
Tensor sum_of_groups(const Tensor& repeated, std::int64_t kv_heads) {
  Shape shape = repeated.shape();
  const std::int64_t group = shape[1] / kv_heads;
  shape[1] = kv_heads;
  Tensor sum(shape, DType::f64);
  const std::int64_t head = shape[2] * shape[3];
  const std::vector<double> values = widen(repeated);
  for (std::size_t n = 0; n < values.size(); ++n) {
    const std::int64_t at = static_cast<std::int64_t>(n), of_group = at / (head * group);
    sum.data<double>()[of_group * head + at % head] += values[n];
  }
  return sum;
}

TEST(Properties, p12_grouped_heads_equal_repeated_heads) {
  const auto adapt = [](Case& c) {
    c.kv_heads = 1 + static_cast<std::int64_t>(c.seed % 3);
    c.heads = c.kv_heads * (2 + static_cast<std::int64_t>(c.seed % 2));
    c.values = cases::Values::gaussian;  // sums in another order are compared
  };
  for_trials(every_kernel(), 12000, 150, adapt,
             [](const Trial& trial, const KernelUnderTest& kernel, Written& grouped) {
               const std::int64_t kv_heads = trial.k.size(1), group = trial.q.size(1) / kv_heads;
               std::vector<std::int64_t> of_query_heads;
               for (std::int64_t h = 0; h < trial.q.size(1); ++h)
                 of_query_heads.push_back(h / group);
               Trial repeated = trial;
               repeated.k = take(trial.k, 1, of_query_heads);
               repeated.v = take(trial.v, 1, of_query_heads);
               auto each = repeated.run(kernel);
               ASSERT_TRUE(each);
               if (kernel.backward) {
                 const double error = usual_error(trial.q.dtype()) * static_cast<double>(group);
                 EXPECT_TRUE(close(grouped.dk, sum_of_groups(each->dk, kv_heads), error, 1));
                 EXPECT_TRUE(close(grouped.dv, sum_of_groups(each->dv, kv_heads), error, 1));
               }
               grouped.dk = grouped.dv = each->dk = each->dv = {};
               EXPECT_TRUE(same_bits(grouped, *each));
             });
}

// ---- P23 ---------------------------------------------------------------------------------------

// k and v of a dense trial on pages, the last of them first.
Trial on_pages(const Trial& trial, std::int64_t page_size) {
  const std::int64_t batch = trial.k.size(0), keys = trial.k.size(2);
  const std::int64_t width = (keys + page_size - 1) / page_size, pages = batch * width;
  Trial paged = trial;
  paged.block_table = Tensor({batch, width}, DType::i64);
  paged.key_lengths = integers_of(std::vector<std::int64_t>(static_cast<std::size_t>(batch), keys));
  for (const auto member : {&Trial::k, &Trial::v}) {
    const Tensor& dense = trial.*member;
    Tensor& on_page = paged.*member;
    on_page = Tensor({pages, dense.size(1), page_size, dense.size(3)}, dense.dtype());
    fill(on_page, NAN);
    for (std::int64_t b = 0; b < batch; ++b)
      for (std::int64_t j = 0; j < keys; ++j) {
        const std::int64_t page = pages - 1 - (b * width + j / page_size);
        paged.block_table.at<std::int64_t>({b, j / page_size}) = page;
        for (std::int64_t h = 0; h < dense.size(1); ++h)
          for (std::int64_t x = 0; x < dense.size(3); ++x)
            set_value(on_page, {page, h, j % page_size, x}, value_at(dense, {b, h, j, x}));
      }
  }
  const std::int64_t extent = width * page_size;
  paged.mask = with_all_keys(paged.mask, extent);
  paged.bias = with_all_keys(paged.bias, extent);
  if (paged.blocks)
    paged.blocks = with_all_keys(paged.blocks, (extent - 1) / paged.plain.blocks.key_size + 1);
  return paged;
}

// The ways in which queries [begin, end) may meet the keys that are there by then.
std::vector<Trial> ways_to_continue(const Trial& trial, std::int64_t begin, std::int64_t end) {
  const Trial explicit_offset = queries_of(trial, begin, end);
  Trial cut = keys_up_to(explicit_offset, end);
  cut.plain.query_offset = {};
  Trial lengths = explicit_offset;
  lengths.plain.query_offset = {};
  lengths.key_lengths =
      integers_of(std::vector<std::int64_t>(static_cast<std::size_t>(trial.q.size(0)), end));
  return {explicit_offset, cut, lengths, on_pages(cut, 5)};
}

TEST(Properties, p23_prefill_equals_chunked_prefill_equals_decode) {
  const auto adapt = [](Case& c) {
    without_packing(c);
    c.addressing = Addressing::dense;
    c.key_lengths = cases::Lengths::none;
    c.query_offset = cases::Offset::by_default;
    c.key_offset = 0;
    c.causal = c.seed % 4 != 0;
    if (!c.causal) c.window_right = 0;  // hides the future just as well
    c.k_length = c.q_length = c.k_length > 100 ? 260 + c.k_length % 20 : c.q_length;
    if (c.k_length > 100) c.batch = c.heads = c.kv_heads = 1;
  };
  for_trials(every_forward_kernel(), 23000, 150, adapt,
             [](const Trial& trial, const KernelUnderTest& kernel, Written& prefill) {
               const std::int64_t length = trial.q.size(2);
               std::vector<std::pair<std::int64_t, std::int64_t>> chunks;
               for (std::int64_t begin = 0, size = 1; begin < length;
                    begin += size, size = size * 2 + 1)
                 chunks.emplace_back(begin, std::min(begin + size, length));
               for (std::int64_t i = length > 100 ? 250 : 0; i < length; ++i)  // decode
                 chunks.emplace_back(i, i + 1);
               for (const auto& [begin, end] : chunks)
                 for (const Trial& way : ways_to_continue(trial, begin, end)) {
                   SCOPED_TRACE(way.line);
                   const auto chunk = way.run(kernel);
                   if (!chunk && way.block_table && kernel.takes_few_options()) continue;
                   ASSERT_TRUE(chunk);
                   EXPECT_TRUE(same_bits(take(prefill.out, 2, range(begin, end)), chunk->out));
                   EXPECT_TRUE(same_bits(take(prefill.lse, 2, range(begin, end)), chunk->lse));
                   if (testing::Test::HasFailure()) return;
                 }
             });
}

}  // namespace
}  // namespace attend::test
