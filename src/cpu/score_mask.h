// Step 2, the mask: what is hidden from a row, and what is added to its scores.
//
// Where keys are hidden by position alone (causal, windows, lengths), the two ranges of keys that
// not every row of the tile sees are compared, vector by vector. Any other combination of options
// is written row by row, where it lies side by side in memory, turned into lanes and added.
#pragma once

#include "core/philox.h"
#include "cpu/exp2.h"
#include "cpu/key_spans.h"
#include "cpu/pack.h"
#include "cpu/tile.h"

namespace attend {
namespace {

template <class V, class Operation>
class ScoreMask {
  using Sum = SumOf<V>;
  using Problem = typename Operation::Problem;
  using Call = typename Operation::Call;
  static constexpr int kRoom = Tile<V>::kRoom;
  static constexpr Sum kHidden = kHiddenScore<V>, kLowest = std::numeric_limits<Sum>::lowest();

 public:
  const bool plain;  // nothing is added to a score

  // `head`: read when there is something to mask, and not before.
  ScoreMask(const KeyHead<Operation>& head, Scratch& scratch)
      : plain(head.p.softcap == 0 && !head.p.bias && !head.p.alibi && !head.p.mask), head_(head),
        p(head.p), call_(head.call), rows_(scratch.take<Sum>(kRoom * kChunk)),
        added_(scratch.take<Sum>(kRoom * kChunk)) {}

  // Hides scores, and adds to them. `top` becomes the largest of each lane again; gives whether
  // anything may be hidden. With a softcap, slopes[key][lane] becomes its derivative (0 where
  // hidden), if asked for.
  bool apply(const Tile<V>& tile, const KeySpans& spans, Sum* s, Sum* top,
             Sum* slopes = nullptr) noexcept {
    bool partial = false;
    if (!plain || !spans.same_blocks) {
      partial = true;
      add(tile, spans, s, slopes);
    } else {
      for (int r = 0; r < spans.size; ++r) partial |= hide(tile, spans.span[r], s);
    }
    if (partial) find_top(tile, s, spans.keys, top);
    return partial;
  }

  // Whether row n sees key j, which lies in one of its spans.
  bool sees(const Tile<V>& tile, int n, std::int64_t j) const noexcept {
    return j >= tile.keys[n].begin && j < tile.keys[n].end &&
           block_visible(p, call_, head_.sequence.b, tile.h[n], tile.i[n], j) &&
           !masked_out(p, call_, head_.sequence.b, tile.h[n], tile.i[n], j);
  }

  // Whether a row of the tile sees the block of key j; `same` is cleared if not all see the same.
  bool any_sees(const Tile<V>& tile, std::int64_t j, bool& same) const noexcept {
    int seen = 0;
    for (int n = 0; n < tile.rows; ++n)
      seen += block_visible(p, call_, head_.sequence.b, tile.h[n], tile.i[n], j) ? 1 : 0;
    if (seen != 0 && seen != tile.rows) same = false;
    return seen != 0;
  }

  // What dropout multiplies the weights with, [key][lane].
  void dropout(const Tile<V>& tile, const KeySpans& spans, Sum* factors) noexcept {
    const Sum* rows[kRoom];
    for (int n = 0; n < tile.rows; ++n) {
      Sum* row = rows_ + n * kChunk;
      rows[n] = row;
      for (int r = 0; r < spans.size; ++r)
        for (int x = 0; x < spans.span[r].count; ++x)
          row[spans.span[r].at + x] = static_cast<Sum>(dropout_factor(
              p, call_, head_.sequence.b, tile.h[n], tile.i[n], spans.span[r].key + x));
    }
    rows_to_lanes<V>(rows, tile.rows, spans.keys, factors, tile.lanes);
  }

 private:
  static void find_top(const Tile<V>& tile, const Sum* s, int count, Sum* top) noexcept {
    for (int n = 0; n < tile.lanes; n += V::kLanes) {
      V most = V::set(kHidden);
      for (int j = 0; j < count; ++j)
        most = larger(V::load(s + j * tile.stride + tile.column(n)), most);
      most.store(top + n);
    }
  }

