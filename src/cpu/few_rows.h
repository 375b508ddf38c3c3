// Few rows against many keys (decode), with keys in lanes.
//
//      keys, as they lie            turned in registers
//          x ..... x + n                j ..... j + n
//        +---------------+            +---------------+
//      j | ------------- |          x | ============= | * q[x]        all of it is added to the
//        | ------------- |    ->      | ============= | * q[x + 1]    scores of keys j to j + n:
//  j + n | ------------- |      x + n | ============= | * q[x + n]    s[row][key]
//        +---------------+            +---------------+
//
// With rows in lanes, as in scores.h, one row leaves most of a vector idle, and memory waits for
// the arithmetic: 128 multiply-adds for a key of 128 features and a vector of weights for each key,
// where here 8 vectors of keys are turned, and a vector of weights serves 16 keys (AVX-512). The
// sums are the same ascending chains, so a row's bits do not depend on how many stand beside it.
//
// Memory is asked for in the order in which it is read, kAhead keys before: keys, then the values,
// then the next keys (those by products by lane; elsewhere values are asked for 16 rows before, by
// the product). Values are read in short slices of whole rows: the nearer to the order of memory,
// the better. Measured: docs/decisions/012-keys-in-lanes.md.
#pragma once

#include "cpu/sums.h"

namespace attend {
namespace {

template <class V>
class FewRows {
  using Operand = OperandOf<V>;
  using Sum = SumOf<V>;
  static constexpr int kSlice = TilesOf<V>::kFewSlice;
  static constexpr std::int64_t kAhead = TilesOf<V>::kFewAhead;

 public:
  static constexpr int kMost = TilesOf<V>::kFewRows;
  static_assert((kMost & (kMost - 1)) == 0 && kMost <= Tile<V>::kMost);

  // q: memory of [kMost][d]; s: of [kMost][256].
  FewRows(const ForwardScores<V>& scores, const Chunk<V>& chunk, Sum* q, Sum* s)
      : p(scores.p), scores_(scores), chunk_(chunk), q_(q), s_(s) {}

  // Rows that see all of many keys, with nothing added to their scores.
  bool takes(const Tile<V>& tile, const KeySpans& spans) const noexcept {
    const KeySpan& span = spans.span[0];
    // NOLINTNEXTLINE(misc-redundant-expression): of some instruction sets they are the same
    if (tile.rows > kMost || tile.rows == Tile<V>::kMost || spans.size != 1 || !spans.same_blocks ||
        !scores_.mask.plain || span.count < ForwardScores<V>::kStreamed || p.drop_below != 0 ||
        p.d % V::kLanes != 0)
      return false;
    for (int n = 0; n < tile.rows; ++n)
      if (tile.keys[n].begin > span.key || tile.keys[n].end < span.key + span.count) return false;
    return true;
  }

  // The maximum, sum and O of their chunk.
  void weigh(const Tile<V>& tile, const KeySpan& span, const Place<Sum>& to, Sum* top,
             Sum* sum) noexcept {
    keys_ = span.count;
    k_ = chunk_.k + (span.key - chunk_.from) * chunk_.k_stride;
    v_ = chunk_.v + (span.key - chunk_.from) * chunk_.v_stride;
    for (int n = 0; n < rounded(tile.rows); ++n)  // behind them the last one again
      for (std::int64_t x = 0; x < p.d; ++x) q_[n * p.d + x] = tile.q[x * tile.lanes + n];
    scores<1>(tile.rows);
    for (int n = 0; n < tile.lanes; ++n) top[n] = sum[n] = 0;
    for (int n = 0; n < tile.rows; ++n) weights(s_ + n * kChunk, top[n], sum[n]);
    values(tile.rows, to, sum);
  }

 private:
  // What will be read kAhead keys after key j, or after its value.
  Lines<Operand> after_key(std::int64_t j) const noexcept {
    j += kAhead;
    return j < keys_ ? Lines<Operand>(k_ + j * chunk_.k_stride, chunk_.k_stride, p.d)
                     : Lines<Operand>(v_ + (j - keys_) * chunk_.v_stride, chunk_.v_stride, p.dv);
  }
  Lines<Operand> after_value(std::int64_t j) const noexcept {
    j += kAhead;
    return j < keys_ ? Lines<Operand>(v_ + j * chunk_.v_stride, chunk_.v_stride, p.dv)
                     : Lines<Operand>(k_ + j * chunk_.k_stride, chunk_.k_stride, p.d);
  }

  static int rounded(int rows) noexcept {  // to a power of two
    int to = 1;
    while (to < rows) to *= 2;
    return to;
  }

