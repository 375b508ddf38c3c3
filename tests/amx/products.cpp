// Products by the tiles of AMX: what support/row_products.h asks of every row, of bf16 and f16
// numbers as they are and of f16 numbers in two parts.
#include "amx/test.h"
#include "support/amx_model.h"
#include "support/row_products.h"

namespace attend::test {
namespace {

struct ByTiles {
  static constexpr const char* kForward = "cpu.amx.forward";
  static constexpr double kInexact = 1, kInexactLong = 1;
};
template <class E>
struct AsTheyAre : ByTiles {
  using Element = E;
  static constexpr bool kF16 = std::is_same_v<E, f16>;
  static constexpr const char* kProduct = kF16 ? "cpu.amx_fp16.product" : "cpu.amx.product";
  static bool there() {
    const Machine machine = this_machine();
    return machine.amx_permitted && (!kF16 || machine.amx_fp16);
  }
  template <class A, class B>
  static float sum_of_products(std::int64_t k, A a, B b) {
    return tile_sum_of_products(
        k, 1, [&](std::int64_t x, int) { return wide(a(x)); },
        [&](std::int64_t x, int) { return wide(b(x)); });
  }
};
struct InParts : ByTiles {
  using Element = f16;
  static constexpr const char* kProduct = "cpu.amx.product";
  static bool there() { return this_machine().amx_permitted; }
  template <class A, class B>
  static float sum_of_products(std::int64_t k, A a, B b) {
    return tile_sum_of_products(
        k, 2, [&](std::int64_t x, int part) { return part_of(a(x), part); },
        [&](std::int64_t x, int part) { return part_of(b(x), part); });
  }
};
using Rows = testing::Types<AsTheyAre<bf16>, AsTheyAre<f16>, InParts>;
INSTANTIATE_TYPED_TEST_SUITE_P(Amx, RowProducts, Rows);

template <class Row>
class AmxProducts : public Bf16Row<Row> {};
TYPED_TEST_SUITE(AmxProducts, Rows);

// Those of bf16 and f32, that is: subnormal f16 numbers are numbers as others are.
TYPED_TEST(AmxProducts, subnormal_numbers_are_zero) {
  using E = typename TypeParam::Element;
  Context context = by_row<TypeParam>();
  Tensor a({1, 1}, dtype_of<E>()), b({1, 1}, dtype_of<E>()), bias({1}, dtype_of<E>());
  Tensor c({1, 1}, dtype_of<E>());
  const auto product = [&](float x, float y, float z) {
    *a.data<E>() = E(x);
    *b.data<E>() = E(y);
    *bias.data<E>() = E(z);
    matmul(a, b, bias, c, context);
    return static_cast<float>(*c.data<E>());
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