  // Hides by position, with nothing else to do. Keys that every row sees are not touched.
  bool hide(const Tile<V>& tile, const KeySpan& span, Sum* s) const noexcept {
    int seen_from = within(span, tile.all.begin), seen_to = within(span, tile.all.end);
    if (seen_from == 0 && seen_to == span.count) return false;
    ATTEND_PATH(V, "hidden by position alone");
    Sum first[kRoom], last[kRoom];
    for (int n = 0; n < tile.rows; ++n) {
      first[n] = static_cast<Sum>(within(span, tile.keys[n].begin));
      last[n] = static_cast<Sum>(within(span, tile.keys[n].end));
    }
    for (int n = tile.rows; n < tile.lanes; ++n)
      first[n] = 0, last[n] = static_cast<Sum>(span.count);
    if (seen_to < seen_from) seen_from = seen_to = 0;
    hide_keys(tile, first, last, 0, seen_from, s + span.at * tile.stride);
    hide_keys(tile, first, last, seen_to, span.count, s + span.at * tile.stride);
    return true;
  }

  static int within(const KeySpan& span, std::int64_t j) noexcept {
    return j <= span.key               ? 0
           : j - span.key > span.count ? span.count
                                       : static_cast<int>(j - span.key);
  }

  static void hide_keys(const Tile<V>& tile, const Sum* first, const Sum* last, int from, int to,
                        Sum* s) noexcept {
    const V hidden = V::set(kHidden);
    for (int n = 0; n < tile.lanes; n += V::kLanes) {
      const V begin = V::load(first + n), end = V::load(last + n);
      for (int j = from; j < to; ++j) {
        const V key = V::set(static_cast<Sum>(j));
        Sum* const at = s + j * tile.stride + tile.column(n);
        const V u = V::load(at);
        select(less(key, begin), hidden, select(less(key, end), u, hidden)).store(at);
      }
    }
  }

  // Any combination of options: what is added to each score, or kHidden, is written row by row,
  // where it lies side by side, and turned into lanes.
  [[gnu::noinline]] void add(const Tile<V>& tile, const KeySpans& spans, Sum* s,
                             Sum* slopes) noexcept {
    ATTEND_PATH(V, "something added to scores");
    const Sum* rows[kRoom];
    for (int n = 0; n < tile.rows; ++n) {
      rows[n] = rows_ + n * kChunk;
      for (int r = 0; r < spans.size; ++r)
        added_to_row(tile, n, spans.span[r], rows_ + n * kChunk + spans.span[r].at);
    }
    rows_to_lanes<V>(rows, tile.rows, spans.keys, added_, tile.lanes);

    const V cap = V::set(static_cast<Sum>(p.softcap));
    const V inverse = V::set(static_cast<Sum>(p.softcap == 0 ? 0 : 1 / p.softcap));
    const V hidden = V::set(kHidden), lowest = V::set(std::numeric_limits<Sum>::lowest());
    for (int j = 0; j < spans.keys; ++j) {
      for (int n = 0; n < tile.lanes; n += V::kLanes) {
        const V a = V::load(added_ + j * tile.lanes + n);
        const std::int64_t x = j * tile.stride + tile.column(n);
        V u = V::load(s + x);
        V before = u;  // the score before the bias
        if (p.bias_before_softcap) u = u + a;
        if (p.softcap != 0) {
          const V t = tanh_of(u * inverse);
          u = cap * t;
          if (slopes != nullptr)
            select(less(a, lowest), V::set(0), V::set(1) - t * t).store(slopes + x);
        }
        if (!p.bias_before_softcap) before = u, u = u + a;
        u = select(less(before, lowest), u, larger(lowest, u));  // finite stays finite
        select(less(a, lowest), hidden, u).store(s + x);
      }
    }
  }

