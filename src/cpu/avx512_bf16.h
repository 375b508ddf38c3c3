// VDPBF16PS of AVX512-BF16: sums of 16 lanes, two steps of bf16 at a time.
//
//   add_pairs(a, b, sum)     sum[n] += a[n][1] b[n][1], then += a[n][0] b[n][0]
//
//                   b: pairs of steps side by side, [16 lanes][2]
//                   +----------------+
//     a: one pair   |                |       One ascending chain of fused multiply-adds, but for
//     for all lanes +----------------+       the two of a pair: the odd step comes first.
//     +--+          +----------------+
//     |  |          | sum            |
//     +--+          +----------------+
//
// Rounded to nearest, subnormal bf16 and f32 taken and given as 0, whatever the caller's modes are;
// no exceptions. (tests/support/vdpbf16_model.h has it in plain C++.)
//
// It is for processors where it does twice what a multiply-add of f32 does (Zen 4 and 5). Those of
// Intel that have AMX make four micro-operations of it, one instruction in two cycles: half of what
// f32 does (docs/decisions/029-avx512-bf16.md).
#pragma once

#include "cpu/avx512.h"

#include <cstring>

namespace attend {
namespace {

ATTEND_INLINE F32 load_pairs(const bf16* from) { return {_mm512_loadu_ps(from)}; }
ATTEND_INLINE F32 broadcast_pair(const bf16* from) {
  int pair = 0;
  std::memcpy(&pair, from, sizeof pair);
  return {_mm512_castsi512_ps(_mm512_set1_epi32(pair))};
}

// In place, as add_product() of avx512.h is.
ATTEND_INLINE void add_pairs(F32 a, F32 b, F32& sum) {
  asm("vdpbf16ps %1, %2, %0" : "+v"(sum.v) : "v"(a.v), "v"(b.v));
}

// Pairs of kRows rows, `stride` apart, the next pair of each beside it (along); or of rows that
// stand side by side, the next pairs `stride` behind them. A pointer for every two rows, which the
// compiler is kept from seeing through: as Elements of product.h.
template <bool kAlong, int kRows>
class PairsOfRows {
  static constexpr int kCount = kAlong ? (kRows + 1) / 2 : 1;
  const bf16* at_[kCount];
  const std::int64_t stride_;

 public:
  ATTEND_INLINE PairsOfRows(const bf16* a, std::int64_t stride) : stride_(stride) {
    unrolled<kCount>(ATTEND_EACH(n) { at_[n] = a + 2 * n * stride; });
  }
  template <int kRow>
  ATTEND_INLINE const bf16* at() const {
    return kAlong ? at_[kRow / 2] + kRow % 2 * stride_ : at_[0] + 2 * kRow;
  }
  ATTEND_INLINE void advance() {
    unrolled<kCount>(ATTEND_EACH(n) {
      at_[n] += kAlong ? 2 : stride_;
      asm("" : "+r"(at_[n]));
    });
  }
};

// sum[kRows][kVectors] += a b, over so many pairs of steps. b has a vector of pairs every
// `b_stride` elements, its second vector of lanes `b_vector` behind the first.
template <bool kAlong, int kRows, int kVectors>
ATTEND_INLINE void multiply(const bf16* a, std::int64_t a_stride, const bf16* b,
                            std::int64_t b_stride, std::int64_t b_vector, std::int64_t pairs,
                            F32 (&sum)[kRows][kVectors]) {
  PairsOfRows<kAlong, kRows> rows(a, a_stride);
  for (; pairs > 0; --pairs, b += b_stride) {
    F32 lanes[kVectors];
    unrolled<kVectors>(ATTEND_EACH(n) { lanes[n] = load_pairs(b + n * b_vector); });
    unrolled<kRows>(ATTEND_EACH(r) {
      const F32 pair = broadcast_pair(rows.template at<r>());
      unrolled<kVectors>(ATTEND_EACH(n) { add_pairs(pair, lanes[n], sum[r][n]); });
    });
    rows.advance();
  }
}

}  // namespace
}  // namespace attend
