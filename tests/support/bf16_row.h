// Rows that multiply 16 bits as they are, and numbers for their tests: row_products.h and
// bf16_row_attention.h have what each of them must pass. A Row has
//
//   Element                      what its products multiply
//   kForward, kBackward,
//   kProduct                     the names of its rows
//   there()                      whether this machine has its instructions
//   chain(c, begin, end, a, b)   the model: c and the products of a(x) and b(x), added up in pairs
//   sum_of_products(k, a, b)     an element of a product, before the bias; a(x), b(x): Elements
//   kInexact, kInexactLong       how much less exact its products may be than chains of 256 fused
//                                multiply-adds: those of one chain, and longer ones
#pragma once

#include "core/machine.h"

#include <attend/context.h>
#include <attend/tensor.h>

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <string>
#include <type_traits>

namespace attend::test {

inline bool same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }
template <class E>
float wide(E x) {
  return static_cast<float>(x);
}

// Numbers whose exponents lie in a range; those below `share` of 256 are special instead.
inline std::uint16_t number_of_range(std::mt19937& random, int lowest, int highest,
                                     unsigned share) {
  constexpr std::uint16_t kSpecial[] = {0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC1,
                                        0x0001, 0x807F, 0x7F7F, 0x0080};
  if (random() % 256 < share) return kSpecial[random() % 9];
  const auto exponent = static_cast<std::uint32_t>(
      127 + lowest + static_cast<int>(random() % static_cast<unsigned>(highest - lowest + 1)));
  return static_cast<std::uint16_t>(random() % 2 << 15 | exponent << 7 | random() % 128);
}

// Of an array of any rank.
template <class Array, class Use>
void for_elements(Array& x, Use use) {
  if constexpr (std::is_array_v<Array>)
    for (auto& part : x) for_elements(part, use);
  else use(x);
}

// Calls expect(operands, what) for operands {c, a, b} of many ranges of numbers, until it fails.
template <class Operands, class Expect>
void for_ranges_of_numbers(int times, Expect expect) {
  struct Range {
    int lowest, highest;
    unsigned share;
    const char* what;
  };
  constexpr Range kRanges[] = {{-3, 0, 0, "plain numbers"},
                               {-12, 12, 0, "numbers of any size"},
                               {-30, 30, 0, "numbers of very different sizes"},
                               {60, 127, 0, "large numbers"},
                               {-70, -56, 0, "products at the least normal number"},
                               {-64, -62, 0, "and beside it"},
                               {-126, -100, 40, "numbers that vanish"},
                               {-20, 20, 3, "a few that are special"},
                               {-126, 127, 60, "anything"}};
  for (const Range& range : kRanges) {
    std::mt19937 random(7);
    const auto number = [&] {
      return number_of_range(random, range.lowest, range.highest, range.share);
    };
    for (int n = 0; n < times; ++n) {
      Operands x;
      for_elements(x.a, [&](bf16& element) { element.bits = number(); });
      for_elements(x.b, [&](bf16& element) { element.bits = number(); });
      for_elements(x.c, [&](float& element) {
        element =
            std::bit_cast<float>(static_cast<std::uint32_t>(number() << 16 | random() % 65536));
      });
      expect(x, range.what);
      if (testing::Test::HasFailure()) return;
    }
  }
}

template <class Row>
Context by_row(int threads = 1) {
  return Context(
      {.threads = threads,
       .kernels = std::string("product:") + Row::kProduct + ",forward:" + Row::kForward});
}

// Numbers of all sizes from 2^-10 to 4, so that sums round at every step.
template <class E = bf16>
Tensor rough(const Shape& shape, unsigned seed) {
  constexpr bool kF16 = std::is_same_v<E, f16>;
  constexpr unsigned kBits = kF16 ? 10 : 7, kBias = kF16 ? 15 : 127;
  std::mt19937 random(seed);
  Tensor tensor(shape, dtype_of<E>());
  for (std::int64_t n = 0; n < tensor.count(); ++n) {
    const auto exponent = static_cast<std::uint32_t>(kBias - 10 + random() % 12);
    tensor.data<E>()[n].bits = static_cast<std::uint16_t>(random() % 2 << 15 | exponent << kBits |
                                                          random() % (1U << kBits));
  }
  return tensor;
}

template <class Row>
class Bf16Row : public testing::Test {
 protected:
  void SetUp() override {
    if (!Row::there()) GTEST_SKIP() << "this machine has no instructions for " << Row::kForward;
  }
};

}  // namespace attend::test
