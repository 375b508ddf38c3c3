// What the tiles of AMX compute (src/cpu/amx.h), and the sums that products are made of
// (src/cpu/pairs_gemm.h and amx_unit.h), in plain C++. To be called in the usual rounding mode.
#pragma once

#include <attend/dtype.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace attend::test {

inline constexpr float kLeastNormal = std::numeric_limits<float>::min();

// Subnormal numbers are taken as 0.
inline float taken(float x) { return std::abs(x) < kLeastNormal ? std::copysign(0.0F, x) : x; }

// And given as 0: those that are below the least normal number when they are rounded to 24 bits,
// however small. All of this is exact enough in f64: a product has 16 bits.
inline float given(double exact) {
  if (std::abs(exact) < kLeastNormal * (1 - 0x1p-25))
    return std::copysign(0.0F, static_cast<float>(exact));
  return static_cast<float>(exact);
}
inline float tile_fma(float a, float b, float sum) {
  const double product = static_cast<double>(taken(a)) * static_cast<double>(taken(b));
  if (std::abs(product + sum) < 2 * kLeastNormal) return given(product + sum);
  return std::fma(taken(a), taken(b), sum);
}
inline float tile_sum(float a, float b) {
  return given(static_cast<double>(taken(a)) + static_cast<double>(taken(b)));
}

// TDPBF16PS, one element of c: `steps` of its 32 are not 0. a(x) and b(x) are floats.
template <class A, class B>
float tile_product(float c, std::int64_t steps, A a, B b) {
  float chains[] = {0, 0};
  for (std::int64_t x = 0; x < steps; ++x) chains[x % 2] = tile_fma(a(x), b(x), chains[x % 2]);
  return tile_sum(c, tile_sum(chains[0], chains[1]));
}

// An element of a product of depth k before the bias is added: blocks of 2048 steps, of numbers in
// two parts 1024. a(x, part) and b(x, part): all products of parts are added.
template <class A, class B>
float tile_sum_of_products(std::int64_t k, int parts, A a, B b) {
  float total = 0;
  const std::int64_t steps = 2048 / parts;
  for (std::int64_t begin = 0; begin < k; begin += steps) {
    float block = 0;
    for (std::int64_t x = begin; x < std::min(begin + steps, k); x += 32)
      for (int both = 0; both < parts * parts; ++both)
        block = tile_product(
            block, std::min<std::int64_t>(32, k - x),
            [&](std::int64_t n) { return a(x + n, both % parts); },
            [&](std::int64_t n) { return b(x + n, both / parts); });
    total = begin == 0 ? block : total + block;
  }
  return total;
}

// The two bf16 numbers that a finite f16 number is the sum of.
inline float part_of(f16 x, int part) {
  const auto all = static_cast<float>(x), high = static_cast<float>(bf16(all));
  return part == 0 ? high : all - high;
}

// The bias is added in f32, and the result rounded once.
template <class E>
E tile_result(float sum) {
  return E(taken(sum));
}

}  // namespace attend::test
