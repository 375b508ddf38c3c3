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
//
// Rows of 8 and 16 bits are read as they lie and converted in registers, keys where they are
// turned, values where they are multiplied: packed first, they would pass through a cache once
// more, and memory would wait while they do.
#pragma once

#include "cpu/sums.h"

namespace attend {
namespace {

template <class V>
class FewRows {
  using Operand = OperandOf<V>;
  using Sum = SumOf<V>;
  // Keys and values as they are read: operands, or numbers of 8 or 16 bits.
  template <class E>
  struct Rows {
    const E *k, *v;  // the first of them
    std::int64_t k_stride, v_stride;
  };
  // Keys before which memory is asked for them; shorter ones earlier.
  template <class E>
  static constexpr std::int64_t kAhead = TilesOf<V>::kFewAhead*(sizeof(E) < sizeof(Operand) ? 2
                                                                                            : 1);

 public:
  static constexpr int kSlice = TilesOf<V>::kFewSlice;
  static constexpr int kMost = TilesOf<V>::kFewRows;
  static_assert((kMost & (kMost - 1)) == 0 && kMost <= Tile<V>::kMost);

  // q: memory of [kMost][d]; s: of [kMost][256].
  FewRows(const ForwardScores<V>& scores, const Chunk<V>& chunk, Sum* q, Sum* s)
      : p(scores.p), scores_(scores), chunk_(chunk), q_(q), s_(s) {}

  // Whether rows need not be packed for few rows: both of one type, of 8 or 16 bits.
  static bool waits(const ForwardProblem& p) noexcept {
    const DType type = raw_type(p);
    return kMost > 0 && HasHalves<V, std::int8_t> && size_of(type) <= 2 &&
           type == (p.own_v_type ? p.v_type : p.type);
  }

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
    const std::int64_t first = span.key - chunk_.from;
    k_scales_ = chunk_.k_scales == nullptr ? nullptr : chunk_.k_scales + first;
    v_scales_ = chunk_.v_scales == nullptr ? nullptr : chunk_.v_scales + first;
    if constexpr (HasHalves<V, std::int8_t>) {
      const auto as_they_lie = [&]<class E>(E) {
        const auto* const k = reinterpret_cast<const E*>(chunk_.raw_k);
        const auto* const v = reinterpret_cast<const E*>(chunk_.raw_v);
        const Rows<E> rows{k + first * chunk_.raw_k_stride, v + first * chunk_.raw_v_stride,
                           chunk_.raw_k_stride, chunk_.raw_v_stride};
        ATTEND_PATH_OF(V, "few rows as they lie, bytes", sizeof(E));
        weigh(tile, rows, to, top, sum);
      };
      if (chunk_.raw_k != nullptr) {
        switch (raw_type(p)) {
          case DType::i8: return as_they_lie(std::int8_t{});
          case DType::bf16: return as_they_lie(bf16{});
          default: return as_they_lie(f16{});
        }
      }
    }
    const Rows<Operand> rows{chunk_.k + first * chunk_.k_stride, chunk_.v + first * chunk_.v_stride,
                             chunk_.k_stride, chunk_.v_stride};
    weigh(tile, rows, to, top, sum);
  }

 private:
  static DType raw_type(const ForwardProblem& p) noexcept {
    return p.own_k_type ? p.k_type : p.type;
  }

  template <class E>
  void weigh(const Tile<V>& tile, const Rows<E>& rows, const Place<Sum>& to, Sum* top,
             Sum* sum) noexcept {
    // Behind rows that were packed is nothing to ask for.
    const bool raw = chunk_.raw_k != nullptr;
    k_later_ = raw || chunk_.k != chunk_.packed_k ? scores_.template later<E>(p.d) : 0;
    v_later_ = raw || chunk_.v != chunk_.packed_v ? scores_.template later<E>(p.dv) : 0;
    for (int n = 0; n < rounded(tile.rows); ++n)  // behind them the last one again
      for (std::int64_t x = 0; x < p.d; ++x) q_[n * p.d + x] = tile.q[x * tile.lanes + n];
    scores<1>(rows, tile.rows);
    for (int n = 0; n < tile.lanes; ++n) top[n] = sum[n] = 0;
    for (int n = 0; n < tile.rows; ++n) weights(s_ + n * kChunk, top[n], sum[n]);
    values(rows, tile.rows, to, sum);
  }

  // What will be read some keys after key j, or after its value.
  template <class E>
  LinesOf<V, E> after_key(const Rows<E>& of, std::int64_t j) const noexcept {
    j += kAhead<E>;
    return j < keys_ ? LinesOf<V, E>(of.k + j * of.k_stride, of.k_stride, p.d, k_later_)
                     : LinesOf<V, E>(of.v + (j - keys_) * of.v_stride, of.v_stride, p.dv, v_later_);
  }
  template <class E>
  LinesOf<V, E> after_value(const Rows<E>& of, std::int64_t j) const noexcept {
    j += kAhead<E>;
    return j < keys_ ? LinesOf<V, E>(of.v + j * of.v_stride, of.v_stride, p.dv, v_later_)
                     : LinesOf<V, E>(of.k + j * of.k_stride, of.k_stride, p.d, k_later_);
  }

  static int rounded(int rows) noexcept {  // to a power of two
    int to = 1;
    while (to < rows) to *= 2;
    return to;
  }

  // Of kRows rows or, if there are more, of twice as many. One chain of sums alone would wait for
  // itself. The last keys overlap those before.
  template <int kRows, class E>
  void scores(const Rows<E>& of, int rows) const noexcept {
    if constexpr (kRows < kMost) {
      if (rows > kRows) return scores<kRows * 2>(of, rows);
    }
    constexpr int kGroups = kRows > 2 ? 1 : 2;
    constexpr std::int64_t kEach = kGroups * V::kLanes;
    for (std::int64_t j = 0; j < keys_; j += kEach)
      some_scores<kRows, kGroups>(of, j + kEach <= keys_ ? j : keys_ - kEach, after_key(of, j));
  }

