// Products of few rows with a b that is not packed, and is not worth packing: that costs as much as
// a dozen rows.
//
//    turned, where b's columns lie along the depth    in place, where its rows lie side by side
//
//              a, in lanes: [depth][rows]                      b  [depth][columns]
//              +---+                                           +-------------+
//              | = | k                                       k | =========== |
//      b  k    +---+                            a  k           +-------------+
//      +-----+ +---+                           +-----+         +-------------+
//      | === | |   | c, turned back            | === |         |      c      |  as wide as the
//      +-----+ +---+ when it is stored         +-----+         +-------------+  registers hold
//
// The sums are the same to the bit: each is one ascending chain, and x y is y x (but for which of
// two NaN it is). A b of bf16 or f16 is read as it lies, too: turned, a few columns at a time are
// widened into the nearest cache, an instruction or two for 16 elements, which are multiplied by 16
// instructions or more (AVX-512); in place, as gemm_narrow.h does.
#pragma once

#include "cpu/gemm_narrow.h"
#include "cpu/pack.h"

namespace attend {
namespace {

// At most so many rows: 48 kB of them lie in the L1 or L2 cache while b passes by.
template <class T>
inline constexpr std::int64_t kTurnedRows = (48 << 10) / kSumBlock /
                                            static_cast<std::int64_t>(sizeof(T));

template <class V>
inline constexpr std::int64_t kInPlaceRows = TilesOf<V>::rows(kWidestVectors<V>, false);

// to[n * apart + x] = from[n * stride + x], widened, for columns that lie along the depth. While it
// does so it asks for those that come next.
template <class V, class E>
void widen_columns(const E* from, std::int64_t stride, std::int64_t columns, std::int64_t depth,
                   OperandOf<V>* to, std::int64_t apart) noexcept {
  constexpr std::int64_t kLine = 64 / sizeof(E);
  for (std::int64_t n = 0; n < columns; ++n, from += stride, to += apart) {
    for (std::int64_t x = 0; x < depth; x += kLine) prefetch(from + columns * stride + x);
    convert_elements<V>(from, 1, depth, to);
  }
}

template <class V, class E>
[[gnu::noinline]] void run_turned(const MatricesOf<V>& p, const E* b,
                                  const MatrixRange& range) noexcept {
  using Operand = OperandOf<V>;
  using Sum = SumOf<V>;
  constexpr bool kWidened = !std::is_same_v<E, Operand>;
  constexpr std::int64_t kColumns = 24;  // whole tiles, whatever their shape
  constexpr std::int64_t kApart = kSumBlock + 64 / sizeof(Operand);  // not all in the same sets
  alignas(64) Operand widened_b[kWidened ? kColumns * kApart : 1];
  alignas(64) Operand lanes_of_a[kSumBlock * kTurnedRows<Operand>];
  const Operand* some[kTurnedRows<Operand>];
  const std::int64_t rows = range.row_end - range.row_begin;
  const std::int64_t lanes = (rows + V::kLanes - 1) / V::kLanes * V::kLanes;
  std::int64_t k = 0;
  do {  // at least once: an empty sum is 0
    const std::int64_t depth = p.k - k < kSumBlock ? p.k - k : kSumBlock;
    for (std::int64_t r = 0; r < rows; ++r) some[r] = p.a + (range.row_begin + r) * p.a_row + k;
    rows_to_operand<V>(some, rows, depth, lanes_of_a, lanes);
    const Sum* const bias = k + depth == p.k ? p.bias : nullptr;
    for (std::int64_t n = range.column_begin; n < range.column_end; n += kColumns) {
      const std::int64_t columns =
          range.column_end - n < kColumns ? range.column_end - n : kColumns;
      const Operand* columns_of_b = widened_b;
      if constexpr (kWidened)
        widen_columns<V>(b + n * p.b_column + k, p.b_column, columns, depth, widened_b, kApart);
      else columns_of_b = b + n * p.b_column + k;
      std::int64_t r = 0;
      const auto take = [&]<int kVectors, Layout kLayout>() {
        Sum* const c = p.c + (range.row_begin + r) * p.c_row;
        const Operands<V> x{.a = columns_of_b,
                            .a_stride = kWidened ? kApart : p.b_column,
                            .b = lanes_of_a + r * TilesOf<V>::kDepth,
                            .b_stride = lanes,
                            .c = c + n,
                            .c_stride = 1,
                            .depth = depth};
        product<V, kVectors, kLayout>(x, columns, AddTurned<V>{k == 0, bias, c, p.c_row, rows - r});
        r += kVectors * V::kLanes;
      };
      const auto take_some = [&]<Layout kLayout>() {
        const std::int64_t vectors = (lanes - r) / V::kLanes;
        const bool two = vectors == 2 || vectors == 4;
        // NOLINTBEGIN(bugprone-branch-clone): of some instruction sets they are the same
        if (vectors == 1) take.template operator()<1, kLayout>();
        else if (two) take.template operator()<2, kLayout>();
        else take.template operator()<kTileVectors<V>, kLayout>();
        // NOLINTEND(bugprone-branch-clone)
      };
      take_some.template operator()<kWidened ? Layout::along : Layout::streamed>();
      while (r < lanes) take_some.template operator()<Layout::along>();
    }
    k += depth;
  } while (k < p.k);
}

// A row or a few (AVX-512: up to 4, else 2); columns in whole vectors, no bias.
template <class V, class E>
void run_narrow_in_place(const MatricesOf<V>& p, const E* b, const MatrixRange& range) noexcept {
  std::int64_t k = 0;
  do {  // at least once: an empty sum is 0
    const std::int64_t depth = p.k - k < kSumBlock ? p.k - k : kSumBlock;
    std::int64_t column = range.column_begin;
    const auto take = [&]<int kVectors>() {
      for (; range.column_end - column >= kVectors * V::kLanes; column += kVectors * V::kLanes) {
        const auto rows = [&]<int kRows>(std::int64_t row) {
          const Operands<V> x{.a = p.a + row * p.a_row + k,
                              .a_stride = p.a_row,
                              .b = nullptr,
                              .b_stride = p.b_depth,
                              .c = p.c + row * p.c_row + column,
                              .c_stride = p.c_row,
                              .depth = depth};
          tile_of_narrow<V, E, kRows, kVectors, false>(
              x, b + k * p.b_depth + column, AddToC<V>{k == 0, nullptr, kVectors * V::kLanes});
        };
        std::int64_t row = range.row_begin;
        if constexpr (kInPlaceRows<V> >= 4)
          for (; range.row_end - row >= 4; row += 4) rows.template operator()<4>(row);
        for (; range.row_end - row >= 2; row += 2) rows.template operator()<2>(row);
        if (row < range.row_end) rows.template operator()<1>(row);
      }
    };
    take.template operator()<4>();
    take.template operator()<1>();
    k += depth;
  } while (k < p.k);
}
template <class V>
void run_in_place(const MatricesOf<V>& p, const MatrixRange& range) noexcept {
  constexpr std::int64_t kRows = kInPlaceRows<V>;
  alignas(64) OperandOf<V> lanes_of_a[kSumBlock * kRows];
  const std::int64_t rows = range.row_end - range.row_begin, column = range.column_begin;
  std::int64_t k = 0;
  do {  // at least once: an empty sum is 0
    const std::int64_t depth = p.k - k < kSumBlock ? p.k - k : kSumBlock;
    for (std::int64_t x = 0; x < depth; ++x)
      for (std::int64_t r = 0; r < rows; ++r)
        lanes_of_a[x * kRows + r] = p.a[(range.row_begin + r) * p.a_row + k + x];
    const Operands<V> x{.a = lanes_of_a,
                        .a_stride = kRows,
                        .b = p.b + k * p.b_depth + column,
                        .b_stride = p.b_depth,
                        .c = p.c + range.row_begin * p.c_row + column,
                        .c_stride = p.c_row,
                        .depth = depth};
    product_of_features<V>(x, static_cast<int>(rows), (range.column_end - column) / V::kLanes,
                           AddToC<V>{k == 0, nullptr, range.column_end - column});
    k += depth;
  } while (k < p.k);
}

// Whether it was one of these. Not of 8 bits, whose scales it has not.
template <class V>
bool run_few(const MatricesOf<V>& p, const MatrixRange& range) noexcept {
  const std::int64_t rows = range.row_end - range.row_begin;
  const std::int64_t columns = range.column_end - range.column_begin;
  if (p.packed != nullptr || p.packed_narrow != nullptr || p.is_across()) return false;
  const bool turned = p.b_depth == 1 && rows <= kTurnedRows<OperandOf<V>>;
  const bool in_place =
      p.b_column == 1 && rows <= kInPlaceRows<V> && columns % V::kLanes == 0 && p.bias == nullptr;
  return with_b<V>(p, [&]<class E>(const E* b) {
    if constexpr (std::is_integral_v<E>) {
      return false;
    } else {
      if (turned) run_turned<V>(p, b, range);
      else if (!in_place) return false;
      else if constexpr (std::is_same_v<E, OperandOf<V>>) run_in_place<V>(p, range);
      else run_narrow_in_place<V>(p, b, range);
      return true;
    }
  });
}

}  // namespace
}  // namespace attend
