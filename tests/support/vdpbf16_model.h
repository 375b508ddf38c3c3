// What VDPBF16PS computes (src/cpu/avx512_bf16.h), in plain C++. To be called in the usual rounding
// mode.
#pragma once

#include "support/amx_model.h"

namespace attend::test {

// c + a . b of a pair: two fused multiply-adds, of the odd step first.
inline float vdpbf16(float c, float a0, float b0, float a1, float b1) {
  return tile_fma(a0, b0, tile_fma(a1, b1, taken(c)));
}

// The sum over any depth, after c: one chain of pairs. a(x) and b(x) are floats, 0 behind the last.
template <class A, class B>
float vdpbf16_chain(float c, std::int64_t begin, std::int64_t end, A a, B b) {
  for (std::int64_t x = begin; x < end; x += 2) {
    const bool pair = x + 1 < end;
    c = vdpbf16(c, a(x), b(x), pair ? a(x + 1) : 0, pair ? b(x + 1) : 0);
  }
  return c;
}

// Of products: chains of 256 steps, added in blocks of 2048, which are added.
template <class A, class B>
float vdpbf16_sum_of_products(std::int64_t k, A a, B b) {
  float total = 0;
  for (std::int64_t block = 0; block < k; block += 2048) {
    float sum = 0;
    for (std::int64_t x = block; x < std::min(block + 2048, k); x += 256)
      sum += vdpbf16_chain(0, x, std::min(x + 256, k), a, b);
    total += sum;
  }
  return total;
}

}  // namespace attend::test
