// Keys in groups, for a matrix instruction (Matrix<V>), which takes kKeyGroup<V> of them at once:
// rows of k or v as it loads them, their products with a tile of queries, and maxima.
//
//    chunk   |  group 0  |  group 1  | ... |  last, perhaps not a whole one: packed by itself
//
// Groups begin at multiples of their size, counted from key 0. What a group holds beside the keys
// that a row sees is hidden from it.
#pragma once

#include "cpu/chunk.h"
#include "cpu/key_spans.h"
#include "cpu/pack.h"
#include "cpu/scales.h"
#include "cpu/tile.h"

#include <cstring>

namespace attend {
namespace {

// Rows of keys or values of a chunk.
template <class V>
struct GroupedRows {
  const OperandOf<V>* at;
  std::int64_t stride;
  const OperandOf<V>* last;   // those of a last group that is not a whole one, `depth` apart
  std::int64_t count, depth;  // of rows, and of one in whole multiply-adds
  bool arranged = false;      // as Matrix<V>::keys() does
};

// s = rows . b of the group that begins with row `first`, for the features [from, to) of b, which
// is [depth][lanes], its lanes from `used` on repetitions. Sums are stored with the last of them.
template <class V>
ATTEND_INLINE void group_products(const GroupedRows<V>& rows, std::int64_t first,
                                  const OperandOf<V>* b, int used, int lanes, std::int64_t from,
                                  std::int64_t to, SumOf<V>* s, std::int64_t stride,
                                  std::int64_t vector_stride) noexcept {
  const bool whole = first + kKeyGroup<V> <= rows.count;
  const std::int64_t apart = whole ? rows.stride : rows.depth;
  Matrix<V>::scores(whole ? rows.at + first * rows.stride : rows.last,
                    Matrix<V>::kArrangesKeys && rows.arranged ? 0 : apart, b, used, lanes, from, to,
                    rows.depth, s, stride, vector_stride);
}

template <class V, class Operation>
class KeyGroups {
  using Operand = OperandOf<V>;
  using Sum = SumOf<V>;
  using Problem = typename Operation::Problem;
  using Call = typename Operation::Call;
  static constexpr int kGroup = kKeyGroup<V>;
  static constexpr bool kBackward = std::is_same_v<Operation, Backward>;
  // Rows of keys or values that are arranged together.
  static constexpr int kTogether = [] {
    if constexpr (kMatrix<V>) return Matrix<V>::kRowsTogether;
    else return 0;
  }();

 public:
  // `head`: read when there are keys to bring, and not before.
  KeyGroups(const KeyHead<Operation>& head, Scratch& scratch)
      : head_(head), p(head.p), call_(head.call),
        together_(scratch.take<Operand>(kTogether * (p.d > p.dv ? p.d : p.dv))) {}

  // The keys and values [from, to) of a chunk, in whole groups: what else a group holds comes too,
  // as far as there are keys. For few rows scales alone, where they can be left to scores and
  // weights.
  void bring(Chunk<V>& chunk, std::int64_t from, std::int64_t to, bool values, bool few) noexcept {
    chunk.from = from / kGroup * kGroup;
    const std::int64_t whole = (to + kGroup - 1) / kGroup * kGroup, there = head_.sequence.k_length;
    chunk.to = to > there ? to : whole < there ? whole : there;
    bring_scales(head_, chunk, values);
    chunk.waits = few && !chunk.k_takes && !chunk.v_takes;
    if (chunk.waits) return;
    if (kBackward && !values)
      return bring_pairs(call_.k, p.d, chunk, chunk.packed_k, chunk.taken_by_k());
    if constexpr (Matrix<V>::kArrangesKeys) return arrange(chunk, values);
    chunk.k_last = bring_rows(call_.k, p.d, chunk, chunk.packed_k, chunk.k, chunk.k_stride,
                              chunk.taken_by_k());
    if (kBackward)
      chunk.v_last = bring_rows(call_.v, p.dv, chunk, chunk.packed_v, chunk.v, chunk.v_stride,
                                chunk.taken_by_v());
    else if (values)
      bring_pairs(call_.v, p.dv, chunk, chunk.packed_v, chunk.taken_by_v(),
                  chunk.k != chunk.packed_k);
  }

  GroupedRows<V> keys(const Chunk<V>& chunk) const noexcept {
    return {
        chunk.k,         chunk.k_stride, chunk.k_last, chunk.to - chunk.from, whole_depth<V>(p.d),
        chunk.arranged_k};
  }
  GroupedRows<V> values(const Chunk<V>& chunk) const noexcept {
    return {
        chunk.v,         chunk.v_stride, chunk.v_last, chunk.to - chunk.from, whole_depth<V>(p.dv),
        chunk.arranged_v};
  }

