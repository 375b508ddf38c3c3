// Products of a Row (bf16_row.h) against sums of its model, bit for bit.
#pragma once

#include "layer/matmul.h"
#include "support/bf16_row.h"
#include "support/io_files.h"
#include "support/property_memory.h"

#include <cfenv>
#include <limits>

namespace attend::test {

template <class Row>
class RowProducts : public Bf16Row<Row> {};
TYPED_TEST_SUITE_P(RowProducts);

// Rows, columns and depths around the tiles, the chains and the blocks of 1024 and 2048 steps; a
// and b both ways, b packed or not, each against a page that nobody may touch.
TYPED_TEST_P(RowProducts, every_product_is_the_models_sum) {
  using E = typename TypeParam::Element;
  Context context = by_row<TypeParam>();
  constexpr std::int64_t kRows[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 25, 31, 32, 33, 64, 65};
  constexpr std::int64_t kColumns[] = {12, 1, 32, 11, 24, 33, 5, 36, 8, 31, 16, 47, 64, 17, 96, 15};
  constexpr std::int64_t kDepths[] = {1,   2,   7,   8,   9,   31,  32,   33,   64,   100,
                                      128, 129, 255, 256, 257, 300, 1025, 2048, 2049, 4130};
  int at = 0;
  for (const std::int64_t k : kDepths)
    for (int n = 0; n < (k > 1000 ? 3 : 10); ++n, ++at) {
      const std::int64_t rows = kRows[(at + n) % 17], columns = kColumns[at % 16];
      GuardedMemory memory(at % 2 == 0 ? GuardedMemory::Side::behind : GuardedMemory::Side::before);
      const auto guarded = [&](const Tensor& x) { return memory.place(x); };
      const TensorView a = guarded(rough<E>({rows, k}, 1)), b = guarded(rough<E>({k, columns}, 2)),
                       bias = guarded(rough<E>({columns}, 3)),
                       across = guarded(Tensor::copy_of(a.permute({1, 0}))),
                       bt = guarded(Tensor::copy_of(b.permute({1, 0})));
      const PackedWeights ready =
          packed(bt.permute({1, 0}), product_row(dtype_of<E>(), true, context), context);
      const Tensor empty({rows, columns}, dtype_of<E>());
      const TensorView c[6] = {guarded(empty), guarded(empty), guarded(empty),
                               guarded(empty), guarded(empty), guarded(empty)};
      const Multiplication list[] = {{a, b, bias, c[0]},
                                     {a, bt.permute({1, 0}), bias, c[1]},
                                     {across.permute({1, 0}), b, bias, c[2]},
                                     {across.permute({1, 0}), bt.permute({1, 0}), bias, c[3]},
                                     {a, b, bias, c[4], &ready},
                                     {across.permute({1, 0}), b, bias, c[5], &ready}};
      matmul(list, context);
      for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t j = 0; j < columns; ++j) {
          const float sum = TypeParam::sum_of_products(
                                k,
                                [&](std::int64_t x) {
                                  return a.at<E>({i, x});
                                },
                                [&](std::int64_t x) {
                                  return b.at<E>({x, j});
                                }) +
                            wide(bias.at<E>({j}));
          ASSERT_PRED2(same, wide(c[0].at<E>({i, j})), wide(E(sum)))
              << rows << " x " << columns << " of " << k << " at " << i << ", " << j;
        }
      for (const TensorView& made : c) ASSERT_EQ(difference(made, c[0]), "") << rows << " " << k;
    }
}

// Contract 1. The second half of the terms is minus the first, in another order: the truth is 0,
// and what comes out is what rounding made of the sums.
TYPED_TEST_P(RowProducts, sums_are_nearly_as_exact_as_chains_of_256) {
  using E = typename TypeParam::Element;
  Context found_by = by_row<TypeParam>(),
          chains({.threads = 1, .kernels = "product:cpu.generic.product"});
  constexpr std::int64_t kRows = 100, kColumns = 100, kChain = 256;
  for (const std::int64_t half : {32, 128, 500, 1024, 3000}) {
    Tensor a = rough<E>({kRows, 2 * half}, 1), b = rough<E>({2 * half, kColumns}, 2);
    for (std::int64_t x = 0; x < half; ++x) {
      const std::int64_t minus = half + (x * 7 + 3) % half;
      for (std::int64_t i = 0; i < kRows; ++i) a.at<E>({i, minus}) = a.at<E>({i, x});
      for (std::int64_t j = 0; j < kColumns; ++j)
        b.at<E>({minus, j}).bits = b.at<E>({x, j}).bits ^ 0x8000;
    }
    const auto error = [&](Context& context) {
      Tensor c({kRows, kColumns}, dtype_of<E>());
      matmul(a, b, {}, c, context);
      double squares = 0;
      for (std::int64_t n = 0; n < c.count(); ++n) {
        const double off = std::abs(wide(c.data<E>()[n]));
        squares += off * off;
      }
      return std::sqrt(squares / (kRows * kColumns));
    };
    const double found = error(found_by), textbook = error(chains);
    EXPECT_GT(textbook, 0) << half;
    EXPECT_LE(found, (half < kChain ? TypeParam::kInexact : TypeParam::kInexactLong) * textbook)
        << half;
  }
}

