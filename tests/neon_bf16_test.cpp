// bf16 by BFMMLA and BFDOT: the instructions against their model in plain C++, and what
// support/row_products.h and support/bf16_row_attention.h ask of every such row.
#include "neon_bf16/instructions.h"
#include "support/bf16_row_attention.h"
#include "support/bfdot_model.h"
#include "support/row_products.h"

#include <cfenv>
#include <cstring>

namespace attend::test {
namespace {

class NeonBf16 : public testing::Test {
 protected:
  void SetUp() override {
    if (!this_machine().neon_bf16) GTEST_SKIP() << "this machine has no BFMMLA";
  }
};

void expect_model(const Bf16Operands& x, const std::string& what) {
  Bf16Operands made = x;
  bfmmla(made);
  for (int m = 0; m < 2; ++m)
    for (int n = 0; n < 2; ++n) {
      const float expected = bfdot_chain(
          x.c[2 * m + n], 0, 4, [&](std::int64_t k) { return wide(x.a[4 * m + k]); },
          [&](std::int64_t k) { return wide(x.b[4 * n + k]); });
      ASSERT_PRED2(same, made.c[2 * m + n], expected) << "BFMMLA, " << what;
    }
  for (int pair = 0; pair < 4; ++pair) {
    made = x;
    bfdot(made, pair);
    for (int n = 0; n < 4; ++n) {
      const float expected = bfdot_chain(
          x.c[n], 0, 2, [&](std::int64_t k) { return wide(x.a[2 * n + k]); },
          [&](std::int64_t k) { return wide(x.b[2 * pair + k]); });
      ASSERT_PRED2(same, made.c[n], expected) << "BFDOT, " << what;
    }
  }
}

TEST_F(NeonBf16, the_instructions_are_the_model) {
  for_ranges_of_numbers<Bf16Operands>(2000, expect_model);
}

TEST_F(NeonBf16, the_instructions_ignore_the_callers_rounding_mode) {
  for_ranges_of_numbers<Bf16Operands>(20, [](const Bf16Operands& x, const std::string& what) {
    Bf16Operands expected = x;
    bfmmla(expected);
    for (const int mode : {FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO}) {
      Bf16Operands found = x;
      std::fesetround(mode);
      bfmmla(found);
      std::fesetround(FE_TONEAREST);
      ASSERT_EQ(std::memcmp(found.c, expected.c, sizeof(found.c)), 0) << mode << ", " << what;
    }
  });
}

struct ByBfmmla {
  static constexpr const char *kForward = "cpu.neon_bf16.forward",
                              *kBackward = "cpu.neon_bf16.backward",
                              *kProduct = "cpu.neon_bf16.product";
  using Element = bf16;
  static constexpr double kInexact = 2, kInexactLong = 1.25;
  static bool there() { return this_machine().neon_bf16; }
  template <class A, class B>
  static float chain(float c, std::int64_t begin, std::int64_t end, A a, B b) {
    return bfdot_chain(c, begin, end, a, b);
  }
  template <class A, class B>
  static float sum_of_products(std::int64_t k, A a, B b) {
    return bfdot_sum(
        k, 128, [&](std::int64_t x) { return wide(a(x)); },
        [&](std::int64_t x) { return wide(b(x)); });
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(NeonBf16, RowProducts, ByBfmmla);
INSTANTIATE_TYPED_TEST_SUITE_P(NeonBf16, Bf16Attention, ByBfmmla);

}  // namespace
}  // namespace attend::test