  // Sums of one group of keys, from `first` of the chunk on; in two halves (0 and 1), between which
  // the unit has time for others.
  void scores(const Tile<V>& tile, const Chunk<V>& chunk, std::int64_t first, int half,
              Sum* s) const noexcept {
    const GroupedRows<V> k = keys(chunk);
    const std::int64_t middle = k.depth / TilesOf<V>::kDepth / 2 * TilesOf<V>::kDepth;
    group_products(k, first, tile.q, tile.rows, tile.lanes, half == 0 ? 0 : middle,
                   half == 0 ? middle : k.depth, s, tile.stride, tile.vector_stride);
  }

  // They become scores, times `by`, and each key's times its scale, if there are any; top the
  // largest so far.
  static void finish(const Tile<V>& tile, Sum* s, Sum* top, Sum by, const Sum* scales,
                     int keys = kGroup) noexcept {
    constexpr int kChains = 4;
    const V factor = V::set(by);
    for (int n = 0; n < tile.lanes; n += V::kLanes) {
      V most[kChains];
      unrolled<kChains>(ATTEND_EACH(c) { most[c] = V::set(kHiddenScore<V>); });
      most[0] = V::load(top + n);
      for (int j = 0; j < keys; j += kChains)
        unrolled<kChains>(ATTEND_EACH(c) {
          Sum* const at = s + (j + c) * tile.stride + tile.column(n);
          V u = V::load(at);
          if (by != 1) (u = u * factor).store(at);
          if (scales != nullptr) (u = u * V::set(scales[j + c])).store(at);
          most[c] = larger(u, most[c]);
        });
      larger(larger(most[3], most[2]), larger(most[1], most[0])).store(top + n);
    }
  }

  // Both, for a span of keys.
  void products(const Tile<V>& tile, const Chunk<V>& chunk, const KeySpan& span, Sum scale, Sum* s,
                Sum* top) const noexcept {
    for (std::int64_t j = 0; j < span.count; j += kGroup) {
      Sum* const to = s + (span.at + j) * tile.stride;
      scores(tile, chunk, span.key - chunk.from + j, 0, to);
      scores(tile, chunk, span.key - chunk.from + j, 1, to);
      const bool all = std::is_same_v<Operation, Forward> || j + kGroup <= span.count;
      finish(tile, to, top, scale, chunk.scales_from(span.key - chunk.from + j),
             all ? kGroup : static_cast<int>(span.count - j));
    }
  }

 private:
  // What more than one tile, or more than one vector of rows, reads is arranged.
  void arrange(Chunk<V>& chunk, bool values) noexcept {
    const std::int64_t rows = head_.rows();
    chunk.arranged_k = kBackward || rows > Tile<V>::kRoom;
    chunk.k_last = chunk.arranged_k ? arrange_rows(call_.k, p.d, chunk, chunk.packed_k, chunk.k,
                                                   chunk.k_stride, chunk.taken_by_k())
                                    : bring_rows(call_.k, p.d, chunk, chunk.packed_k, chunk.k,
                                                 chunk.k_stride, chunk.taken_by_k());
    if (kBackward)
      chunk.v_last = arrange_rows(call_.v, p.dv, chunk, chunk.packed_v, chunk.v, chunk.v_stride,
                                  chunk.taken_by_v());
    if (kBackward) return;
    if (!values) return;
    chunk.arranged_v = rows > V::kLanes;
    if (chunk.arranged_v) bring_pairs(call_.v, p.dv, chunk, chunk.packed_v, chunk.taken_by_v());
    else
      chunk.v_last = bring_rows(call_.v, p.dv, chunk, chunk.packed_v, chunk.v, chunk.v_stride,
                                chunk.taken_by_v());
  }

  // Groups of rows as Matrix<V>::keys() has them; gives the last, if it is not a whole one.
  const Operand* arrange_rows(const Strided& t, std::int64_t count, const Chunk<V>& chunk,
                              Operand* packed, const Operand*& at, std::int64_t& stride,
                              Sum* scales) const noexcept {
    const std::int64_t depth = whole_depth<V>(count);
    each_group(t, count, chunk, scales, [&](auto row, std::int64_t first) {
      Matrix<V>::keys(row, count, packed + first * depth);
    });
    at = packed;
    stride = depth;
    return packed + (chunk.to - chunk.from) / kGroup * kGroup * depth;
  }

