// Products with weights of 8 bits (core/product.h: c = (a b) * scales + bias).
//
//                      b: [depth][64 columns] bytes     few rows: a line of the cache with each
//            k         +------------------------+       step, widened in registers where it is
//      +-----------+ k | ======================  |       multiplied. Memory gives a quarter of the
//    a | ========= |   +------------------------+       bytes of f32, and that is all a few rows
//      +-----------+   +------------------------+       wait for.
//                      |  c: one tile of sums   |
//                      +------------------------+       many rows: a panel of b is widened once
//                                                       (gemm.h), and then multiplied as any other
//
// Whole numbers of 8 bits are exact in every type, so the sums are those of gemm.h, to the bit, and
// each is multiplied by its scale once. What a step of one row costs (AVX-512): for 64 weights 4
// loads that widen, 4 conversions and 4 multiply-adds, 6 cycles.
#pragma once

#include "cpu/elements.h"
#include "cpu/gemm_sums.h"

namespace attend {
namespace {

// Up to so many rows read the bytes where they lie; more are worth widening b once.
inline constexpr std::int64_t kFewByteRows = 8;

// The numbers of packed weights at step k, from a column on up to the end of its line.
template <class T>
ATTEND_INLINE const std::int8_t* bytes_at(const Matrices<T>& p, std::int64_t k,
                                          std::int64_t column) noexcept {
  return p.packed_bytes + (column / kByteColumns * p.k + k) * kByteColumns + column % kByteColumns;
}

// to[group of 64 columns][k][column]; zeros behind the last column.
template <class T>
void pack_bytes(const Matrices<T>& p, const RangeOfB& range, std::int8_t* to) noexcept {
  constexpr std::int8_t kZero = 0;
  constexpr std::int64_t kSteps = 64;  // 4 kB of lines stay close while columns are written into
  for (std::int64_t column = range.column_begin; column < range.column_end; column += kByteColumns)
    for (std::int64_t k = range.k_begin; k < range.k_end; k += kSteps)
      for (std::int64_t n = 0; n < kByteColumns; ++n) {
        const std::int64_t steps = range.k_end - k < kSteps ? range.k_end - k : kSteps;
        const std::int8_t* const from = p.bytes + (column + n) * p.b_column + k * p.b_depth;
        std::int8_t* const line = to + column * p.k + k * kByteColumns + n;
        for (std::int64_t x = 0; x < steps; ++x)
          line[x * kByteColumns] = column + n < range.column_end ? from[x * p.b_depth] : kZero;
      }
}

// Panels of b as pack_panels() makes them: to[panel][x][n], `apart` from each other, zeros from
// `columns` on. The first column is a multiple of the lanes.
template <class V, int kColumns>
void widen_panels(const MatricesOf<V>& p, std::int64_t k, std::int64_t depth, std::int64_t column,
                  std::int64_t columns, SumOf<V>* to, std::int64_t apart) noexcept {
  const std::int64_t all = (columns + kColumns - 1) / kColumns * kColumns;
  for (std::int64_t n = 0; n < all; n += V::kLanes) {
    SumOf<V>* panel = to + n / kColumns * apart + n % kColumns;
    if constexpr (HasHalves<V, std::int8_t>) {
      if (p.packed_bytes != nullptr && n < columns) {  // their last line is filled with zeros
        const std::int8_t* from = bytes_at(p, k, column + n);
        for (std::int64_t x = 0; x < depth; ++x, from += kByteColumns, panel += kColumns)
          V::widened(from).store(panel);
        continue;
      }
    }
    for (std::int64_t x = 0; x < depth; ++x, panel += kColumns)
      for (std::int64_t r = 0; r < V::kLanes; ++r) {
        const std::int64_t at = column + n + r;
        const std::int8_t* const number = p.packed_bytes != nullptr
                                              ? bytes_at(p, k + x, at)
                                              : p.bytes + (k + x) * p.b_depth + at * p.b_column;
        panel[r] = n + r < columns ? static_cast<SumOf<V>>(*number) : 0;
      }
  }
}

constexpr int fewer(int a, int b) { return a < b ? a : b; }

// kRows rows of a times kVectors vectors of columns, a step with each line of b.
template <class V, int kRows, int kVectors>
[[gnu::noinline]] void tile_of_bytes(const Operands<V>& x, const std::int8_t* b,
                                     const AddToC<V>& finish) noexcept {
  V sum[kRows][kVectors];
  unrolled<kRows>(ATTEND_EACH(r) { set_zero(sum[r]); });
  const SumOf<V>* a = x.a;
  constexpr int kTogether = fewer(kVectors, 4);  // beside the sums there are few registers
  static_assert(kVectors % kTogether == 0);
  for (std::int64_t left = x.depth; left > 0; --left, ++a, b += kByteColumns) {
    V element[kRows];
    unrolled<kRows>(ATTEND_EACH(r) { element[r] = V::set(a[r * x.a_stride]); });
    unrolled<kVectors / kTogether>(ATTEND_EACH(part) {
      constexpr int kFirst = part * kTogether;
      V weights[kTogether];
      load_bytes(b + kFirst * V::kLanes, weights);
      unrolled<kRows>(ATTEND_EACH(r) {
        unrolled<kTogether>(ATTEND_EACH(n) {
          sum[r][kFirst + n] = fma(element[r], weights[n], sum[r][kFirst + n]);
        });
      });
    });
  }
  finish(x, sum);
}

// One block of the depth: some rows, the 64 columns from `column` on or those that are there. As
// many columns at a time as the registers have sums for.
template <class V, int kRows>
void rows_of_bytes(const MatricesOf<V>& p, std::int64_t row, std::int64_t k, std::int64_t depth,
                   std::int64_t column, const AddToC<V>& all) noexcept {
  constexpr int kLine = kByteColumns / V::kLanes, kMost = TilesOf<V>::kByteSums / kRows;
  constexpr int kVectors = kMost < kLine ? kMost : kLine;
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
    tile_of_bytes<V, kRows, kVectors>(x, bytes_at(p, k, column + n), finish);
  }
}

// Few rows and packed weights. Gives whether it was such a product.
template <class V>
bool run_few_bytes(const MatricesOf<V>& p, const MatrixRange& range) noexcept {
  if constexpr (HasHalves<V, std::int8_t>) {
    using Sum = SumOf<V>;
    const std::int64_t rows = range.row_end - range.row_begin;
    if (p.packed_bytes == nullptr || p.a_depth != 1 || rows > kFewByteRows) return false;
    alignas(64) Sum scales[kByteColumns], bias[kByteColumns];
    for (std::int64_t column = range.column_begin; column < range.column_end;
         column += kByteColumns) {
      const std::int64_t left = range.column_end - column;
      const std::int64_t columns = left < kByteColumns ? left : kByteColumns;
      for (std::int64_t n = 0; n < kByteColumns; ++n) {
        scales[n] = n < columns ? p.scales[column + n] : 0;
        bias[n] = n < columns && p.bias != nullptr ? p.bias[column + n] : 0;
      }
      std::int64_t k = 0;
      do {  // at least once: an empty sum is 0
        if (stops_at(range, k)) return true;
        const std::int64_t depth = p.k - k < kSumBlock ? p.k - k : kSumBlock;
        const bool last = k + depth == p.k;
        const AddToC<V> finish{k == 0, last && p.bias != nullptr ? bias : nullptr, columns,
                               last ? scales : nullptr};
        std::int64_t row = range.row_begin;
        for (; row + 4 <= range.row_end; row += 4)
          rows_of_bytes<V, 4>(p, row, k, depth, column, finish);
        for (; row + 2 <= range.row_end; row += 2)
          rows_of_bytes<V, 2>(p, row, k, depth, column, finish);
        if (row < range.row_end) rows_of_bytes<V, 1>(p, row, k, depth, column, finish);
        k += depth;
      } while (k < p.k);
    }
    return true;
  }
  return false;
}

}  // namespace
}  // namespace attend
