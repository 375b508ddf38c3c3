// bf16 by VDPBF16PS: the instruction against its model in plain C++, and what
// support/row_products.h and support/bf16_row_attention.h ask of every such row.
#include "avx512_bf16/instructions.h"
#include "support/bf16_row_attention.h"
#include "support/row_products.h"
#include "support/vdpbf16_model.h"

#include <cfenv>
#include <cstring>

namespace attend::test {
namespace {

class Avx512Bf16 : public testing::Test {
 protected:
  void SetUp() override {
    if (!this_machine().avx512_bf16) GTEST_SKIP() << "this machine has no AVX512-BF16";
  }
};

void expect_model(const PairOperands& x, const std::string& what) {
  PairOperands made = x;
  vdpbf16ps(made);
  for (int n = 0; n < 16; ++n)
    ASSERT_PRED2(same, made.c[n],
                 vdpbf16(x.c[n], wide(x.a[2 * n]), wide(x.b[2 * n]), wide(x.a[2 * n + 1]),
                         wide(x.b[2 * n + 1])))
        << what;
}

TEST_F(Avx512Bf16, the_instruction_is_the_model) {
  for_ranges_of_numbers<PairOperands>(2000, expect_model);
}

TEST_F(Avx512Bf16, the_instruction_ignores_the_callers_rounding_mode) {
  for_ranges_of_numbers<PairOperands>(20, [](const PairOperands& x, const std::string& what) {
    PairOperands expected = x;
    vdpbf16ps(expected);
    for (const int mode : {FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO}) {
      PairOperands found = x;
      std::fesetround(mode);
      vdpbf16ps(found);
      std::fesetround(FE_TONEAREST);
      ASSERT_EQ(std::memcmp(found.c, expected.c, sizeof(found.c)), 0) << mode << ", " << what;
    }
  });
}

struct ByVdpbf16 {
  static constexpr const char *kForward = "cpu.avx512_bf16.forward",
                              *kBackward = "cpu.avx512_bf16.backward",
                              *kProduct = "cpu.avx512_bf16.product";
  using Element = bf16;
  static constexpr double kInexact = 1.25, kInexactLong = 1.25;
  static bool there() { return this_machine().avx512_bf16; }
  template <class A, class B>
  static float chain(float c, std::int64_t begin, std::int64_t end, A a, B b) {
    return vdpbf16_chain(c, begin, end, a, b);
  }
  template <class A, class B>
  static float sum_of_products(std::int64_t k, A a, B b) {
    return vdpbf16_sum_of_products(
        k, [&](std::int64_t x) { return wide(a(x)); }, [&](std::int64_t x) { return wide(b(x)); });
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Avx512Bf16, RowProducts, ByVdpbf16);
INSTANTIATE_TYPED_TEST_SUITE_P(Avx512Bf16, Bf16Attention, ByVdpbf16);

}  // namespace
}  // namespace attend::test
