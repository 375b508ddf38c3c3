// Products of a Row (bf16_row.h) against sums of its model, bit for bit.
#pragma once

#include "layer/matmul.h"
#include "support/bf16_row.h"
#include "support/io_files.h"
#include "support/property_memory.h"

namespace attend::test {

template <class Row>
class Bf16Products : public Bf16Row<Row> {};
TYPED_TEST_SUITE_P(Bf16Products);

// Rows, columns and depths around the tiles, the chains and the blocks of 2048 steps; a and b both
// ways, b packed or not, each against a page that nobody may touch.
TYPED_TEST_P(Bf16Products, every_product_is_the_models_sum) {
  Context context = by_row<TypeParam>();
  constexpr std::int64_t kRows[] = {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 25, 32, 33, 65};
  constexpr std::int64_t kColumns[] = {12, 1, 32, 11, 24, 33, 5, 36, 8, 31, 16, 47, 64};
  constexpr std::int64_t kDepths[] = {1,   2,   7,   8,   9,   32,   33,   100, 128,
                                      129, 255, 256, 257, 300, 2048, 2049, 4130};
  int at = 0;
  for (const std::int64_t k : kDepths)
    for (int n = 0; n < (k > 1000 ? 2 : 10); ++n, ++at) {
      const std::int64_t rows = kRows[(at + n) % 14], columns = kColumns[at % 13];
      GuardedMemory memory(at % 2 == 0 ? GuardedMemory::Side::behind : GuardedMemory::Side::before);
      const auto guarded = [&](const Tensor& x) { return memory.place(x); };
      const TensorView a = guarded(rough({rows, k}, 1)), b = guarded(rough({k, columns}, 2)),
                       bias = guarded(rough({columns}, 3)),
                       across = guarded(Tensor::copy_of(a.permute({1, 0}))),
                       bt = guarded(Tensor::copy_of(b.permute({1, 0})));
      const PackedWeights ready =
          packed(bt.permute({1, 0}), product_row(DType::bf16, true, context), context);
      const Tensor empty({rows, columns}, DType::bf16);
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
                                  return wide(a.at<bf16>({i, x}));
                                },
                                [&](std::int64_t x) {
                                  return wide(b.at<bf16>({x, j}));
                                }) +
                            wide(bias.at<bf16>({j}));
          ASSERT_PRED2(same, wide(c[0].at<bf16>({i, j})), wide(bf16(sum)))
              << rows << " x " << columns << " of " << k << " at " << i << ", " << j;
        }
      for (const TensorView& made : c) ASSERT_EQ(difference(made, c[0]), "") << rows << " " << k;
    }
}

// Contract 1. The second half of the terms is minus the first, in another order: the truth is 0,
// and what comes out is what rounding made of the sums. Chains that round to odd, which loses twice
// as much as to nearest, are shorter, but short sums are one chain whatever they are made by.
TYPED_TEST_P(Bf16Products, sums_are_at_most_twice_as_inexact_as_chains_of_256) {
  Context pairs = by_row<TypeParam>(),
          chains({.threads = 1, .kernels = "product:cpu.generic.product"});
  constexpr std::int64_t kRows = 40, kColumns = 40, kChain = 256;
  for (const std::int64_t half : {32, 128, 500, 1024}) {
    Tensor a = rough({kRows, 2 * half}, 1), b = rough({2 * half, kColumns}, 2);
    for (std::int64_t x = 0; x < half; ++x) {
      const std::int64_t minus = half + (x * 7 + 3) % half;
      for (std::int64_t i = 0; i < kRows; ++i) a.at<bf16>({i, minus}) = a.at<bf16>({i, x});
      for (std::int64_t j = 0; j < kColumns; ++j)
        b.at<bf16>({minus, j}).bits = b.at<bf16>({x, j}).bits ^ 0x8000;
    }
    const auto error = [&](Context& context) {
      Tensor c({kRows, kColumns}, DType::bf16);
      matmul(a, b, {}, c, context);
      double squares = 0;
      for (std::int64_t n = 0; n < c.count(); ++n) {
        const double off = std::abs(wide(c.data<bf16>()[n]));
        squares += off * off;
      }
      return std::sqrt(squares / (kRows * kColumns));
    };
    const double found = error(pairs), textbook = error(chains);
    EXPECT_GT(textbook, 0) << half;
    EXPECT_LE(found, (half < kChain ? TypeParam::kInexact : 1.25) * textbook) << half;
  }
}

TYPED_TEST_P(Bf16Products, rows_of_products_alone_and_threads_change_no_bit) {
  Context one = by_row<TypeParam>(), three = by_row<TypeParam>(3);
  const Tensor a = rough({70, 2100}, 1), b = rough({2100, 90}, 2);
  Tensor c({70, 90}, DType::bf16), other({70, 90}, DType::bf16);
  matmul(a, b, {}, c, one);
  matmul(a, b, {}, other, three);
  EXPECT_EQ(difference(other, c), "");
  for (const std::int64_t i : {0, 7, 8, 63, 69}) {
    Tensor row({1, 90}, DType::bf16);
    matmul(a.view().slice(0, i, i + 1), b, {}, row, one);
    EXPECT_EQ(difference(row, Tensor::copy_of(c.view().slice(0, i, i + 1))), "") << i;
  }
}

// NaN and infinities stay in their own row and column, whatever is missing of the tiles beside
// them.
TYPED_TEST_P(Bf16Products, nan_and_infinity_reach_their_own_row_and_column) {
  Context context = by_row<TypeParam>();
  for (const std::int64_t k : {7, 40}) {
    Tensor a = rough({13, k}, 1), b = rough({k, 17}, 2);
    Tensor before({13, 17}, DType::bf16), after({13, 17}, DType::bf16);
    matmul(a, b, {}, before, context);
    a.at<bf16>({3, k - 1}).bits = 0x7FC0;
    a.at<bf16>({5, 0}).bits = 0x7F80;
    b.at<bf16>({1, 16}).bits = 0x7FC0;
    matmul(a, b, {}, after, context);
    for (std::int64_t i = 0; i < 13; ++i)
      for (std::int64_t j = 0; j < 17; ++j) {
        const float found = wide(after.at<bf16>({i, j}));
        if (i == 3 || j == 16) EXPECT_TRUE(std::isnan(found)) << i << " " << j;
        else if (i == 5) EXPECT_TRUE(std::isinf(found)) << j;
        else EXPECT_EQ(after.at<bf16>({i, j}), before.at<bf16>({i, j})) << i << " " << j;
      }
  }
}

REGISTER_TYPED_TEST_SUITE_P(Bf16Products, every_product_is_the_models_sum,
                            sums_are_at_most_twice_as_inexact_as_chains_of_256,
                            rows_of_products_alone_and_threads_change_no_bit,
                            nan_and_infinity_reach_their_own_row_and_column);

}  // namespace attend::test
