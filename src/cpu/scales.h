// Scales of keys and values (k_scales, v_scales). A row is multiplied by its scale as a whole, so
// the scale need not touch the row:
//
//   s = (q . k) * k_scale        one multiplication with each score, beside d multiply-adds
//   o = sum of (p * v_scale) v   one with each weight, after their sum has been taken
//
// Whole numbers of 8 bits are exact in any operand: what is rounded is one product with each sum,
// not one with each element. The cost is the same for every d; decode stays bound by memory.
//
// A scale that is NaN or infinite multiplies the row itself, and is 1 from then on: 0 times an
// infinity is NaN in the row's own places alone, and a weight of 0 stays 0, so that what is hidden
// stays so. So does a scale that weights of a matrix instruction, which have no more range than
// their operands, could not be multiplied with: by what the key's own scale is, and nothing else.
#pragma once

#include "core/call.h"
#include "core/operation.h"
#include "core/sequence.h"
#include "cpu/chunk.h"
#include "cpu/elements.h"
#include "cpu/key_spans.h"
#include "cpu/tile.h"

#include <bit>

namespace attend {
namespace {

// Whether a row takes its scale itself: one that is not finite and, of a value that a matrix
// instruction multiplies, one outside of 2^-100 to 2^127 that is not 0. Times any other one,
// weights from 2^-26 to 1, rounded to bf16, are still normal numbers of it. By its bits: a loop of
// it has no branch.
template <class V>
ATTEND_INLINE bool row_takes(float scale, bool of_value) noexcept {
  const bool bounded = kMatrix<V> && of_value;
  const std::uint32_t size = std::bit_cast<std::uint32_t>(scale) & 0x7FFFFFFF;
  const std::uint32_t least = bounded ? 0x0D800000 : 0, most = bounded ? 0x7F000000 : 0x7F7FFFFF;
  return (size != 0) & (size - least > most - least);
}

// The scales of the keys [from, to), and 0 up to `all` of them. Gives whether a row takes its own.
template <class V, class Operation>
bool load_scales(const KeyHead<Operation>& head, const Strided& t, std::int64_t from,
                 std::int64_t to, std::int64_t all, bool of_values, SumOf<V>* scales) noexcept {
  const auto* data = reinterpret_cast<const float*>(t.data);
  const auto row = [&](std::int64_t j) {
    return key_row(head.p, head.call, t, head.sequence, head.kv_head, j);
  };
  const std::int64_t count = to - from;
  unsigned takes = 0;
  const auto take = [&](float scale, std::int64_t n) __attribute__((always_inline)) {
    scales[n] = static_cast<SumOf<V>>(scale);
    takes |= row_takes<V>(scale, of_values) ? 1U : 0U;
  };
  if (head.p.keys != KeyAddressing::paged && t.stride[2] == 1 && count > 0) {
    const float* const first = data + row(from);
    for (std::int64_t n = 0; n < count; ++n) take(first[n], n);
  } else {
    for (std::int64_t n = 0; n < count; ++n) take(data[row(from + n)], n);
  }
  for (std::int64_t n = count; n < all; ++n) scales[n] = 0;
  return takes != 0;
}

// Those of a chunk's keys and of its values, if there are any.
template <class V, class Operation>
void bring_scales(const KeyHead<Operation>& head, Chunk<V>& chunk, bool values) noexcept {
  if constexpr (std::is_same_v<Operation, Forward>) {
    constexpr std::int64_t kGroup = kKeyGroup<V>;
    const std::int64_t all = (chunk.to - chunk.from + kGroup - 1) / kGroup * kGroup;
    if (head.p.k_scales) {
      chunk.k_scales = chunk.scales_of_k;
      chunk.k_takes = load_scales<V>(head, head.call.k_scales, chunk.from, chunk.to, all, false,
                                     chunk.scales_of_k);
    }
    if (values && head.p.v_scales) {
      chunk.v_scales = chunk.scales_of_v;
      chunk.v_takes = load_scales<V>(head, head.call.v_scales, chunk.from, chunk.to, all, true,
                                     chunk.scales_of_v);
    }
  }
}

// Multiplies a row by its scale if it takes that; after the row has been brought.
template <class V, class E>
ATTEND_INLINE void take_scale(E* row, std::int64_t count, SumOf<V>& scale, bool of_value) noexcept {
  if (!row_takes<V>(static_cast<float>(scale), of_value)) return;
  for (std::int64_t x = 0; x < count; ++x)
    row[x] = static_cast<E>(widened(row[x]) * static_cast<double>(scale));
  scale = 1;
}

// The scales of the values as factors of weights, [key][lane], or times those that are there.
template <class V>
void scale_factors(const Tile<V>& tile, const KeySpans& spans, const Chunk<V>& chunk, bool there,
                   SumOf<V>* factors) noexcept {
  for (int r = 0; r < spans.size; ++r)
    for (int x = 0; x < spans.span[r].count; ++x) {
      const V by = V::set(chunk.v_scales[spans.span[r].key - chunk.from + x]);
      SumOf<V>* const row = factors + (spans.span[r].at + x) * tile.lanes;
      for (int n = 0; n < tile.lanes; n += V::kLanes)
        (there ? V::load(row + n) * by : by).store(row + n);
    }
}

// Prefetches the row of 8 bits that is a chunk (256 keys) after this one: memory brings it while
// this chunk is converted. Inlined: g++ 12 takes a function that only prefetches for one without
// effects.
ATTEND_INLINE void ask_for_next_bytes(const Problem& p, const Strided& t, std::int64_t at,
                                      std::int64_t count) noexcept {
  if (t.type != DType::i8 || p.keys == KeyAddressing::paged) return;
  const std::byte* row = t.data + at + kChunk * t.stride[2];
  for (std::int64_t x = 0; x < count; x += 64) __builtin_prefetch(row + x, 0, 2);
}

}  // namespace
}  // namespace attend