// With one thread and with three: rows, columns and blocks of the depth in tasks of their own.
TYPED_TEST_P(RowProducts, rows_of_products_alone_and_threads_change_no_bit) {
  using E = typename TypeParam::Element;
  Context one = by_row<TypeParam>(), three = by_row<TypeParam>(3);
  const Tensor a = rough<E>({300, 2100}, 1), b = rough<E>({2100, 290}, 2);
  Tensor c({300, 290}, dtype_of<E>()), other({300, 290}, dtype_of<E>());
  matmul(a, b, {}, c, one);
  matmul(a, b, {}, other, three);
  EXPECT_EQ(difference(other, c), "");
  for (const std::int64_t i : {0, 7, 8, 31, 32, 255, 256, 299}) {
    Tensor row({1, 290}, dtype_of<E>());
    matmul(a.view().slice(0, i, i + 1), b, {}, row, one);
    EXPECT_EQ(difference(row, Tensor::copy_of(c.view().slice(0, i, i + 1))), "") << i;
  }
}

// NaN and infinities stay in their own row and column, whatever is missing of the tiles beside
// them; those of b too. An infinity times a number is one, though its low part may be 0; times 0,
// or beside an infinity of the other sign, it is NaN. In every form in which a and b are read.
TYPED_TEST_P(RowProducts, nan_and_infinity_reach_their_own_row_and_column) {
  using E = typename TypeParam::Element;
  Context context = by_row<TypeParam>();
  const E nan(std::numeric_limits<float>::quiet_NaN()), inf(HUGE_VALF), minus(-HUGE_VALF);
  for (const std::int64_t k : {7, 40, 300}) {
    Tensor a = rough<E>({20, k}, 1), b = rough<E>({k, 37}, 2);
    a.at<E>({4, 3}) = E(1.0F), b.at<E>({3, 9}) = E(-2.0F);
    Tensor before({20, 37}, dtype_of<E>());
    matmul(a, b, {}, before, context);
    a.at<E>({3, k - 1}) = nan;
    a.at<E>({5, 0}) = inf;
    a.at<E>({6, 0}) = inf, a.at<E>({6, 5}) = minus;
    a.at<E>({7, 2}) = minus, b.at<E>({2, 11}) = E(0.0F);
    b.at<E>({1, 36}) = nan;
    b.at<E>({3, 9}) = inf;
    const Tensor bt = Tensor::copy_of(b.view().permute({1, 0})),
                 across = Tensor::copy_of(a.view().permute({1, 0}));
    const PackedWeights ready = packed(b, product_row(dtype_of<E>(), false, context), context);
    Tensor c[] = {Tensor({20, 37}, dtype_of<E>()), Tensor({20, 37}, dtype_of<E>()),
                  Tensor({20, 37}, dtype_of<E>()), Tensor({20, 37}, dtype_of<E>())};
    const Multiplication list[] = {{a, b, {}, c[0]},
                                   {a, bt.view().permute({1, 0}), {}, c[1]},
                                   {across.view().permute({1, 0}), b, {}, c[2]},
                                   {a, b, {}, c[3], &ready}};
    matmul(list, context);
    for (const Tensor& after : c)
      for (std::int64_t i = 0; i < 20; ++i)
        for (std::int64_t j = 0; j < 37; ++j) {
          double truth = 0;  // f64 has no other infinities
          for (std::int64_t x = 0; x < k; ++x)
            truth += static_cast<double>(wide(a.at<E>({i, x}))) *
                     static_cast<double>(wide(b.at<E>({x, j})));
          const float found = wide(after.at<E>({i, j}));
          if (!std::isfinite(truth)) {
            ASSERT_PRED2(same, found, static_cast<float>(truth)) << i << " " << j << " k " << k;
          } else if (i != 7 && j != 11) {
            ASSERT_EQ(found, wide(before.at<E>({i, j}))) << i << " " << j << " k " << k;
          }
        }
  }
}

TYPED_TEST_P(RowProducts, a_product_ignores_the_callers_rounding_mode) {
  using E = typename TypeParam::Element;
  Context context = by_row<TypeParam>();
  const Tensor a = rough<E>({5, 2100}, 1), b = rough<E>({2100, 40}, 2), bias = rough<E>({40}, 3);
  Tensor expected({5, 40}, dtype_of<E>());
  matmul(a, b, bias, expected, context);
  for (const int mode : {FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO}) {
    Tensor found({5, 40}, dtype_of<E>());
    std::fesetround(mode);
    matmul(a, b, bias, found, context);
    std::fesetround(FE_TONEAREST);
    EXPECT_EQ(difference(found, expected), "") << mode;
  }
}

REGISTER_TYPED_TEST_SUITE_P(RowProducts, every_product_is_the_models_sum,
                            sums_are_nearly_as_exact_as_chains_of_256,
                            rows_of_products_alone_and_threads_change_no_bit,
                            nan_and_infinity_reach_their_own_row_and_column,
                            a_product_ignores_the_callers_rounding_mode);

}  // namespace attend::test
