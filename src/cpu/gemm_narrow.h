// Products with a b of fewer bits than what is multiplied: weights of 8 bits, with scales
// (core/product.h: c = (a b) * scales + bias), and weights of bf16 and f16, without.
//
//                      b: [depth][64 columns]       up to 96 rows: a line or two of the cache
//            k         +------------------------+   with each step, widened in registers where
//      +-----------+ k | ====================== |   they are multiplied. Memory gives a quarter
//    a | ========= |   +------------------------+   or half of the bytes of f32, and that is all
//      +-----------+   +------------------------+   that a few rows wait for.
//                      |  c: one tile of sums   |
//                      +------------------------+   more rows: a panel of b is widened once
//                                                   (gemm.h), then multiplied as any other
//
// That is how packed weights lie. Those that are not are widened when their panels are made
// (gemm.h), or by few rows: where their columns lie side by side they are read as packed ones are,
// else a few columns at a time are widened close by (gemm_few.h).
//
// Numbers of 8 or 16 bits are exact in float, so the sums are those of gemm.h, to the bit, and each
// is multiplied by its scale once, if there is one. What a step of one row costs (AVX-512), for 64
// weights, besides 4 multiply-adds: of 8 bits 4 loads that widen and 4 conversions, of bf16, which
// lie in pairs (vec.h), 2 loads and 4 instructions, of f16 4 loads that convert.
#pragma once

#include "cpu/gemm_sums.h"
#include "cpu/pack.h"

