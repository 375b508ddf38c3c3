// What BFDOT and BFMMLA of Arm compute (src/cpu/neon_bf16.h), in plain C++. To be called in the
// usual rounding mode.
#pragma once

#include <attend/dtype.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace attend::test {

// Subnormal numbers are taken as 0.
inline float without_subnormals(float x) {
  return std::abs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0F, x) : x;
}

// An exact result in 53 bits, its last one set where digits are missing, rounded to odd in 24: cut
// off, and the last bit set where something was lost. Below the least normal number it is 0, from
// 2^128 on infinite.
inline float rounded_to_odd(double exact) {
  if (std::isnan(exact)) return std::numeric_limits<float>::quiet_NaN();
  if (std::abs(exact) < std::numeric_limits<float>::min())
    return std::copysign(0.0F, static_cast<float>(exact));
  if (std::abs(exact) >= 0x1p128)
    return std::copysign(std::numeric_limits<float>::infinity(), static_cast<float>(exact));
  constexpr std::uint64_t kLost = (std::uint64_t{1} << 29) - 1;
  const auto bits = std::bit_cast<std::uint64_t>(exact);
  const auto cut = static_cast<float>(std::bit_cast<double>(bits & ~kLost));
  const std::uint32_t odd = (bits & kLost) != 0 ? 1 : 0;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(cut) | odd);
}

inline float odd_product(float a, float b) {  // of bf16 numbers: 16 bits, exact
  return rounded_to_odd(static_cast<double>(without_subnormals(a)) *
                        static_cast<double>(without_subnormals(b)));
}

inline float odd_sum(float x, float y) {
  const double a = without_subnormals(x), b = without_subnormals(y), sum = a + b;
  if (!std::isfinite(sum)) return rounded_to_odd(sum);
  const double of_b = sum - a, lost = (a - (sum - of_b)) + (b - of_b);
  auto bits = std::bit_cast<std::uint64_t>(sum);
  if (lost != 0 && bits % 2 == 0) bits += (lost > 0) == (sum > 0) ? 1 : std::uint64_t(-1);
  return rounded_to_odd(std::bit_cast<double>(bits));
}

// c + a . b of a pair.
inline float bfdot(float c, float a0, float b0, float a1, float b1) {
  return odd_sum(c, odd_sum(odd_product(a0, b0), odd_product(a1, b1)));
}

// The sum over any depth, after c: one chain of pairs. a(x) and b(x) are floats, 0 behind the last.
template <class A, class B>
float bfdot_chain(float c, std::int64_t begin, std::int64_t end, A a, B b) {
  for (std::int64_t x = begin; x < end; x += 2) {
    const bool pair = x + 1 < end;
    c = bfdot(c, a(x), b(x), pair ? a(x + 1) : 0, pair ? b(x + 1) : 0);
  }
  return c;
}

// Chains of `part` steps, added: 256 features of a score, 128 steps of a product.
template <class A, class B>
float bfdot_sum(std::int64_t depth, std::int64_t part, A a, B b) {
  float sum = bfdot_chain(0, 0, depth < part ? depth : part, a, b);
  for (std::int64_t x = part; x < depth; x += part)
    sum += bfdot_chain(0, x, depth - x < part ? depth : x + part, a, b);
  return sum;
}

}  // namespace attend::test
