// Which keys of a chunk a tile has to look at: spans of consecutive keys, several where blocks hide
// those in between. Scores of all spans lie one behind the other in S^T.
//
//    keys of the chunk    0         64        128       192       256
//                         |  span 0 |  hidden |       span 1      |
//    rows of S^T          0 ......... 63        64 ........... 191
//
// For a matrix instruction spans are made of whole groups of keys (tiles.h).
#pragma once

#include "core/softmax_state.h"
#include "cpu/tiles.h"

namespace attend {
namespace {

struct KeySpan {
  std::int64_t key;
  int at, count;  // where in S^T, and how many
};
struct KeySpans {
  KeySpan span[kChunk / 2 + 1];
  int size = 0, keys = 0;   // how many spans, and keys in all of them
  bool same_blocks = true;  // every row sees the same blocks
};

// Takes `count` keys from j on into the spans.
template <class V>
void append(KeySpans& spans, std::int64_t j, int count) noexcept {
  KeySpan* last = spans.span + spans.size - 1;
  ATTEND_PATH_IF(spans.size > 0 && last->key + last->count != j, V, "several spans of keys");
  if (spans.size > 0 && last->key + last->count == j) last->count += count;
  else spans.span[spans.size++] = {j, spans.keys, count};
  spans.keys += count;
}

// Groups of which some row sees some key.
template <class V, class Problem, class AnySees>
void find_groups(const Problem& p, std::int64_t from, std::int64_t to, AnySees any_sees,
                 KeySpans& spans) noexcept {
  constexpr int kGroup = kKeyGroup<V>;
  for (std::int64_t group = from / kGroup * kGroup; group < to; group += kGroup) {
    const std::int64_t end = group + kGroup < to ? group + kGroup : to;
    bool seen = !p.blocks, same = true;
    for (std::int64_t j = group > from ? group : from; p.blocks && j < end;) {
      const bool sees = any_sees(j, same);
      seen |= sees;
      same &= sees;
      j += p.block_keys - j % p.block_keys;
    }
    if (!seen) continue;
    spans.same_blocks &= same;
    append<V>(spans, group, kGroup);
  }
}

// Of the keys [from, to). any_sees(j, same) says whether some row sees the block of key j, and
// clears `same` if not all rows see the same.
template <class V, class Problem, class AnySees>
void find_spans(const Problem& p, std::int64_t from, std::int64_t to, AnySees any_sees,
                KeySpans& spans) noexcept {
  spans.size = spans.keys = 0;
  spans.same_blocks = true;
  if constexpr (kMatrix<V>) return find_groups<V>(p, from, to, any_sees, spans);
  for (std::int64_t j = from; j < to;) {
    const std::int64_t left = p.blocks ? p.block_keys - j % p.block_keys : to - j;
    const int count = static_cast<int>(left < to - j ? left : to - j);
    if (!p.blocks || any_sees(j, spans.same_blocks)) append<V>(spans, j, count);
    j += count;
  }
}

}  // namespace
}  // namespace attend