  // Of kRows rows or, if there are more, of twice as many. One chain of sums alone would wait for
  // itself. The last keys overlap those before.
  template <int kRows>
  void scores(int rows) const noexcept {
    if constexpr (kRows < kMost) {
      if (rows > kRows) return scores<kRows * 2>(rows);
    }
    constexpr int kGroups = kRows > 2 ? 1 : 2;
    constexpr std::int64_t kEach = kGroups * V::kLanes;
    for (std::int64_t j = 0; j < keys_; j += kEach)
      some_scores<kRows, kGroups>(j + kEach <= keys_ ? j : keys_ - kEach, after_key(j));
  }

  template <int kRows, int kGroups>
  [[gnu::noinline]] void some_scores(std::int64_t first, Lines<Operand> soon) const noexcept {
    constexpr int kLines = V::kLanes * V::kLanes * static_cast<int>(sizeof(Operand)) / 64;
    const std::int64_t stride = chunk_.k_stride, d = p.d;
    const Operand* k = k_ + first * stride;
    const Sum* q = q_;
    ATTEND_PATH_OF(V, "scores of few rows", kRows);
    for (std::int64_t from = 0; from < d; from += scores_.chain) {
      const std::int64_t to = d - from < scores_.chain ? d : from + scores_.chain;
      V sum[kGroups][kRows];
      unrolled<kGroups>(
          ATTEND_EACH(g) { unrolled<kRows>(ATTEND_EACH(r) { sum[g][r] = V::set(0); }); });
      for (std::int64_t x = from; x < to; x += V::kLanes) {
        unrolled<kGroups>(ATTEND_EACH(g) {
          for (int n = 0; n < (kLines > 0 ? kLines : 1); ++n) soon.prefetch_next();
          V keys[V::kLanes];
          load_transposed(k + g * V::kLanes * stride + x, stride, keys);
          unrolled<kRows>(
              ATTEND_EACH(r) { add_products_of_lanes(q + r * d + x, keys, sum[g][r]); });
        });
      }
      ATTEND_PATH_IF(from > 0, V, "few rows, several chains of features");
      const V scale = V::set(to < d ? 1 : scores_.scale);
      unrolled<kGroups>(ATTEND_EACH(g) {
        unrolled<kRows>(ATTEND_EACH(r) {
          Sum* const s = s_ + r * kChunk + first + g * V::kLanes;
          if (from > 0) sum[g][r] = sum[g][r] + V::load(s);
          (sum[g][r] * scale).store(s);
        });
      });
    }
  }

  // A row of scores becomes exp(s - top). Their sum is one ascending chain, as it is in lanes.
  void weights(Sum* s, Sum& top, Sum& sum) const noexcept {
    constexpr Sum kHidden = ForwardScores<V>::kHidden;
    for (std::int64_t j = keys_; j % V::kLanes != 0; ++j) s[j] = kHidden;
    V most = V::set(kHidden);
    for (std::int64_t j = 0; j < keys_; j += V::kLanes) most = larger(V::load(s + j), most);
    Sum lanes[V::kLanes];
    most.store(lanes);
    top = lanes[0];
    for (int n = 1; n < V::kLanes; ++n) top = lanes[n] <= top ? top : lanes[n];
    const V base = V::set(top == kHidden ? 0 : top), log2e = V::set(Exp2<Sum>::kLog2E);
    for (std::int64_t j = 0; j < keys_; j += V::kLanes)
      exp2_of((V::load(s + j) - base) * log2e).store(s + j);
    sum = 0;
    for (std::int64_t j = 0; j < keys_; ++j) sum += s[j];
  }

  void values(int rows, const Place<Sum>& to, const Sum* sum) const noexcept {
    Divisors<V, Tile<V>::kMost> divisors;  // whole vectors of few rows
    if (to.final) divisors.set(sum, static_cast<int>(ForwardScores<V>::width(rows)));
    for (std::int64_t j = 0; j < keys_; j += kSlice) {
      Lines<Operand> soon = after_value(j);
      const Operands<V> x{.a = as_they_lie<V>(s_ + j),
                          .a_stride = kChunk,
                          .b = v_ + j * chunk_.v_stride,
                          .b_stride = chunk_.v_stride,
                          .c = to.o,
                          .c_stride = to.stride,
                          .depth = keys_ - j < kSlice ? keys_ - j : kSlice,
                          .start = j == 0 ? Start::zero : Start::c,
                          .soon = &soon};
      const bool end = to.final && j + kSlice >= keys_;
      const StoreDivided<decltype(divisors), V, kChunk> store{x.a, end ? &divisors : nullptr};
      product_of_features<V, Layout::along>(x, rows, Results<V>::width(p) / V::kLanes, store);
    }
  }

  const ForwardProblem& p;
  const ForwardScores<V>& scores_;
  const Chunk<V>& chunk_;
  Sum *q_, *s_;
  std::int64_t keys_ = 0;
  const Operand *k_ = nullptr, *v_ = nullptr;  // the first of them
};

}  // namespace
}  // namespace attend
