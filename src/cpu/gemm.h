// Products of whole matrices, c = a b + bias, for the layers (core/product.h says what a sum is).
//
//               b: 256 x kColumns, packed        c is made in panels of as many columns as the
//               +---+                            register tile has, and b is packed in such panels.
//               | = |                            For each block of 256 steps of the depth, 32 kB of
//               +---+                            b (AVX2: 16, NEON: 12) lie in the L1 cache while
//       a       +---+                            rows of a pass over them (cpu/product.h): as they
//   +-------+   |   |  c: the block's sums       lie, or, where they lie across or products are by
//   |  ===  |   |   |  are stored or added       lane (NEON), brought side by side first.
//   +-------+   +---+
//
// The weights of a layer are rows along the depth: packing transposes them in registers. That costs
// as much as a dozen rows of a. So a layer keeps its weights packed where it knows that nobody else
// can write them; else many rows share a b that is packed for all of them (layer/matmul.cpp), and
// few read it as it lies (gemm_few.h). The same bits come out either way. A b of 8 or 16 bits is
// widened when panels are made of it; few rows read it as it lies (gemm_few.h), or was packed
// (gemm_narrow.h).
//
// A c of 16 bits, of many elements for what is added up in each (gradients of weights: a short
// depth, rows of a that lie across), is made of sums that stay close, and written once. In f32 in
// between it would cost 8 bytes more to write and to read with each element, where b has 2.
#pragma once

#include "cpu/gemm_few.h"
#include "cpu/gemm_narrow.h"

namespace attend {
namespace {

// Panels of b, `apart` from each other: to[panel][x][n] = b[k + x][column + panel * kColumns + n];
// zeros from `columns` on.
template <class V, int kColumns, class E, class Operand = OperandOf<V>>
void pack_panels(const MatricesOf<V>& p, const E* b, std::int64_t k, std::int64_t depth,
                 std::int64_t column, std::int64_t columns, Operand* to,
                 std::int64_t apart) noexcept {
  static_assert(kMultipliesSums<V>, "other operands need a pack_panels() of their own");
  const E* const from = b + k * p.b_depth + column * p.b_column;
  if (p.b_depth != 1)
    return steps_to_panels<V, kColumns>(from, p.b_depth, columns, depth, to, apart);
  for (std::int64_t n = 0; n < (columns + kColumns - 1) / kColumns * kColumns; n += V::kLanes) {
    Operand* const panel = to + n / kColumns * apart + n % kColumns;
    for (std::int64_t x = 0; x < depth; x += V::kLanes) {
      const std::int64_t wide = depth - x < V::kLanes ? depth - x : V::kLanes;
      V square[V::kLanes];
      if (wide == V::kLanes && columns - n >= V::kLanes) {
        load_transposed(from + n * p.b_column + x, p.b_column, square);
        unrolled<V::kLanes>(ATTEND_EACH(r) { square[r].store(panel + (x + r) * kColumns); });
      } else {
        for (int r = 0; r < V::kLanes; ++r)
          square[r] =
              load_first_elements<V>(from + (n + r) * p.b_column + x, n + r < columns ? wide : 0);
        transpose(square);
        for (int r = 0; r < wide; ++r) square[r].store(panel + (x + r) * kColumns);
      }
    }
  }
}

// The same of a b of any type, as it lies.
template <class V, int kColumns>
void pack_b(const MatricesOf<V>& p, std::int64_t k, std::int64_t depth, std::int64_t column,
            std::int64_t columns, OperandOf<V>* to, std::int64_t apart) noexcept {
  with_b<V>(p, [&]<class E>(const E* b) {
    if constexpr (std::is_same_v<E, OperandOf<V>> || HasHalves<V, E>)
      pack_panels<V, kColumns>(p, b, k, depth, column, columns, to, apart);
    else widen_panels<V, kColumns, E>(p, k, depth, column, columns, to, apart);
  });
}

// The panels of b that a task reads, packed before or, a few at a time, when they are wanted: each
// of their steps is a row of b somewhere else, and its lines serve all of them.
template <class V, int kPanels>
class PanelsOfB {
  using Operand = OperandOf<V>;
  static constexpr int kColumns = kTileVectors<V> * V::kLanes, kPanel = kSumBlock * kColumns;
  static constexpr std::int64_t kTogether = kPanels * kColumns;
  const MatricesOf<V>& p_;
  const std::int64_t end_;            // of the columns that the task makes
  std::int64_t k_ = -1, column_ = 0;  // of the first that is here
  alignas(64) Operand panels_[kTogether * kSumBlock];

