// Products of whole matrices, c = a b + bias, for the layers (core/matrix.h says what a sum is).
//
//               b: 256 x kColumns, packed        c is made in panels of as many columns as the
//               +---+                            register tile has, and b is packed in such panels.
//               | = |                            For each block of 256 steps of the depth, 32 kB of
//   a, as it    +---+                            b (AVX2: 16, NEON: 8) lie in the L1 cache while
//   lies        +---+                            rows of a pass over them (cpu/product.h).
//   +-------+   |   |  c: the block's sums
//   |  ===  |   |   |  are stored or added
//   +-------+   +---+
//
// The weights of a layer are rows along the depth: packing transposes them in registers. That costs
// as much as a dozen rows of a, so a layer keeps its weights packed where it knows that nobody else
// can write them; the same bits come out either way.
#pragma once

#include "core/matrix.h"
#include "cpu/product.h"

namespace attend {
namespace {

// The sums of a tile go to c: stored or, after the first block of the depth, added; with the bias
// after the last one. `columns` of c are there.
template <class V, bool kWhole>
struct AddToC {
  using T = typename V::T;
  bool first;
  const T* bias;  // of the panel, all its columns; null: none, or not yet
  std::int64_t columns;

  template <int kRows, int kVectors>
  ATTEND_INLINE void operator()(const Operands<T>& x, V (&sum)[kRows][kVectors]) const {
    unrolled<kVectors>(ATTEND_EACH(n) {
      const std::int64_t left = columns - n * V::kLanes;
      if (!kWhole && left <= 0) return;
      const bool all = kWhole || left >= V::kLanes;
      T* const c = x.c + n * V::kLanes;
      if (!first)
        unrolled<kRows>(ATTEND_EACH(r) {
          const T* from = c + r * x.c_stride;
          sum[r][n] = (all ? V::load(from) : V::load_first(from, left)) + sum[r][n];
        });
      if (bias != nullptr) {
        const V b = V::load(bias + n * V::kLanes);
        unrolled<kRows>(ATTEND_EACH(r) { sum[r][n] = sum[r][n] + b; });
      }
      unrolled<kRows>(ATTEND_EACH(r) {
        if (all) sum[r][n].store(c + r * x.c_stride);
        else sum[r][n].store_first(c + r * x.c_stride, left);
      });
    });
  }
};

// panel[x][n] = b[k + x][column + n]; zeros from `columns` on.
template <class V, int kColumns, class T = typename V::T>
void pack_panel(const Product<T>& p, std::int64_t k, std::int64_t depth, std::int64_t column,
                std::int64_t columns, T* panel) noexcept {
  const T* const from = p.b + k * p.b_depth + column * p.b_column;
  const auto row = [&](std::int64_t x, std::int64_t n) {  // V::kLanes of them or fewer, then zeros
    const std::int64_t left = p.b_depth == 1 ? depth - x : columns - n;
    const T* const first = from + x * p.b_depth + n * p.b_column;
    return left >= V::kLanes ? V::load(first) : V::load_first(first, left < 0 ? 0 : left);
  };
  for (std::int64_t n = 0; n < kColumns; n += V::kLanes) {
    if (p.b_depth != 1) {
      for (std::int64_t x = 0; x < depth; ++x) row(x, n).store(panel + x * kColumns + n);
      continue;
    }
    for (std::int64_t x = 0; x < depth; x += V::kLanes) {
      V square[V::kLanes];
      if (depth - x >= V::kLanes && columns - n >= V::kLanes) {
        load_transposed(from + n * p.b_column + x, p.b_column, square);
        unrolled<V::kLanes>(ATTEND_EACH(r) { square[r].store(panel + (x + r) * kColumns + n); });
      } else {
        for (int r = 0; r < V::kLanes; ++r) square[r] = n + r < columns ? row(x, n + r) : V::set(0);
        transpose(square);
        for (int r = 0; r < V::kLanes && x + r < depth; ++r)
          square[r].store(panel + (x + r) * kColumns + n);
      }
    }
  }
}

// Rows of one panel and one block of the depth. The sums of a tile are stored all at once: unless
// their lines were asked for before, the next tile waits for them (5 % of the time).
template <class V, int kVectors, bool kWhole, class T = typename V::T>
void multiply(const Product<T>& p, std::int64_t rows, Operands<T> x,
              const AddToC<V, kWhole> finish) noexcept {
  x.a_stride = p.a_depth == 1 ? p.a_row : p.a_depth;
  while (rows > 0) {
    const std::int64_t some = rows < 2 * kTileRows ? rows : kTileRows;
    for (std::int64_t r = 0; r < some; ++r)
      unrolled<kVectors>(
          ATTEND_EACH(n) { __builtin_prefetch(x.c + r * x.c_stride + n * V::kLanes, 1); });
    if (p.a_depth == 1) product<V, kVectors, Layout::along, Start::zero>(x, some, finish);
    else product<V, kVectors, Layout::across, Start::zero>(x, some, finish);
    x.a += some * p.a_row;
    x.c += some * p.c_row;
    rows -= some;
  }
}

// Some rows of one panel of c: all blocks of the depth, one behind the other.
template <class V>
void run_panel(const Product<typename V::T>& p, const MatrixPart& part) noexcept {
  using T = typename V::T;
  constexpr int kColumns = kTileVectors * V::kLanes;
  alignas(64) T panel[kSumBlock * kColumns];
  alignas(64) T bias[kColumns];
  const std::int64_t rows = part.row_end - part.row_begin, column = part.column_begin;
  const std::int64_t columns = part.column_end - column;
  for (std::int64_t n = 0; n < kColumns; ++n)
    bias[n] = p.bias != nullptr && n < columns ? p.bias[column + n] : 0;
  std::int64_t k = 0;
  do {  // at least once: an empty sum is 0
    const std::int64_t depth = p.k - k < kSumBlock ? p.k - k : kSumBlock;
    const T* b = panel;
    if (p.packed != nullptr) b = p.packed + column * p.k + k * kColumns;
    else pack_panel<V, kColumns>(p, k, depth, column, columns, panel);
    const Operands<T> x{.a = p.a + part.row_begin * p.a_row + k * p.a_depth,
                        .a_stride = 0,
                        .b = b,
                        .b_stride = kColumns,
                        .c = p.c + part.row_begin * p.c_row + column,
                        .c_stride = p.c_row,
                        .depth = depth};
    const T* const add = p.bias != nullptr && k + depth == p.k ? bias : nullptr;
    if (columns == kColumns)
      multiply<V, kTileVectors>(p, rows, x, AddToC<V, true>{k == 0, add, columns});
    else if (columns > V::kLanes)
      multiply<V, kTileVectors>(p, rows, x, AddToC<V, false>{k == 0, add, columns});
    else multiply<V, 1>(p, rows, x, AddToC<V, false>{k == 0, add, columns});
    k += depth;
  } while (k < p.k);
}

// Few rows of a stay close while b passes by, if it is packed; else a panel of b, once packed,
// serves all rows.
template <class V>
void run_matrix(const Product<typename V::T>& p, const MatrixPart& part) noexcept {
  constexpr int kColumns = kTileVectors * V::kLanes;
  const std::int64_t all = part.row_end - part.row_begin;
  const std::int64_t some = p.packed != nullptr && all > 2 * kTileRows ? 2 * kTileRows : all;
  for (std::int64_t row = part.row_begin; row < part.row_end; row += some)
    for (std::int64_t column = part.column_begin; column < part.column_end; column += kColumns) {
      const auto until = [](std::int64_t end, std::int64_t most) {
        return end < most ? end : most;
      };
      run_panel<V>(p, {row, until(row + some, part.row_end), column,
                       until(column + kColumns, part.column_end)});
    }
}

template <class V>
void pack_matrix(const Product<typename V::T>& p, typename V::T* packed) noexcept {
  constexpr int kColumns = kTileVectors * V::kLanes;
  for (std::int64_t column = 0; column < p.n; column += kColumns, packed += kColumns * p.k)
    pack_panel<V, kColumns>(p, 0, p.k, column, p.n - column < kColumns ? p.n - column : kColumns,
                            packed);
}

template <class V>
inline constexpr MatrixFunctions<typename V::T> kMatrixFunctions{kTileVectors * V::kLanes,
                                                                 pack_matrix<V>, run_matrix<V>};

}  // namespace
}  // namespace attend
