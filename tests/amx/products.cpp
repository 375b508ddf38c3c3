// Products by the tiles of AMX against sums of the model, bit for bit: of bf16 and f16 numbers as
// they are, and of f16 numbers in two parts.
#include "amx/test.h"

#include "layer/matmul.h"
#include "support/amx_model.h"
#include "support/io_files.h"
#include "support/layer_numbers.h"
#include "support/property_memory.h"

#include <cfenv>
#include <limits>
#include <string>

namespace attend::test {
namespace {

struct Bf16 {
  using Element = bf16;
  static constexpr const char* kKernel = "product:cpu.amx.product";
  static constexpr int kParts = 1;
};
struct F16InParts {
  using Element = f16;
  static constexpr const char* kKernel = "product:cpu.amx.product";
  static constexpr int kParts = 2;
};
struct F16 {
  using Element = f16;
  static constexpr const char* kKernel = "product:cpu.amx_fp16.product";
  static constexpr int kParts = 1;
};

template <class Row>
class AmxProducts : public Amx {
 protected:
  using Number = typename Row::Element;
  static constexpr DType kType = dtype_of<Number>();

  void SetUp() override {
    if (std::is_same_v<Row, F16> && !this_machine().amx_fp16)
      GTEST_SKIP() << "this machine has no AMX with f16";
    Amx::SetUp();
  }
  static Context context(int threads = 1) {
    return Context({.threads = threads, .kernels = Row::kKernel});
  }
  static float number(const ConstTensorView& t, const Shape& index) {
    return static_cast<float>(t.at<Number>(index));
  }
  static float part(const ConstTensorView& t, const Shape& index, int n) {
    if constexpr (Row::kParts == 2) return part_of(t.at<Number>(index), n);
    else return number(t, index);
  }
};
using Rows = testing::Types<Bf16, F16InParts, F16>;
TYPED_TEST_SUITE(AmxProducts, Rows);

// Rows, columns and depths around the tiles and the blocks of 2048 steps; a and b both ways, b
// packed or not, each against a page that nobody may touch.
TYPED_TEST(AmxProducts, are_the_models_sums) {
  using E = typename TypeParam::Element;
  Context context = this->context();
  constexpr std::int64_t kRows[] = {1, 2, 15, 16, 17, 31, 32, 33, 64, 65};
  constexpr std::int64_t kColumns[] = {32, 1, 16, 31, 64, 17, 33, 96, 15, 47};
  constexpr std::int64_t kDepths[] = {1,   2,   31,  32,   33,   64,   100,
                                      255, 256, 300, 1025, 2048, 2049, 4130};
  const auto expect_sums = [&](const ConstTensorView& a, const ConstTensorView& b,
                               const ConstTensorView& bias, const ConstTensorView& c) {
    for (std::int64_t i = 0; i < c.size(0); ++i)
      for (std::int64_t j = 0; j < c.size(1); ++j) {
        float sum = tile_sum_of_products(
            a.size(1), TypeParam::kParts,
            [&](std::int64_t k, int n) {
              return this->part(a, {i, k}, n);
            },
            [&](std::int64_t k, int n) {
              return this->part(b, {k, j}, n);
            });
        sum += this->number(bias, {j});
        ASSERT_PRED2(same, this->number(c, {i, j}), static_cast<float>(tile_result<E>(sum)))
            << c.shape() << " k " << a.size(1) << " at " << i << ", " << j;
      }
  };
  int at = 0;
  for (const std::int64_t k : kDepths)
    for (int n = 0; n < (k > 1000 ? 4 : 10); ++n, ++at) {
      const std::int64_t rows = kRows[(at + n) % 10], columns = kColumns[at % 10];
      GuardedMemory memory(at % 2 == 0 ? GuardedMemory::Side::behind : GuardedMemory::Side::before);
      const auto guarded = [&](const Tensor& x) { return memory.place(x); };
      const TensorView a = guarded(rough<E>({rows, k}, 1)), b = guarded(rough<E>({k, columns}, 2)),
                       bias = guarded(rough<E>({columns}, 3)),
                       across = guarded(Tensor::copy_of(a.permute({1, 0}))),
                       bt = guarded(Tensor::copy_of(b.permute({1, 0})));
      const PackedWeights ready =
          packed(bt.permute({1, 0}), product_row(this->kType, true, context), context);
      const Tensor empty({rows, columns}, this->kType);
      const TensorView c[] = {guarded(empty), guarded(empty), guarded(empty),
                              guarded(empty), guarded(empty), guarded(empty)};
      const Multiplication list[] = {{a, b, bias, c[0]},
                                     {a, bt.permute({1, 0}), bias, c[1]},
                                     {across.permute({1, 0}), b, bias, c[2]},
                                     {across.permute({1, 0}), bt.permute({1, 0}), bias, c[3]},
                                     {a, b, bias, c[4], &ready},
                                     {across.permute({1, 0}), b, bias, c[5], &ready}};
      matmul(list, context);
      expect_sums(a, b, bias, c[0]);
      for (const TensorView& made : c) ASSERT_EQ(difference(made, c[0]), "") << rows << " " << k;
      if (this->HasFailure()) return;
    }
}

// Contract 1. The second half of the terms is minus the first, in another order: the truth is 0,
// and what comes out is what rounding made of the sums. The others' are chains of 256 steps.
TYPED_TEST(AmxProducts, sums_are_at_least_as_exact_as_chains_of_256) {
  using E = typename TypeParam::Element;
  Context tiles = this->context(), chains({.threads = 1, .kernels = "product:cpu.generic.product"});
  constexpr std::int64_t kRows = 100, kColumns = 100;
  for (const std::int64_t half : {32, 128, 500, 1024, 3000}) {
    Tensor a = rough<E>({kRows, 2 * half}, 1), b = rough<E>({2 * half, kColumns}, 2);
    for (std::int64_t x = 0; x < half; ++x) {
      const std::int64_t minus = half + (x * 7 + 3) % half;
      for (std::int64_t i = 0; i < kRows; ++i) a.at<E>({i, minus}) = a.at<E>({i, x});
      for (std::int64_t j = 0; j < kColumns; ++j)
        b.at<E>({minus, j}).bits = b.at<E>({x, j}).bits ^ 0x8000;
    }
    const auto error = [&](Context& context) {
      Tensor c({kRows, kColumns}, this->kType);
      matmul(a, b, {}, c, context);
      double squares = 0, largest = 0;
      for (std::int64_t n = 0; n < c.count(); ++n) {
        const double off = std::abs(static_cast<float>(c.data<E>()[n]));
        squares += off * off;
        largest = std::max(largest, off);
      }
      return std::pair(std::sqrt(squares / (kRows * kColumns)), largest);
    };
    const auto found = error(tiles), textbook = error(chains);
    EXPECT_GT(textbook.first, 0) << half;
    EXPECT_LE(found.first, textbook.first) << half;
    EXPECT_LE(found.second, textbook.second) << half;
  }
}

// With one thread and with three: rows, columns and blocks of the depth in tasks of their own.
TYPED_TEST(AmxProducts, have_the_same_bits_for_rows_alone_and_any_threads) {
  using E = typename TypeParam::Element;
  Context one = this->context(), three = this->context(3);
  const Tensor a = rough<E>({300, 2100}, 1), b = rough<E>({2100, 290}, 2);
  const ConstTensorView across = b.view().permute({1, 0});
  Tensor c({300, 290}, this->kType), other({300, 290}, this->kType);
  matmul(a, b, {}, c, one);
  matmul(a, b, {}, other, three);
  EXPECT_EQ(difference(other, c), "");
  for (const std::int64_t i : {0, 31, 32, 255, 256, 299}) {
    Tensor row({1, 290}, this->kType);
    matmul(a.view().slice(0, i, i + 1), b, {}, row, one);
    EXPECT_EQ(difference(row, Tensor::copy_of(c.view().slice(0, i, i + 1))), "") << i;
  }
  if (TypeParam::kParts == 2) return;  // whose sums know which of their factors is a
  Tensor turned({290, 300}, this->kType);
  matmul(across, a.view().permute({1, 0}), {}, turned, three);
  EXPECT_EQ(difference(Tensor::copy_of(turned.view().permute({1, 0})), c), "");
}

// NaN and infinities stay in their own row and column, whatever is missing of the tiles beside
// them; those of b too. An infinity times a number is one, though its low part may be 0; times 0,
// or beside an infinity of the other sign, it is NaN. In every form in which a and b are read.
TYPED_TEST(AmxProducts, have_nan_and_infinity_in_their_own_row_and_column) {
  using E = typename TypeParam::Element;
  Context context = this->context();
  const E nan(std::numeric_limits<float>::quiet_NaN()), inf(HUGE_VALF), minus(-HUGE_VALF);
  for (const std::int64_t k : {7, 40, 300}) {
    Tensor a = rough<E>({20, k}, 1), b = rough<E>({k, 37}, 2);
    a.at<E>({4, 3}) = E(1.0F), b.at<E>({3, 9}) = E(-2.0F);
    Tensor before({20, 37}, this->kType);
    matmul(a, b, {}, before, context);
    a.at<E>({3, k - 1}) = nan;
    a.at<E>({5, 0}) = inf;
    a.at<E>({6, 0}) = inf, a.at<E>({6, 5}) = minus;
    a.at<E>({7, 2}) = minus, b.at<E>({2, 11}) = E(0.0F);
    b.at<E>({1, 36}) = nan;
    b.at<E>({3, 9}) = inf;
    const Tensor bt = Tensor::copy_of(b.view().permute({1, 0})),
                 across = Tensor::copy_of(a.view().permute({1, 0}));
    const PackedWeights ready = packed(b, product_row(this->kType, false, context), context);
    Tensor c[] = {Tensor({20, 37}, this->kType), Tensor({20, 37}, this->kType),
                  Tensor({20, 37}, this->kType), Tensor({20, 37}, this->kType)};
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
            truth += static_cast<double>(this->number(a, {i, x})) *
                     static_cast<double>(this->number(b, {x, j}));
          const float found = this->number(after, {i, j});
          if (!std::isfinite(truth)) {
            ASSERT_PRED2(same, found, static_cast<float>(truth)) << i << " " << j << " k " << k;
          } else if (i != 7 && j != 11) {
            ASSERT_EQ(found, this->number(before, {i, j})) << i << " " << j << " k " << k;
          }
        }
  }
}

TYPED_TEST(AmxProducts, a_product_ignores_the_callers_rounding_mode) {
  using E = typename TypeParam::Element;
  Context context = this->context();
  const Tensor a = rough<E>({5, 2100}, 1), b = rough<E>({2100, 40}, 2), bias = rough<E>({40}, 3);
  Tensor expected({5, 40}, this->kType);
  matmul(a, b, bias, expected, context);
  for (const int mode : {FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO}) {
    Tensor found({5, 40}, this->kType);
    std::fesetround(mode);
    matmul(a, b, bias, found, context);
    std::fesetround(FE_TONEAREST);
    EXPECT_EQ(difference(found, expected), "") << mode;
  }
}

// Those of bf16 and f32, that is: subnormal f16 numbers are numbers as others are.
TYPED_TEST(AmxProducts, subnormal_numbers_are_zero) {
  using E = typename TypeParam::Element;
  Context context = this->context();
  Tensor a({1, 1}, this->kType), b({1, 1}, this->kType), bias({1}, this->kType);
  Tensor c({1, 1}, this->kType);
  const auto product = [&](float x, float y, float z) {
    *a.template data<E>() = E(x);
    *b.template data<E>() = E(y);
    *bias.template data<E>() = E(z);
    matmul(a, b, bias, c, context);
    return static_cast<float>(*c.template data<E>());
  };
  if constexpr (std::is_same_v<E, bf16>) {
    EXPECT_EQ(product(0x1p-127F, 0x1p23F, 0), 0) << "as a factor";
    EXPECT_EQ(product(0x1p-126F, 0x1p-1F, 0), 0) << "half of the least normal number";
    EXPECT_EQ(product(0x1p-126F, 1, 0), kLeastNormal);
    EXPECT_EQ(product(0, 1, 0x1p-127F), 0) << "a bias";
  } else {
    EXPECT_EQ(product(0x1.4p-22F, 0x1.8p10F, 0), 0x1.ep-12F) << "as a factor";
    EXPECT_EQ(product(0x1p-12F, 0x1.4p-10F, 0), 0x1.4p-22F) << "as a result";
    EXPECT_EQ(product(0x1p-24F, 0x1p-24F, 0), 0) << "below the least of them";
    EXPECT_EQ(product(0, 1, 0x1p-24F), 0x1p-24F) << "a bias";
    EXPECT_EQ(product(65504, 2, 0), HUGE_VALF) << "beyond the largest number";
    EXPECT_EQ(product(0x1.ffcp15F, 0x1.554p-2F, 0),
              static_cast<float>(E(0x1.ffcp15F * 0x1.554p-2F)))
        << "all 11 bits";
  }
}

}  // namespace
}  // namespace attend::test