 public:
  PanelsOfB(const MatricesOf<V>& p, const MatrixRange& range) : p_(p), end_(range.column_end) {}

  // The panel that begins at a column, from step k on. Of kPanels, the others come next.
  const Operand* at(std::int64_t k, std::int64_t column) noexcept {
    if (p_.packed != nullptr) return p_.packed + column * p_.k + k * kColumns;
    if (k != k_ || column < column_ || column >= column_ + kTogether) {
      const std::int64_t depth = p_.k - k < kSumBlock ? p_.k - k : kSumBlock;
      const std::int64_t columns = end_ - column < kTogether ? end_ - column : kTogether;
      if (p_.packed_narrow == nullptr)
        pack_b<V, kColumns>(p_, k, depth, column, columns, panels_, kPanel);
      else
        with_narrow<V>(p_.b_type, [&]<class E>(E) {
          if constexpr (HasHalves<V, E>)
            widen_lines<V, kColumns, E>(p_, k, depth, column, columns, panels_, kPanel);
          else widen_panels<V, kColumns, E>(p_, k, depth, column, columns, panels_, kPanel);
        });
      k_ = k, column_ = column;
    }
    return panels_ + (column - column_) / kColumns * kPanel;
  }
};

// The rows of a that a task reads, from step k of the depth on.
template <class V>
struct RowsOfA {
  const OperandOf<V>* at;
  Layout layout;
  std::int64_t stride;  // along: from row to row; else from step to step
};

// Rows of one panel and one block of the depth. The sums of a tile are stored all at once: unless
// their lines were asked for before, the next tile waits for them (5 % of the time).
template <class V, int kVectors>
void multiply(const RowsOfA<V>& a, std::int64_t rows, Operands<V> x,
              const AddToC<V> finish) noexcept {
  x.a = a.at;
  x.a_stride = a.stride;
  x.a_panel = kPanelRows<V> * whole_depth<V>(x.depth);
  while (rows > 0) {
    const std::int64_t some = rows < 2 * kPanelRows<V> ? rows : kPanelRows<V>;
    for (std::int64_t r = 0; r < some; ++r)
      unrolled<kVectors>(
          ATTEND_EACH(n) { __builtin_prefetch(x.c + r * x.c_stride + n * V::kLanes, 1); });
    if (a.layout == Layout::along) {
      product<V, kVectors, Layout::along>(x, some, finish);
      x.a += some * a.stride;
    } else if (a.layout == Layout::across) {
      product<V, kVectors, Layout::across>(x, some, finish);
      x.a += some * TilesOf<V>::kDepth;
    } else if constexpr (TilesOf<V>::kPanels) {
      product<V, kVectors, Layout::panels>(x, some, finish);
      x.a += x.a_panel;
    }
    x.c += some * x.c_stride;
    rows -= some;
  }
}

// The sums of some rows and one panel, in c or on their way there.
template <class V>
struct SumsOfC {
  SumOf<V>* at;
  std::int64_t row;
};
template <class V>
SumsOfC<V> sums_in_c(const MatricesOf<V>& p, const MatrixRange& range) noexcept {
  return {p.c + range.row_begin * p.c_row + range.column_begin, p.c_row};
}

// Some rows of one panel of c: the block of the depth that begins at k, with b's panel of it.
template <class V>
void run_block(const MatricesOf<V>& p, const MatrixRange& range, std::int64_t k,
               const RowsOfA<V>& a, const OperandOf<V>* b, const SumsOfC<V>& c) noexcept {
  using Sum = SumOf<V>;
  constexpr int kColumns = kTileVectors<V> * V::kLanes;
  alignas(64) Sum bias[kColumns], scales[kColumns];
  const std::int64_t rows = range.row_end - range.row_begin, column = range.column_begin;
  const std::int64_t columns = range.column_end - column;
  const std::int64_t depth = p.k - k < kSumBlock ? p.k - k : kSumBlock;
  const bool add = p.bias != nullptr && k + depth == p.k;
  const bool scale = p.scales != nullptr && k + depth == p.k;
  for (std::int64_t n = 0; add && n < kColumns; ++n) bias[n] = n < columns ? p.bias[column + n] : 0;
  for (std::int64_t n = 0; scale && n < kColumns; ++n)
    scales[n] = n < columns ? p.scales[column + n] : 0;
  const Operands<V> x{.a = nullptr,
                      .a_stride = 0,
                      .b = b,
                      .b_stride = kColumns,
                      .c = c.at,
                      .c_stride = c.row,
                      .depth = depth};
  const AddToC<V> finish{k == 0, add ? bias : nullptr, columns, scale ? scales : nullptr};
  if (columns > V::kLanes) multiply<V, kTileVectors<V>>(a, rows, x, finish);
  else multiply<V, 1>(a, rows, x, finish);
}

// Calls use(range) for ranges of at most so many rows and one panel of columns.
template <std::int64_t kColumns, class Use>
void for_panels(const MatrixRange& range, std::int64_t rows, Use use) noexcept {
  for (std::int64_t row = range.row_begin; row < range.row_end; row += rows)
    for (std::int64_t column = range.column_begin; column < range.column_end; column += kColumns)
      use(MatrixRange{row, row + rows < range.row_end ? row + rows : range.row_end, column,
                      column + kColumns < range.column_end ? column + kColumns : range.column_end,
                      range.interrupt});
}

// Finished sums of a panel, rounded to a c of 16 bits.
template <class V>
[[gnu::noinline]] void round_panel(const MatricesOf<V>& p, const MatrixRange& panel,
                                   const SumsOfC<V>& sums) noexcept {
  const std::int64_t columns = panel.column_end - panel.column_begin;
  const auto round = [&]<class E>(E) {
    E* to = static_cast<E*>(p.narrow_c) + panel.row_begin * p.c_row + panel.column_begin;
    const SumOf<V>* from = sums.at;
    for (std::int64_t row = panel.row_begin; row < panel.row_end; ++row) {
      for (std::int64_t n = 0; n < columns; n += V::kLanes) {
        const std::int64_t left = columns - n;
        const V sum = left < V::kLanes ? V::load_first(from + n, left) : V::load(from + n);
        store_elements(sum, to + n, left);
      }
      to += p.c_row;
      from += sums.row;
    }
  };
  if (p.c_type == DType::bf16) round(bf16{});
  else round(f16{});
}

// Columns of a c of 16 bits whose sums are kept at a time: those of a task of the layers.
template <class V>
inline constexpr std::int64_t kKeptColumns = [] {
  constexpr std::int64_t kColumns = kTileVectors<V> * V::kLanes;
  return (264 + kColumns - 1) / kColumns * kColumns;
}();

// Rows of a that lie across, a step of the depth far from the next, are brought side by side first:
// a block of them serves all columns of the range. Where products by lane want panels, so are
// others. kRounds: c is of 16 bits.
template <class V, bool kRounds>
[[gnu::noinline]] void run_across(const MatricesOf<V>& p, const MatrixRange& range) noexcept {
  using Operand = OperandOf<V>;
  constexpr std::int64_t kColumns = kTileVectors<V> * V::kLanes, kRows = kAcrossRows<Operand>,
                         kPanel = TilesOf<V>::kPanels ? kPanelRows<V> : kRows;
  alignas(64) Operand block[kSumBlock * kRows];
  alignas(64) SumOf<V> kept[kRounds ? kRows * kKeptColumns<V> : 1];
  const bool at_once = p.k <= kSumBlock;  // one panel's are done before the next one's begin
  PanelsOfB<V, TilesOf<V>::kPanelsOfB> b(p, range);
  const RowsOfA<V> brought{block, TilesOf<V>::kPanels ? Layout::panels : Layout::across, kPanel};
  for (std::int64_t row = range.row_begin; row < range.row_end; row += kRows) {
    const std::int64_t rows = range.row_end - row < kRows ? range.row_end - row : kRows;
    std::int64_t k = 0;
    do {
      if (stops_at(range, k)) return;
      const std::int64_t depth = p.k - k < kSumBlock ? p.k - k : kSumBlock;
      const Operand* const from = p.a + row * p.a_row + k * p.a_depth;
      if (p.a_depth != 1)
        steps_to_panels<V, kPanel>(from, p.a_depth, rows, depth, block, depth * kPanel);
      else if constexpr (TilesOf<V>::kPanels) rows_to_panels<V>(from, p.a_row, rows, depth, block);
      for_panels<kColumns>(
          {row, row + rows, range.column_begin, range.column_end}, rows,
          [&](const MatrixRange& panel) {
            const std::int64_t column = panel.column_begin;
            if constexpr (kRounds) {
              const SumsOfC<V> sums{kept + (at_once ? 0 : (column - range.column_begin) * kRows),
                                    kColumns};
              run_block<V>(p, panel, k, brought, b.at(k, column), sums);
              if (k + depth == p.k) round_panel<V>(p, panel, sums);
            } else {
              run_block<V>(p, panel, k, brought, b.at(k, column), sums_in_c<V>(p, panel));
            }
          });
      k += depth;
    } while (k < p.k);
  }
}

// A c of 16 bits: as many columns at a time as their sums are kept of.
template <class V>
[[gnu::noinline]] void run_rounded(const MatricesOf<V>& p, const MatrixRange& range) noexcept {
  for_panels<kKeptColumns<V>>(range, range.row_end - range.row_begin,
                              [&](const MatrixRange& part) { run_across<V, true>(p, part); });
}

// Few rows of a stay close while b passes by, if it is packed; else a panel of b, once packed,
// serves all rows.
template <class V>
void run_matrix(const MatricesOf<V>& p, const MatrixRange& range) noexcept {
  if (run_few_narrow<V>(p, range) || run_few<V>(p, range)) return;
  const std::int64_t all = range.row_end - range.row_begin;
  if constexpr (HasHalves<V, bf16>) {
    if (p.narrow_c != nullptr) return run_rounded<V>(p, range);
  }
  if (p.is_across() || (TilesOf<V>::kPanels && all >= kPanelRows<V>))
    return run_across<V, false>(p, range);
  const std::int64_t some =
      p.packed != nullptr && all > 2 * kPanelRows<V> ? 2 * kPanelRows<V> : all;
  PanelsOfB<V, 1> b(p, range);
  for_panels<kTileVectors<V> * V::kLanes>(range, some, [&](const MatrixRange& panel) {
    std::int64_t k = 0;
    do {  // at least once: an empty sum is 0
      if (stops_at(range, k)) return;
      run_block<V>(p, panel, k, {p.a + panel.row_begin * p.a_row + k, Layout::along, p.a_row},
                   b.at(k, panel.column_begin), sums_in_c<V>(p, panel));
      k += kSumBlock;
    } while (k < p.k);
  });
}

// A few steps of all panels, then the next: their rows stay close, and so do their pages.
template <class V>
void pack_matrix(const MatricesOf<V>& p, const RangeOfB& range, OperandOf<V>* packed) noexcept {
  constexpr std::int64_t kColumns = kTileVectors<V> * V::kLanes, kSteps = 64;
  for (std::int64_t k = range.k_begin; k < range.k_end; k += kSteps)
    pack_b<V, kColumns>(p, k, range.k_end - k < kSteps ? range.k_end - k : kSteps,
                        range.column_begin, range.column_end - range.column_begin,
                        packed + range.column_begin * p.k + k * kColumns, p.k * kColumns);
}

template <class V>
inline constexpr MatrixFunctions<OperandOf<V>> kMatrixFunctions{
    .columns = kTileVectors<V> * V::kLanes,
    .rows = TilesOf<V>::kPanels ? kAcrossRows<OperandOf<V>> : kEveryRow,
    .pack = pack_matrix<V>,
    .run = run_matrix<V>,
    .pack_narrow = pack_narrow<V>};

}  // namespace
}  // namespace attend