  void added_to_row(const Tile<V>& tile, int n, const KeySpan& span, Sum* row) const noexcept {
    const std::int64_t b = head_.sequence.b, h = tile.h[n], i = tile.i[n];
    const int from = within(span, tile.keys[n].begin), to = within(span, tile.keys[n].end);
    for (int x = 0; x < span.count; ++x) row[x] = 0;
    if (p.alibi) {
      const Sum slope = static_cast<Sum>(load(call_.alibi, call_.alibi.offset(0, h, 0)));
      const std::int64_t position = i + head_.sequence.offset;
      // Finite stays finite. A slope of infinity hides, unless a softcap makes it finite again.
      const bool capped = p.bias_before_softcap && p.softcap != 0;
      const Sum least = slope == -kHidden && !capped ? kHidden : kLowest;
      for (int x = from; x < to; ++x) {
        const std::int64_t distance = position - (span.key + x);
        const Sum value = -slope * static_cast<Sum>(distance < 0 ? -distance : distance);
        row[x] = value < least ? least : value;
      }
    }
    if (p.bias) add_bias(call_.bias.offset(b, h, i, span.key), from, to, row);
    if (p.mask) apply_mask(call_.mask.offset(b, h, i, span.key), from, to, row);
    for (int x = 0; x < from; ++x) row[x] = kHidden;
    for (int x = to; x < span.count; ++x) row[x] = kHidden;
    if (p.blocks) {
      for (int x = from; x < to; ++x)
        if (!block_visible(p, call_, b, h, i, span.key + x)) row[x] = kHidden;
    }
  }

  // -inf stays -inf whatever ALiBi says.
  void add_bias(std::int64_t offset, int from, int to, Sum* row) const noexcept {
    Sum bias[kChunk];
    convert_row<V>(call_.bias, offset + from * call_.bias.stride[3], to - from, bias);
    for (int x = from; x < to; ++x) {
      const Sum value = bias[x - from];
      const bool overflows = p.alibi && row[x] + value < kLowest && row[x] != kHidden;
      row[x] = value == kHidden ? kHidden : overflows ? kLowest : row[x] + value;
    }
  }

  void apply_mask(std::int64_t offset, int from, int to, Sum* row) const noexcept {
    const std::int64_t stride = call_.mask.stride[3];
    if (call_.mask.type == DType::i64 || call_.mask.type == DType::i32) {
      for (int x = from; x < to; ++x)
        if (load_integer(call_.mask, offset + x * stride) == 0) row[x] = kHidden;
    } else {
      const auto* mask = reinterpret_cast<const std::uint8_t*>(call_.mask.data) + offset;
      for (int x = from; x < to; ++x) row[x] = mask[x * stride] == 0 ? kHidden : row[x];
    }
  }

  const KeyHead<Operation>& head_;
  const Problem& p;
  const Call& call_;
  Sum *rows_, *added_;  // [lanes][256] and [256][lanes]
};

// Whether the scores of the tile's first row and of the first key are finite. Then q and k are,
// and a score is -inf only if q . k overflows: its key weighs 0, but is not hidden.
template <class V>
bool edges_finite(const Tile<V>& tile, const SumOf<V>* s, int keys) noexcept {
  V check[4];  // of numbers times 0: 0, or NaN
  unrolled<4>(ATTEND_EACH(n) { check[n] = V::set(0); });
  for (int n = 0; n < tile.lanes; n += V::kLanes)
    check[0] = fma(V::load(s + tile.column(n)), V::set(0), check[0]);
  int j = 0;
  for (; j + 4 <= keys; j += 4)
    unrolled<4>(ATTEND_EACH(n) {
      check[n] = fma(V::load(s + (j + n) * tile.stride), V::set(0), check[n]);
    });
  for (; j < keys; ++j) check[0] = fma(V::load(s + j * tile.stride), V::set(0), check[0]);
  return all_finite((check[0] + check[1]) + (check[2] + check[3]));
}

}  // namespace
}  // namespace attend
