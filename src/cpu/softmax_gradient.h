// The softmax of a tile and a chunk for backward, and its reverse: what vectors do between the
// products of score_gradients.h, which draws the two bands that it works in.
//
//   weigh_keys          W = 2^(t - top), sums of w and of w dp       t the score in log2 units, top
//                                                                   the largest of the chunk
//   differentiate_keys  P = W 2^(top - m) / l,  dS = P (dP - delta + dlse)
//
// Marks in W: -inf is a hidden pair, other negative numbers are weights that dropout dropped.
#pragma once

#include "cpu/exp2.h"
#include "cpu/key_spans.h"
#include "cpu/tile.h"

#include <cmath>

namespace attend {
namespace {

// exp(from - to), for from <= to; -inf is the state before the first key.
inline double exp_of_difference(double from, double to) noexcept {
  return from == to ? 1 : std::exp(from - to);
}

template <class V>
struct GradientTile : Tile<V> {
  static constexpr int kMost = Tile<V>::kMost;
  double m[kMost], l[kMost];
  double delta[kMost];    // delta - dlse; before all keys are weighed: sum of w dp
  SumOf<V> shift[kMost];  // the same, rounded
  OperandOf<V>* dout;     // [dv][lanes]
};

// Where the pairs of a tile and some keys stand in the bands.
template <class V>
struct TilePairs {
  SumOf<V>*w, *dp;      // scores, W, P; and dP, dS
  std::int64_t stride;  // from key to key
};

// 3 softmax: w = exp(s - top), and the sums of w and of w dp. factors: of dropout, [key][lane], or
// null.
template <class V, int kVectors>
void weigh_keys(const TilePairs<V>& pairs, const KeySpans& spans, bool marks,
                const SumOf<V>* factors, const SumOf<V>* top, SumOf<V>* sum,
                SumOf<V>* dot) noexcept {
  using Sum = SumOf<V>;
  Sum *const w = pairs.w, *const dp = pairs.dp;
  const V log2e = V::set(Exp2<Sum>::kLog2E), zero = V::set(0);
  const V least = V::set(std::numeric_limits<Sum>::lowest());
  const bool drops = factors != nullptr;
  V base[kVectors], total[kVectors], dot_total[kVectors];
  unrolled<kVectors>(ATTEND_EACH(n) {
    const V most = V::load(top + n * V::kLanes);
    base[n] = select(less(most, least), zero, most);  // nothing visible: any number does
    total[n] = dot_total[n] = zero;
  });
  // Sums of sixteen keys first, at multiples of sixteen: the shorter chains round less.
  V sum_16[kVectors], dot_16[kVectors];
  unrolled<kVectors>(ATTEND_EACH(n) { sum_16[n] = dot_16[n] = zero; });
  const auto close = ATTEND_EACH(n) {
    total[n] = total[n] + sum_16[n];
    dot_total[n] = dot_total[n] + dot_16[n];
    sum_16[n] = dot_16[n] = zero;
  };
  std::int64_t sixteen = 0;
  for (int r = 0; r < spans.size; ++r) {
    const KeySpan& span = spans.span[r];
    for (int from = span.at, to; from < span.at + span.count; from = to) {
      const std::int64_t key = span.key + from - span.at;
      const auto left = static_cast<int>(16 - key % 16);
      to = span.at + span.count - from < left ? span.at + span.count : from + left;
      if (key / 16 != sixteen) unrolled<kVectors>(close);
      sixteen = key / 16;
      if constexpr (kMatrix<V>) Matrix<V>::keep_awake();
      if (!marks && !drops) {
        for (int j = from; j < to; ++j) {
          unrolled<kVectors>(ATTEND_EACH(n) {
            const std::int64_t at = j * pairs.stride + n * V::kLanes;
            const V weight = exp2_of((V::load(w + at) - base[n]) * log2e);
            sum_16[n] = sum_16[n] + weight;
            dot_16[n] = fma(weight, V::load(dp + at), dot_16[n]);
            weight.store(w + at);
          });
        }
      } else {
        for (int j = from; j < to; ++j) {
          unrolled<kVectors>(ATTEND_EACH(n) {
            const std::int64_t at = j * pairs.stride + n * V::kLanes;
            const V u = V::load(w + at);
            const auto hidden = less(u, least);
            const V t = (u - base[n]) * log2e;
            const V weight = select(hidden, zero, drops ? exp2_gradual(t) : exp2_of(t));
            V d = select(hidden, zero, V::load(dp + at)), mark = weight;
            if (drops) {
              const V keep = V::load(factors + (j * kVectors + n) * V::kLanes);
              d = d * keep;
              mark = select(less(zero, keep), weight, zero - weight);
            }
            sum_16[n] = sum_16[n] + weight;
            dot_16[n] = fma(weight, d, dot_16[n]);
            d.store(dp + at);
            select(hidden, u, mark).store(w + at);
          });
        }
      }
    }
  }
  unrolled<kVectors>(close);
  unrolled<kVectors>(ATTEND_EACH(n) {
    total[n].store(sum + n * V::kLanes);
    dot_total[n].store(dot + n * V::kLanes);
  });
}

// exp(top of the chunk - m) / l of every row.
template <class V>
void weight_factors(const GradientTile<V>& tile, const SumOf<V>* top, SumOf<V>* factors) noexcept {
  for (int n = 0; n < tile.lanes; ++n) {
    const double chunk_top = static_cast<double>(top[n]);
    factors[n] = static_cast<SumOf<V>>(
        tile.l[n] == 0 ? 0 : exp_of_difference(chunk_top, tile.m[n]) / tile.l[n]);
  }
}

// 3 reversed, of `count` keys: ds = p (dp - delta + dlse), p = w times the factor of its row.
// plain: no pair is hidden or dropped. What is hidden becomes 0, in P -inf if `marks`; `kept` is
// the factor of what dropout left.
template <class V, int kVectors>
void differentiate_keys(const GradientTile<V>& tile, const TilePairs<V>& pairs, int count,
                        const SumOf<V>* factors, bool plain, bool marks, SumOf<V> kept) noexcept {
  using Sum = SumOf<V>;
  Sum *const w = pairs.w, *const dp = pairs.dp;
  V factor[kVectors], shift[kVectors];
  unrolled<kVectors>(ATTEND_EACH(n) {
    factor[n] = V::load(factors + n * V::kLanes);
    shift[n] = V::load(tile.shift + n * V::kLanes);
  });
  if (plain) {
    for (int j = 0; j < count; ++j) {
      if constexpr (kMatrix<V>)
        if (j % 32 == 0) Matrix<V>::keep_awake();
      unrolled<kVectors>(ATTEND_EACH(n) {
        const std::int64_t at = j * pairs.stride + n * V::kLanes;
        const V weight = V::load(w + at) * factor[n];
        (weight * (V::load(dp + at) - shift[n])).store(dp + at);
        weight.store(w + at);
      });
    }
    return;
  }
  const V zero = V::set(0), least = V::set(std::numeric_limits<Sum>::lowest());
  const V outside = marks ? V::set(kHiddenScore<V>) : zero;
  const V keep = V::set(kept);
  for (int j = 0; j < count; ++j) {
    unrolled<kVectors>(ATTEND_EACH(n) {
      const std::int64_t at = j * pairs.stride + n * V::kLanes;
      const V marked = V::load(w + at);
      const auto hidden = less(marked, least), dropped = less(marked, zero);
      const V weight = select(dropped, zero - marked, marked) * factor[n];
      select(hidden, zero, weight * (V::load(dp + at) - shift[n])).store(dp + at);
      // What dropout dropped is 0 times its weight: NaN in a row of NaN.
      select(hidden, outside, weight * select(dropped, zero, keep)).store(w + at);
    });
  }
}

}  // namespace
}  // namespace attend
