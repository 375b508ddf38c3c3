// Random numbers for test data, the same on every machine: each is a pure function of (seed,
// stream, index) in integer arithmetic, and the one rounding that follows is IEEE's. The standard
// library's distributions are not portable, and log or cos of libm may differ in the last bit.
#pragma once

#include <cstdint>

namespace attend::cases {

class Random {
 public:
  Random(std::uint64_t seed, std::uint64_t stream) noexcept
      : key_(mix(mix(seed) + 0xd1342543de82ef95u * (stream + 1))) {}

  std::uint64_t bits(std::uint64_t index) const noexcept {
    return mix(key_ + 0x9e3779b97f4a7c15u * (index + 1));
  }

  // In [0, n); n > 0. The bias of the modulus is far below what test data could notice.
  std::int64_t below(std::int64_t n, std::uint64_t index) const noexcept {
    return static_cast<std::int64_t>((bits(index) >> 1) % static_cast<std::uint64_t>(n));
  }

  bool chance(double p, std::uint64_t index) const noexcept { return uniform(index) < p; }

  // In [0, 1).
  double uniform(std::uint64_t index) const noexcept {
    return static_cast<double>(bits(index) >> 11) * 0x1p-53;
  }

  // Mean 0, variance 1, within +-4.9: the sum of eight uniform 16-bit numbers.
  double gaussian(std::uint64_t index) const noexcept {
    std::int64_t sum = 0;
    for (std::uint64_t half = 0; half < 2; ++half) {
      const std::uint64_t word = bits(2 * index + half);
      for (int shift = 0; shift < 64; shift += 16)
        sum += static_cast<std::int64_t>((word >> shift) & 0xffff);
    }
    constexpr std::int64_t kMean = 4 * 65535;
    constexpr double kUnit = 1.224744871391589 / 65536;  // sqrt(12 / 8), per step
    return static_cast<double>(sum - kMean) * kUnit;
  }

 private:
  // The finalizer of splitmix64: a bijection in which every input bit reaches every output bit.
  static std::uint64_t mix(std::uint64_t x) noexcept {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }

  std::uint64_t key_;
};

}  // namespace attend::cases
