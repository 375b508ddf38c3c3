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
#include "cpu/pack.h"

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

// Steps of the depth that lie far from each other are asked for so many steps before: the hardware
// does not guess across pages.
constexpr std::int64_t kAhead = 16;

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
  if (p.b_depth != 1) {
    for (std::int64_t x = 0; x < depth; ++x) {
      for (std::int64_t n = 0; n < kColumns; n += V::kLanes) {
        prefetch(from + (x + kAhead) * p.b_depth + n);
        row(x, n).store(panel + x * kColumns + n);
      }
    }
    return;
  }
  for (std::int64_t n = 0; n < kColumns; n += V::kLanes) {
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

// The rows of a that a task reads, from step k of the depth on.
template <class T>
struct RowsOfA {
  const T* at;
  Layout layout;
  std::int64_t stride;  // along: from row to row; else from step to step
};

// Rows of one panel and one block of the depth. The sums of a tile are stored all at once: unless
// their lines were asked for before, the next tile waits for them (5 % of the time).
template <class V, int kVectors, bool kWhole, class T = typename V::T>
void multiply(const RowsOfA<T>& a, std::int64_t rows, Operands<T> x,
              const AddToC<V, kWhole> finish) noexcept {
  x.a = a.at;
  x.a_stride = a.stride;
  x.a_panel = kPanelRows * x.depth;
  while (rows > 0) {
    const std::int64_t some = rows < 2 * kPanelRows ? rows : kPanelRows;
    for (std::int64_t r = 0; r < some; ++r)
      unrolled<kVectors>(
          ATTEND_EACH(n) { __builtin_prefetch(x.c + r * x.c_stride + n * V::kLanes, 1); });
    if (a.layout == Layout::along) {
      product<V, kVectors, Layout::along, Start::zero>(x, some, finish);
      x.a += some * a.stride;
    } else if (a.layout == Layout::across) {
      product<V, kVectors, Layout::across, Start::zero>(x, some, finish);
      x.a += some;
    } else if constexpr (V::kByLane) {
      product<V, kVectors, Layout::panels, Start::zero>(x, some, finish);
      x.a += x.a_panel;
    }
    x.c += some * x.c_stride;
    rows -= some;
  }
}

// Some rows of one panel of c: the block of the depth that begins at k.
template <class V, class T = typename V::T>
void run_block(const Product<T>& p, const MatrixPart& part, std::int64_t k,
               const RowsOfA<T>& a) noexcept {
  constexpr int kColumns = kTileVectors * V::kLanes;
  alignas(64) T panel[kSumBlock * kColumns];
  alignas(64) T bias[kColumns];
  const std::int64_t rows = part.row_end - part.row_begin, column = part.column_begin;
  const std::int64_t columns = part.column_end - column;
  const std::int64_t depth = p.k - k < kSumBlock ? p.k - k : kSumBlock;
  const T* b = panel;
  if (p.packed != nullptr) b = p.packed + column * p.k + k * kColumns;
  else pack_panel<V, kColumns>(p, k, depth, column, columns, panel);
  const bool add = p.bias != nullptr && k + depth == p.k;
  for (std::int64_t n = 0; add && n < kColumns; ++n) bias[n] = n < columns ? p.bias[column + n] : 0;
  const T* const added = add ? bias : nullptr;
  const Operands<T> x{.a = nullptr,
                      .a_stride = 0,
                      .b = b,
                      .b_stride = kColumns,
                      .c = p.c + part.row_begin * p.c_row + column,
                      .c_stride = p.c_row,
                      .depth = depth};
  if (columns == kColumns)
    multiply<V, kTileVectors>(a, rows, x, AddToC<V, true>{k == 0, added, columns});
  else if (columns > V::kLanes)
    multiply<V, kTileVectors>(a, rows, x, AddToC<V, false>{k == 0, added, columns});
  else multiply<V, 1>(a, rows, x, AddToC<V, false>{k == 0, added, columns});
}

// Calls use(part) for parts of at most so many rows and one panel of columns.
template <int kColumns, class Use>
void for_panels(const MatrixPart& part, std::int64_t rows, Use use) noexcept {
  for (std::int64_t row = part.row_begin; row < part.row_end; row += rows)
    for (std::int64_t column = part.column_begin; column < part.column_end; column += kColumns)
      use(MatrixPart{row, row + rows < part.row_end ? row + rows : part.row_end, column,
                     column + kColumns < part.column_end ? column + kColumns : part.column_end});
}

// Rows of a that lie across, a step of the depth far from the next, are brought side by side first:
// a block of them serves all columns of the part. Where products by lane want panels, so are
// others.
template <class V, class T = typename V::T>
void run_across(const Product<T>& p, const MatrixPart& part) noexcept {
  constexpr std::int64_t kRows = kAcrossRows<T>;
  alignas(64) T block[kSumBlock * kRows];
  const RowsOfA<T> brought = p.a_depth == 1 ? RowsOfA<T>{block, Layout::panels, kPanelRows}
                                            : RowsOfA<T>{block, Layout::across, kRows};
  for (std::int64_t row = part.row_begin; row < part.row_end; row += kRows) {
    const std::int64_t rows = part.row_end - row < kRows ? part.row_end - row : kRows;
    std::int64_t k = 0;
    do {
      const std::int64_t depth = p.k - k < kSumBlock ? p.k - k : kSumBlock;
      if (p.a_depth == 1) rows_to_panels<V>(p.a + row * p.a_row + k, p.a_row, rows, depth, block);
      for (std::int64_t x = 0; p.a_depth != 1 && x < depth; ++x) {
        const T* const from = p.a + row * p.a_row + (k + x) * p.a_depth;
        for (std::int64_t r = 0; r < rows; r += V::kLanes) {
          prefetch(from + kAhead * p.a_depth + r);
          const V some =
              rows - r < V::kLanes ? V::load_first(from + r, rows - r) : V::load(from + r);
          some.store(block + x * kRows + r);
        }
      }
      for_panels<kTileVectors * V::kLanes>(
          {row, row + rows, part.column_begin, part.column_end}, rows,
          [&](const MatrixPart& panel) { run_block<V>(p, panel, k, brought); });
      k += depth;
    } while (k < p.k);
  }
}

// Few rows of a stay close while b passes by, if it is packed; else a panel of b, once packed,
// serves all rows.
template <class V>
void run_matrix(const Product<typename V::T>& p, const MatrixPart& part) noexcept {
  const std::int64_t all = part.row_end - part.row_begin;
  if (p.a_depth != 1 || (V::kByLane && all >= kPanelRows)) return run_across<V>(p, part);
  const std::int64_t some = p.packed != nullptr && all > 2 * kPanelRows ? 2 * kPanelRows : all;
  for_panels<kTileVectors * V::kLanes>(part, some, [&](const MatrixPart& panel) {
    std::int64_t k = 0;
    do {  // at least once: an empty sum is 0
      run_block<V>(p, panel, k, {p.a + panel.row_begin * p.a_row + k, Layout::along, p.a_row});
      k += kSumBlock;
    } while (k < p.k);
  });
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
