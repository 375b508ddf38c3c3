// The instructions of Arm that multiply bf16 (FEAT_BF16): matrices of 2 x 2 sums in one vector.
//
//   multiply(c, a, b)    BFMMLA: c[m][n] += a[m][0..3] . b[n][0..3], of two rows m and two rows n
//   dot<pair>(c, a, b)   BFDOT: c[n] += a[n][0..1] . b[pair][0..1], of four n
//
//           b: two rows of 4 steps           4 steps are two pairs, one after the other:
//            +---------+---------+             c += a0 b0 + a1 b1
//    a:      |         |         |             c += a2 b2 + a3 b3
//    +-------+---------+---------+           so BFMMLA is two of BFDOT, and a sum over any depth is
//    | row 0 | c[0][0] | c[0][1] |           one chain of pairs, whichever of them makes it.
//    | row 1 | c[1][0] | c[1][1] |
//    +-------+---------+---------+
//
// The products, their sum and what is added to c are each rounded to odd (an inexact result's last
// bit is 1; beyond the largest number it is infinite); subnormal numbers are taken and given as 0,
// whatever the caller's modes are; no exceptions. (tests/support/bfdot_model.h has it in plain
// C++.)
//
// A Neoverse V1 does four of either in a cycle, in the units that have all other vectors to do,
// too.
#pragma once

#include "cpu/neon.h"

namespace attend {
namespace {

// Their bits, but where instructions take and give them: clang 14 has none that bring elements of
// bfloat16x8_t into another order, and is kept from trying.
using Bf16x8 = uint16x8_t;

ATTEND_INLINE Bf16x8 as_bits(Bf16x8 a) {
#ifdef __clang__
  asm("" : "+w"(a));
#endif
  return a;
}
ATTEND_INLINE bfloat16x8_t as_bf16(Bf16x8 a) { return vreinterpretq_bf16_u16(as_bits(a)); }

ATTEND_INLINE void multiply(F32& c, Bf16x8 a, Bf16x8 b) {
  c.v = vbfmmlaq_f32(c.v, as_bf16(a), as_bf16(b));
}
template <int kPair>
ATTEND_INLINE void dot(F32& c, Bf16x8 a, Bf16x8 b) {
  c.v = vbfdotq_laneq_f32(c.v, as_bf16(a), as_bf16(b), kPair);
}

ATTEND_INLINE Bf16x8 load_bf16(const bf16* from) { return vld1q_u16(&from->bits); }
// The first `count` of them, 0 behind these.
ATTEND_INLINE Bf16x8 load_bf16(const bf16* from, std::int64_t count) {
  if (count >= 8) return load_bf16(from);
  bf16 some[8] = {};
  for (std::int64_t x = 0; x < count; ++x) some[x] = from[x];
  return load_bf16(some);
}
// Eight whole numbers: all their digits are in the upper halves.
ATTEND_INLINE Bf16x8 widened_bf16(const std::int8_t* from) {
  const int16x8_t wider = vmovl_s8(vld1_s8(from));
  const float32x4_t low = vcvtq_f32_s32(vmovl_s16(vget_low_s16(wider))),
                    high = vcvtq_f32_s32(vmovl_high_s16(wider));
  return vuzp2q_u16(vreinterpretq_u16_f32(low), vreinterpretq_u16_f32(high));
}
// Four of each of two rows.
ATTEND_INLINE Bf16x8 load_halves(const bf16* low, const bf16* high) {
  return vcombine_u16(vld1_u16(&low->bits), vld1_u16(&high->bits));
}
// What is read from p is read after the sums were computed: an order for the compiler, which would
// else have more operands in registers than there is room for.
ATTEND_INLINE void after(const bf16*& p, F32 a, F32 b, F32 c, F32 d) {
  asm("" : "+r"(p) : "w"(a.v), "w"(b.v), "w"(c.v), "w"(d.v));
}

// sum[rows][columns] += a b, of pairs of rows and of columns, their operands of 4 steps side by
// side.
template <int kRows, int kColumns>
ATTEND_INLINE void multiply(const bf16*& a, const bf16*& b, std::int64_t steps,
                            F32 (&sum)[kRows][kColumns]) {
  for (; steps > 0; steps -= 4) {
    Bf16x8 rows[kRows];
    unrolled<kRows>(ATTEND_EACH(r) { rows[r] = load_bf16(a + r * 8); });
    unrolled<kColumns>(ATTEND_EACH(c) {
      const Bf16x8 column = load_bf16(b + c * 8);
      unrolled<kRows>(ATTEND_EACH(r) { multiply(sum[r][c], rows[r], column); });
      if constexpr (kRows == 4) {
        after(a, sum[0][c], sum[1][c], sum[2][c], sum[3][c]);
        after(b, sum[0][c], sum[1][c], sum[2][c], sum[3][c]);
      }
    });
    a += kRows * 8;
    b += kColumns * 8;
  }
}

ATTEND_INLINE void store_bf16(Bf16x8 v, bf16* to) { vst1q_u16(&to->bits, v); }

// Rounded as the caller's mode says; in the lower half.
ATTEND_INLINE Bf16x8 rounded(F32 a) {
  return as_bits(vreinterpretq_u16_bf16(vcvtq_low_bf16_f32(a.v)));
}
ATTEND_INLINE Bf16x8 rounded(F32 a, F32 b) {  // in both halves
  return as_bits(vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(a.v), b.v)));
}

// The lower or the upper halves of two vectors side by side.
ATTEND_INLINE F32 lower(F32 a, F32 b) {
  return {
      vreinterpretq_f32_f64(vzip1q_f64(vreinterpretq_f64_f32(a.v), vreinterpretq_f64_f32(b.v)))};
}
ATTEND_INLINE F32 upper(F32 a, F32 b) {
  return {
      vreinterpretq_f32_f64(vzip2q_f64(vreinterpretq_f64_f32(a.v), vreinterpretq_f64_f32(b.v)))};
}
ATTEND_INLINE Bf16x8 lower(Bf16x8 a, Bf16x8 b) {
  return vreinterpretq_u16_u64(vzip1q_u64(vreinterpretq_u64_u16(a), vreinterpretq_u64_u16(b)));
}
ATTEND_INLINE Bf16x8 upper(Bf16x8 a, Bf16x8 b) {
  return vreinterpretq_u16_u64(vzip2q_u64(vreinterpretq_u64_u16(a), vreinterpretq_u64_u16(b)));
}

// Elements of a and b by turns: pairs, of the lower halves (0) or the upper (1).
template <int kHalf>
ATTEND_INLINE Bf16x8 paired(Bf16x8 a, Bf16x8 b) {
  return kHalf == 0 ? vzip1q_u16(a, b) : vzip2q_u16(a, b);
}
// Pairs of a and b by turns.
template <int kHalf>
ATTEND_INLINE Bf16x8 fours(Bf16x8 a, Bf16x8 b) {
  const uint32x4_t x = vreinterpretq_u32_u16(a), y = vreinterpretq_u32_u16(b);
  return vreinterpretq_u16_u32(kHalf == 0 ? vzip1q_u32(x, y) : vzip2q_u32(x, y));
}
// And back: the first (0) or the second (1) pairs of fours.
template <int kPair>
ATTEND_INLINE Bf16x8 pairs_of(Bf16x8 a, Bf16x8 b) {
  const uint32x4_t x = vreinterpretq_u32_u16(a), y = vreinterpretq_u32_u16(b);
  return vreinterpretq_u16_u32(kPair == 0 ? vuzp1q_u32(x, y) : vuzp2q_u32(x, y));
}

}  // namespace
}  // namespace attend
