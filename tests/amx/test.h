// What tests of AMX share.
#pragma once

#include "core/machine.h"

#include <attend/tensor.h>

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace attend::test {

class Amx : public testing::Test {
 protected:
  void SetUp() override {
    const Machine machine = this_machine();
    if (!machine.amx_bf16) GTEST_SKIP() << "this machine has no AMX with bf16";
    if (!machine.amx_permitted) GTEST_SKIP() << "the operating system refuses the tiles of AMX";
  }
};

inline bool same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// Numbers of all sizes from 2^-10 to 4, so that sums round at every step.
template <class E>
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

}  // namespace attend::test