  // Rows of whole depths, as they lie or packed; gives those of a last group that is not a whole
  // one. Behind its keys lies anything: it is hidden.
  const Operand* bring_rows(const Strided& t, std::int64_t count, const Chunk<V>& chunk,
                            Operand* packed, const Operand*& at, std::int64_t& stride,
                            Sum* scales) const noexcept {
    const std::int64_t depth = whole_depth<V>(count);
    const std::int64_t keys = chunk.to - chunk.from, last = keys / kGroup * kGroup;
    const bool ready = is_contiguous_row<Operand>(t) && p.keys != KeyAddressing::paged &&
                       count == depth && scales == nullptr;
    stride = ready ? t.stride[2] : depth;
    at = packed;
    if (ready)
      at = reinterpret_cast<const Operand*>(t.data) +
           key_row(p, call_, t, head_.sequence, head_.kv_head, chunk.from);
    for (std::int64_t j = ready ? last : 0; j < keys; ++j) {
      Operand* row = packed + j * depth;
      const std::int64_t from = key_row(p, call_, t, head_.sequence, head_.kv_head, chunk.from + j);
      ask_for_next_bytes(p, t, from, count);
      bring_row(t, from, count, row);
      for (std::int64_t x = count; x < depth; ++x) row[x] = Operand{};
      if (scales != nullptr) take(row, count, chunk, scales, j);
    }
    return packed + last * depth;
  }

  // The row of key j takes its scale, if that cannot multiply its scores, or its weights.
  static void take(Operand* row, std::int64_t count, const Chunk<V>& chunk, Sum* scales,
                   std::int64_t j) noexcept {
    take_scale<V>(row, count, scales[j], scales == chunk.scales_of_v);
  }

  // Groups of keys in pairs. Meanwhile rows of k may be asked for, which come next.
  void bring_pairs(const Strided& t, std::int64_t count, const Chunk<V>& chunk, Operand* to,
                   Sum* scales, bool asks = false) const noexcept {
    each_group(t, count, chunk, scales, [&](auto row, std::int64_t first) {
      if (asks)
        ask_for(chunk.k + first * chunk.k_stride, chunk.k_stride, chunk.to - chunk.from - first);
      Matrix<V>::values(row, count, to + Matrix<V>::values_at(first, whole_vectors<V>(count)));
    });
  }

  // use(row, first): row(key of the group) is one, or null behind the last; `first` is the
  // group's first key in the chunk.
  template <class Use>
  void each_group(const Strided& t, std::int64_t count, const Chunk<V>& chunk, Sum* scales,
                  Use use) const noexcept {
    const bool side_by_side = is_contiguous_row<Operand>(t) && scales == nullptr;
    for (std::int64_t j = chunk.from; j < chunk.to; j += kGroup)
      use(
          [&](int key) -> const Operand* {
            if (j + key >= chunk.to) return nullptr;
            const std::int64_t at = key_row(p, call_, t, head_.sequence, head_.kv_head, j + key);
            if (side_by_side) return reinterpret_cast<const Operand*>(t.data) + at;
            Operand* row = together_ + key % kTogether * count;
            ask_for_next_bytes(p, t, at, count);
            bring_row(t, at, count, row);
            if (scales != nullptr) take(row, count, chunk, scales, j + key - chunk.from);
            return row;
          },
          j - chunk.from);
  }

  // The keys of a group, which are read next, and not in the order in which they lie. Inlined, as
  // ask_for_next_bytes() is.
  ATTEND_INLINE void ask_for(const Operand* k, std::int64_t stride,
                             std::int64_t keys) const noexcept {
    constexpr std::int64_t kLine = 64 / sizeof(Operand);
    for (std::int64_t j = 0; j < kGroup && j < keys; ++j)
      for (std::int64_t x = 0; x < p.d; x += kLine) __builtin_prefetch(k + j * stride + x, 0, 2);
  }

  // Of the operands' own type, or whole numbers.
  static void bring_row(const Strided& t, std::int64_t at, std::int64_t count,
                        Operand* row) noexcept {
    if (t.type == DType::i8) {
      const auto* numbers = reinterpret_cast<const std::int8_t*>(t.data) + at;
      return t.stride[3] == 1 ? Matrix<V>::elements(numbers, count, row)
                              : convert_elements<V>(numbers, t.stride[3], count, row);
    }
    const Operand* from = reinterpret_cast<const Operand*>(t.data) + at;
    if (t.stride[3] == 1) std::memcpy(row, from, static_cast<std::size_t>(count) * sizeof(Operand));
    else
      for (std::int64_t x = 0; x < count; ++x) row[x] = from[x * t.stride[3]];
  }

  const KeyHead<Operation>& head_;
  const Problem& p;
  const Call& call_;
  Operand* together_;  // [kTogether][d or dv], rows that do not lie ready
};

}  // namespace
}  // namespace attend