namespace attend {
namespace {

// Of so many rows or fewer is a tile that reads b where it lies, beside two vectors of b.
template <class V>
inline constexpr int kNarrowRows = V::kByLane ? 8 : TilesOf<V>::rows(2, true);

// Up to so many rows do; more are worth widening b once. Products by lane would broadcast every
// element of a.
template <class V>
inline constexpr std::int64_t kFewNarrowRows = V::kByLane ? 8 : 96;

// Tiles that read a part of each line ask for it so many steps before: the hardware does not guess
// what comes (eight rows of 4096 x 4096 took 1.6 times as long).
inline constexpr std::int64_t kLinesAhead = 32;

// The packed numbers of step k for the 64 columns from a multiple of 64 on; those of others are
// found by place_of().
template <class E, class T>
ATTEND_INLINE const E* line_of(const Matrices<T>& p, std::int64_t k, std::int64_t column) noexcept {
  return static_cast<const E*>(p.packed_narrow) +
         (column / kNarrowColumns * p.k + k) * kNarrowColumns;
}

// Where the number of a column stands in its line. A whole number of vectors (in pairs: of two)
// stand where they would without pairs.
template <class V, class E>
constexpr std::int64_t place_of(std::int64_t column) noexcept {
  const std::int64_t at = column % kNarrowColumns;
  if constexpr (InPairs<V, E>) {
    constexpr std::int64_t kPair = 2 * V::kLanes;
    return at / kPair * kPair + at % V::kLanes * 2 + at / V::kLanes % 2;
  }
  return at;
}

// to[group of 64 columns][k][place of a column]; zeros behind the last column.
template <class V, class E>
void pack_lines(const MatricesOf<V>& p, const RangeOfB& range, E* to) noexcept {
  constexpr std::int64_t kSteps = 64;  // their lines stay close while columns are written into
  for (std::int64_t column = range.column_begin; column < range.column_end;
       column += kNarrowColumns)
    for (std::int64_t k = range.k_begin; k < range.k_end; k += kSteps)
      for (std::int64_t n = 0; n < kNarrowColumns; ++n) {
        const std::int64_t steps = range.k_end - k < kSteps ? range.k_end - k : kSteps;
        const E* const from =
            static_cast<const E*>(p.narrow) + (column + n) * p.b_column + k * p.b_depth;
        E* const line = to + column * p.k + k * kNarrowColumns + place_of<V, E>(n);
        for (std::int64_t x = 0; x < steps; ++x)
          line[x * kNarrowColumns] = column + n < range.column_end ? from[x * p.b_depth] : E{};
      }
}
template <class V>
void pack_narrow(const MatricesOf<V>& p, const RangeOfB& range, void* to) noexcept {
  with_narrow<V>(p.b_type, [&]<class E>(E) { pack_lines<V>(p, range, static_cast<E*>(to)); });
}

// Panels of b as pack_panels() makes them: to[panel][x][n], `apart` from each other, zeros from
// `columns` on. One by one: for vectors that have no numbers of type E.
template <class V, int kColumns, class E>
void widen_panels(const MatricesOf<V>& p, std::int64_t k, std::int64_t depth, std::int64_t column,
                  std::int64_t columns, SumOf<V>* to, std::int64_t apart) noexcept {
  const std::int64_t all = (columns + kColumns - 1) / kColumns * kColumns;
  for (std::int64_t n = 0; n < all; n += V::kLanes) {
    SumOf<V>* panel = to + n / kColumns * apart + n % kColumns;
    for (std::int64_t x = 0; x < depth; ++x, panel += kColumns)
      for (std::int64_t r = 0; r < V::kLanes; ++r) {
        const std::int64_t at = column + n + r;
        const E* const number =
            p.packed_narrow != nullptr
                ? line_of<E>(p, k + x, at) + place_of<V, E>(at)
                : static_cast<const E*>(p.narrow) + (k + x) * p.b_depth + at * p.b_column;
        panel[r] = n + r < columns ? static_cast<SumOf<V>>(static_cast<float>(*number)) : 0;
      }
  }
}

// The same of packed numbers, by vectors. The first column is a multiple of the lanes. Two vectors
// at a time, as a line has them, for all of the depth: both are read once, and stored side by side.
template <class V, int kColumns, class E>
void widen_lines(const MatricesOf<V>& p, std::int64_t k, std::int64_t depth, std::int64_t column,
                 std::int64_t columns, SumOf<V>* to, std::int64_t apart) noexcept {
  constexpr std::int64_t kPair = 2 * V::kLanes;
  const std::int64_t all = (columns + kColumns - 1) / kColumns * kColumns;
  for (std::int64_t n = -(column % kPair); n < all; n += kPair) {
    SumOf<V>* at[2];
    bool there[2];
    alignas(64) SumOf<V> nowhere[V::kLanes];
    for (int half = 0; half < 2; ++half) {
      const std::int64_t x = n + half * V::kLanes;
      there[half] = x >= 0 && x < all;
      at[half] = there[half] ? to + x / kColumns * apart + x % kColumns : nowhere;
    }
    const std::int64_t first = there[0] ? kColumns : 0, second = there[1] ? kColumns : 0;
    const bool zeros = n >= columns;  // else the line is filled with them
    const E* from = zeros ? nullptr : line_of<E>(p, k, column + n) + (column + n) % kNarrowColumns;
    for (std::int64_t x = 0; x < depth; ++x, at[0] += first, at[1] += second) {
      V both[2] = {V::set(0), V::set(0)};
      if (!zeros) load_narrow(from + x * kNarrowColumns, both);
      both[0].store(at[0]);
      both[1].store(at[1]);
    }
  }
}

constexpr int fewer(int a, int b) { return a < b ? a : b; }

// Vectors of b: from a line, or as they lie.
template <bool kPacked, class V, class E, int kCount>
ATTEND_INLINE void load_weights(const E* from, V (&to)[kCount]) {
  if constexpr (kPacked) load_narrow(from, to);
  else unrolled<kCount>(ATTEND_EACH(n) { to[n] = V::widened(from + n * V::kLanes); });
}

// kRows rows of a times kVectors vectors of columns, a step with each line of b, or a row of it
// that is not packed.
template <class V, class E, int kRows, int kVectors, bool kPacked = true>
[[gnu::noinline]] void tile_of_narrow(const Operands<V>& x, const E* b,
                                      const AddToC<V>& finish) noexcept {
  V sum[kRows][kVectors];
  unrolled<kRows>(ATTEND_EACH(r) { set_zero(sum[r]); });
  constexpr int kTogether = fewer(kVectors, 4);  // beside the sums there are few registers
  static_assert(kVectors % kTogether == 0);
  if constexpr (kRows > 4) {  // elements as steps() of product.h has them
    static_assert(kPacked && kVectors == kTogether);
    Elements<true, 1, kRows, SumOf<V>> a(x.a, x.a_stride);
    for (std::int64_t left = x.depth; left > 0; --left, a.advance(1), b += kNarrowColumns) {
      V weights[kVectors];
      prefetch(b + kLinesAhead * kNarrowColumns);
      load_narrow(b, weights);
      unrolled<kRows>(ATTEND_EACH(r) {
        const SumOf<V>* const element = a.template at<0, r>();
        if constexpr (r % 2 == 0) add_products(element, weights, sum[r]);
        else add_products(V::set(*element), weights, sum[r]);
      });
    }
  } else {
    const SumOf<V>* a = x.a;
    const std::int64_t next = kPacked ? kNarrowColumns : x.b_stride;
    for (std::int64_t left = x.depth; left > 0; --left, ++a, b += next) {
      V element[kRows];
      if constexpr (!kPacked) prefetch(b + kStepsAhead * next);
      unrolled<kRows>(ATTEND_EACH(r) { element[r] = V::set(a[r * x.a_stride]); });
      unrolled<kVectors / kTogether>(ATTEND_EACH(part) {
        constexpr int kFirst = part * kTogether;
        V weights[kTogether];
        load_weights<kPacked>(b + kFirst * V::kLanes, weights);
        unrolled<kRows>(ATTEND_EACH(r) {
          unrolled<kTogether>(ATTEND_EACH(n) {
            sum[r][kFirst + n] = fma(element[r], weights[n], sum[r][kFirst + n]);
          });
        });
      });
    }
  }
  finish(x, sum);
}

// One block of the depth: some rows, the 64 columns from `column` on or those that are there. As
// many columns at a time as the registers have sums for.
template <class V, class E, int kRows>
void rows_of_narrow(const MatricesOf<V>& p, std::int64_t row, std::int64_t k, std::int64_t depth,
                    std::int64_t column, const AddToC<V>& all) noexcept {
  constexpr int kLine = kNarrowColumns / V::kLanes, kMost = TilesOf<V>::kNarrowSums / kRows;
  constexpr int kVectors = kRows > 4 ? 2 : fewer(kMost, kLine);
  const E* const line = line_of<E>(p, k, column);
  for (std::int64_t n = 0; n < all.columns; n += kVectors * V::kLanes) {
    const Operands<V> x{.a = p.a + row * p.a_row + k,
                        .a_stride = p.a_row,
                        .b = nullptr,
                        .b_stride = 0,
                        .c = p.c + row * p.c_row + column + n,
                        .c_stride = p.c_row,
                        .depth = depth};
    const AddToC<V> finish{all.first, all.bias == nullptr ? nullptr : all.bias + n, all.columns - n,
                           all.scales == nullptr ? nullptr : all.scales + n};
    tile_of_narrow<V, E, kRows, kVectors>(x, line + n, finish);
  }
}

// `rows` of them in one tile or, where that is odd, in an even one and a single row.
template <class V, class E, int kRows>
void exact_rows_of_narrow(const MatricesOf<V>& p, std::int64_t row, std::int64_t rows,
                          std::int64_t k, std::int64_t depth, std::int64_t column,
                          const AddToC<V>& finish) noexcept {
  if (rows >= kRows) {
    rows_of_narrow<V, E, kRows>(p, row, k, depth, column, finish);
    row += kRows;
    rows -= kRows;
  }
  if constexpr (kRows > 1)
    if (rows > 0)
      exact_rows_of_narrow<V, E, (kRows > 2 ? kRows - 2 : 1)>(p, row, rows, k, depth, column,
                                                              finish);
}

// The 64 columns from `column` on, or those that are there: all of the depth.
template <class V, class E>
void columns_of_narrow(const MatricesOf<V>& p, const MatrixRange& range, std::int64_t column,
                       std::int64_t columns) noexcept {
  using Sum = SumOf<V>;
  alignas(64) Sum scales[kNarrowColumns], bias[kNarrowColumns];
  const bool scaled = p.scales != nullptr, biased = p.bias != nullptr;
  for (std::int64_t n = 0; n < kNarrowColumns; ++n) {
    if (scaled) scales[n] = n < columns ? p.scales[column + n] : 0;
    if (biased) bias[n] = n < columns ? p.bias[column + n] : 0;
  }
  std::int64_t k = 0;
  do {  // at least once: an empty sum is 0
    if (stops_at(range, k)) return;
    const std::int64_t depth = p.k - k < kSumBlock ? p.k - k : kSumBlock;
    const bool last = k + depth == p.k;
    const AddToC<V> finish{k == 0, last && biased ? bias : nullptr, columns,
                           last && scaled ? scales : nullptr};
    // The last two tiles share what is left, as in product().
    std::int64_t row = range.row_begin;
    while (row < range.row_end) {
      constexpr std::int64_t kMost = kNarrowRows<V>;
      const std::int64_t left = range.row_end - row, half = (left + 3) / 4 * 2;
      const std::int64_t now = left >= 2 * kMost ? kMost : left <= kMost ? left : half;
      exact_rows_of_narrow<V, E, kNarrowRows<V>>(p, row, now, k, depth, column, finish);
      row += now;
    }
    k += depth;
  } while (k < p.k);
}

// Few rows and packed weights. Gives whether it was such a product.
template <class V>
bool run_few_narrow(const MatricesOf<V>& p, const MatrixRange& range) noexcept {
  if constexpr (HasHalves<V, std::int8_t>) {
    const std::int64_t rows = range.row_end - range.row_begin;
    if (p.packed_narrow == nullptr || p.a_depth != 1 || rows > kFewNarrowRows<V>) return false;
    with_narrow<V>(p.b_type, [&]<class E>(E) {
      for (std::int64_t column = range.column_begin; column < range.column_end;
           column += kNarrowColumns) {
        const std::int64_t left = range.column_end - column;
        columns_of_narrow<V, E>(p, range, column, left < kNarrowColumns ? left : kNarrowColumns);
      }
    });
    return true;
  }
  return false;
}

}  // namespace
}  // namespace attend