  template <int kRows, int kGroups, class E>
  [[gnu::noinline]] void some_scores(const Rows<E>& of, std::int64_t first,
                                     LinesOf<V, E> soon) const noexcept {
    constexpr int kLines = V::kLanes * V::kLanes * static_cast<int>(sizeof(E)) / 64;
    const std::int64_t stride = of.k_stride, d = p.d;
    const E* k = of.k + first * stride;
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
          sum[g][r] = sum[g][r] * scale;
          if (to == d && k_scales_ != nullptr)
            sum[g][r] = sum[g][r] * V::load(k_scales_ + first + g * V::kLanes);
          sum[g][r].store(s);
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
    if (v_scales_ == nullptr) return;
    for (std::int64_t j = 0; j < keys_; ++j) s[j] *= v_scales_[j];
  }

  // A slice of keys after the other, so that memory is read as it lies.
  template <class E>
  void values(const Rows<E>& of, int rows, const Place<Sum>& to, const Sum* sum) const noexcept {
    Divisors<V, Tile<V>::kMost> divisors;  // whole vectors of few rows
    if (to.final) divisors.set(sum, static_cast<int>(ForwardScores<V>::width(rows)));
    for (std::int64_t j = 0; j < keys_; j += kSlice) {
      LinesOf<V, E> soon = after_value(of, j);
      const bool end = to.final && j + kSlice >= keys_;
      Operands<V> x{.a = as_they_lie<V>(s_ + j),
                    .a_stride = kChunk,
                    .b = nullptr,
                    .b_stride = of.v_stride,
                    .c = to.o,
                    .c_stride = to.stride,
                    .depth = keys_ - j < kSlice ? keys_ - j : kSlice,
                    .start = j == 0 ? Start::zero : Start::c};
      const StoreDivided<decltype(divisors), V, kChunk> store{x.a, end ? &divisors : nullptr};
      if constexpr (std::is_same_v<E, Operand>) {
        x.b = of.v + j * of.v_stride;
        x.soon = &soon;
        product_of_features<V, Layout::along>(x, rows, Results<V>::width(p) / V::kLanes, store);
      } else {
        narrow_values<1>(x, of.v + j * of.v_stride, rows, soon, store);
      }
    }
  }

  // The same product of values that are widened where they are multiplied: of kRows rows or, if
  // there are more, of twice as many. What is behind the last feature is not read.
  template <int kRows, class E, class Finish>
  void narrow_values(Operands<V> x, const E* v, int rows, LinesOf<V, E>& soon,
                     const Finish& finish) const noexcept {
    if constexpr (kRows < kMost) {
      if (rows > kRows) return narrow_values<kRows * 2>(x, v, rows, soon, finish);
    }
    constexpr int kVectors = kRows > 2 ? 2 : 4;
    constexpr std::int64_t kStep = kVectors * V::kLanes;
    std::int64_t left = p.dv;
    for (; left >= kStep; left -= kStep, v += kStep, x.c += kStep)
      some_values<kRows, kVectors>(x, v, V::kLanes, rows, soon, finish);
    for (; left > 0; left -= V::kLanes, v += V::kLanes, x.c += V::kLanes)
      some_values<kRows, 1>(x, v, left, rows, soon, finish);
  }

  template <int kRows, int kVectors, class E, class Finish>
  [[gnu::noinline]] void some_values(const Operands<V>& x, const E* v, std::int64_t features,
                                     int rows, LinesOf<V, E>& lines,
                                     const Finish& finish) const noexcept {
    constexpr std::int64_t kBytes = kVectors * V::kLanes * sizeof(E);
    constexpr std::int64_t kEach = kBytes < 64 ? 64 / kBytes : 1;  // keys to a line
    LinesOf<V, E> soon = lines;
    V sum[kRows][kVectors];
    unrolled<kRows>(ATTEND_EACH(r) {
      if (x.start == Start::zero || r >= rows) set_zero(sum[r]);
      else load(x.c + r * x.c_stride, sum[r]);
    });
    const Sum* weights = x.a;
    for (std::int64_t j = 0; j < x.depth; ++j, v += x.b_stride, ++weights) {
      if (j % kEach == 0)
        for (std::int64_t n = 0; n < kBytes; n += 64) soon.prefetch_next();
      V some[kVectors];
      if constexpr (kVectors == 1) some[0] = load_elements<V>(v, features);
      else unrolled<kVectors>(ATTEND_EACH(n) { some[n] = V::widened(v + n * V::kLanes); });
      unrolled<kRows>(ATTEND_EACH(r) { add_products(V::set(weights[r * kChunk]), some, sum[r]); });
    }
    lines = soon;
    Operands<V> to = x;  // a row at a time: there may be fewer
    unrolled<kRows>(ATTEND_EACH(r) {
      if (r < rows) {
        V one[1][kVectors];
        unrolled<kVectors>(ATTEND_EACH(n) { one[0][n] = sum[r][n]; });
        finish(to, one);
      }
      to.a += kChunk;
      to.c += x.c_stride;
    });
  }

  const ForwardProblem& p;
  const ForwardScores<V>& scores_;
  const Chunk<V>& chunk_;
  Sum* q_;
  Sum* s_;
  std::int64_t keys_ = 0, k_later_ = 0, v_later_ = 0;
  const Sum *k_scales_ = nullptr, *v_scales_ = nullptr;
};

}  // namespace
}  // namespace attend
