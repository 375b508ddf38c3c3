// The vectors of NEON (Advanced SIMD): four floats or two doubles, thirty-two registers.
#pragma once

#include "cpu/tiles.h"

#include <arm_neon.h>

#include <cstring>

namespace attend {
namespace {

struct F64 {
  using T = double;
  using RegisterTiles = NeonTiles<T>;
  using Mask = uint64x2_t;
  using Double = F64;
  static constexpr int kLanes = 2, kDoubles = 1;
  static constexpr double kLowestPower = -1022;
  static constexpr bool kByLane = true;
  static constexpr bool kFused = true;
  float64x2_t v;

  static F64 load(const double* p) { return {vld1q_f64(p)}; }
  static F64 load_first(const double* p, std::int64_t n) {
    double lanes[2] = {};
    for (std::int64_t x = 0; x < n; ++x) lanes[x] = p[x];
    return load(lanes);
  }
  template <class From>
  static F64 pieces(From p) {
    return load(p(At<0>{}));
  }
  static F64 set(double x) { return {vdupq_n_f64(x)}; }
  static F64 narrowed(const F64* doubles) { return doubles[0]; }
  void store(double* p) const { vst1q_f64(p, v); }
  void store_first(double* p, std::int64_t n) const {
    double lanes[2];
    store(lanes);
    for (std::int64_t x = 0; x < n; ++x) p[x] = lanes[x];
  }
};
inline F64 operator+(F64 a, F64 b) { return {vaddq_f64(a.v, b.v)}; }
inline F64 operator-(F64 a, F64 b) { return {vsubq_f64(a.v, b.v)}; }
inline F64 operator*(F64 a, F64 b) { return {vmulq_f64(a.v, b.v)}; }
inline F64 operator/(F64 a, F64 b) { return {vdivq_f64(a.v, b.v)}; }
inline F64 fma(F64 a, F64 b, F64 c) { return {vfmaq_f64(c.v, a.v, b.v)}; }
template <int kLane>
inline F64 fma_lane(F64 a, F64 b, F64 c) {
  return {vfmaq_laneq_f64(c.v, b.v, a.v, kLane)};
}
// What is read from p is read after the sum was computed: an order for the compiler.
inline void after(const double*& p, F64 sum) { asm("" : "+r"(p) : "w"(sum.v)); }
inline F64 larger(F64 a, F64 b) { return {vmaxq_f64(a.v, b.v)}; }
inline F64 ceiling(F64 a) { return {vrndpq_f64(a.v)}; }
inline F64 scaled(F64 a, F64 n) {
  return {vmulq_f64(a.v, vreinterpretq_f64_s64(vshlq_n_s64(vreinterpretq_s64_f64(n.v), 52)))};
}
inline F64::Mask less(F64 a, F64 b) { return vcltq_f64(a.v, b.v); }
inline F64 select(F64::Mask m, F64 a, F64 b) { return {vbslq_f64(m, a.v, b.v)}; }
inline bool all_finite(F64 a) {
  const float64x2_t zero = vsubq_f64(a.v, a.v);
  const uint64x2_t same = vceqq_f64(zero, zero);
  return (vgetq_lane_u64(same, 0) & vgetq_lane_u64(same, 1)) != 0;
}
template <int kIndex>
inline F64 wide(F64 a) {
  return a;
}

struct F32 {
  using T = float;
  using RegisterTiles = NeonTiles<T>;
  using Mask = uint32x4_t;
  using Double = F64;
  static constexpr int kLanes = 4, kDoubles = 2;
  static constexpr float kLowestPower = -126;
  static constexpr bool kByLane = true;
  static constexpr bool kFused = true;
  float32x4_t v;

  static F32 load(const float* p) { return {vld1q_f32(p)}; }
  static F32 load_first(const float* p, std::int64_t n) {
    float lanes[4] = {};
    for (std::int64_t x = 0; x < n; ++x) lanes[x] = p[x];
    return load(lanes);
  }
  template <class From>
  static F32 pieces(From p) {
    return load(p(At<0>{}));
  }
  static F32 set(float x) { return {vdupq_n_f32(x)}; }
  static F32 narrowed(const F64* doubles) {
    return {vcvt_high_f32_f64(vcvt_f32_f64(doubles[0].v), doubles[1].v)};
  }
  static F32 odd(const F64* doubles) {
    return {vcvtx_high_f32_f64(vcvtx_f32_f64(doubles[0].v), doubles[1].v)};
  }
  static F32 widened(const bf16* p) {
    return {vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(&p->bits), 16))};
  }
  static F32 widened(const f16* p) {
    return {vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&p->bits)))};
  }
  static F32 widened(const std::int8_t* p) {
    std::uint32_t four = 0;
    std::memcpy(&four, p, sizeof four);
    const int16x8_t wider = vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(four)));
    return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(wider)))};
  }
  static void load_pairs(const bf16* p, F32& even, F32& odd) {
    const uint32x4_t both = vreinterpretq_u32_u16(vld1q_u16(&p->bits));
    even.v = vreinterpretq_f32_u32(vshlq_n_u32(both, 16));
    odd.v = vreinterpretq_f32_u32(vandq_u32(both, vdupq_n_u32(0xFFFF0000)));
  }
  void rounded(bf16* p) const {
    const uint32x4_t bits = vreinterpretq_u32_f32(v),
                     last = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t up = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7FFF)), last);
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    vst1_u16(&p->bits, vshrn_n_u32(vbslq_u32(vceqq_f32(v, v), up, quiet), 16));
  }
  void rounded(f16* p) const {
    const uint32x4_t bits = vreinterpretq_u32_f32(v);
    const uint32x4_t nan =
        vorrq_u32(vandq_u32(bits, vdupq_n_u32(0x80000000)), vdupq_n_u32(0x7FC00000));
    const float32x4_t plain = vbslq_f32(vceqq_f32(v, v), v, vreinterpretq_f32_u32(nan));
    vst1_u16(&p->bits, vreinterpret_u16_f16(vcvt_f16_f32(plain)));
  }
  void store(float* p) const { vst1q_f32(p, v); }
  void store_first(float* p, std::int64_t n) const {
    float lanes[4];
    store(lanes);
    for (std::int64_t x = 0; x < n; ++x) p[x] = lanes[x];
  }
};
inline F32 operator+(F32 a, F32 b) { return {vaddq_f32(a.v, b.v)}; }
inline F32 operator-(F32 a, F32 b) { return {vsubq_f32(a.v, b.v)}; }
inline F32 operator*(F32 a, F32 b) { return {vmulq_f32(a.v, b.v)}; }
inline F32 operator/(F32 a, F32 b) { return {vdivq_f32(a.v, b.v)}; }
inline F32 fma(F32 a, F32 b, F32 c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
template <int kLane>
inline F32 fma_lane(F32 a, F32 b, F32 c) {
  return {vfmaq_laneq_f32(c.v, b.v, a.v, kLane)};
}
// A number as the last bits of 2^23 + 128 + n, from which that is taken: exact, in any rounding
// mode, and by instructions of which a Neoverse N1 begins two a cycle; SCVTF takes two cycles each.
template <int kCount>
requires(kCount % 4 == 0) ATTEND_INLINE
    void load_narrow(const std::int8_t* from, F32 (&to)[kCount]) {
  const float32x4_t base = vdupq_n_f32(0x1p23F + 128);
  const uint16x8_t exponent = vdupq_n_u16(0x4B00);
  unrolled<kCount / 4>(ATTEND_EACH(n) {
    const uint8x16_t bytes =
        veorq_u8(vreinterpretq_u8_s8(vld1q_s8(from + n * 16)), vdupq_n_u8(0x80));
    const uint16x8_t half[] = {vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes)};
    unrolled<2>(ATTEND_EACH(h) {
      to[4 * n + 2 * h] = {vsubq_f32(vreinterpretq_f32_u16(vzip1q_u16(half[h], exponent)), base)};
      to[4 * n + 2 * h + 1] = {
          vsubq_f32(vreinterpretq_f32_u16(vzip2q_u16(half[h], exponent)), base)};
    });
  });
}
template <int kCount>
requires(kCount % 2 == 0) ATTEND_INLINE void load_narrow(const f16* from, F32 (&to)[kCount]) {
  unrolled<kCount / 2>(ATTEND_EACH(n) {
    const float16x8_t halves = vreinterpretq_f16_u16(vld1q_u16(&from[n * 8].bits));
    to[2 * n] = {vcvt_f32_f16(vget_low_f16(halves))};
    to[2 * n + 1] = {vcvt_high_f32_f16(halves)};
  });
}
inline void after(const float*& p, F32 sum) { asm("" : "+r"(p) : "w"(sum.v)); }
inline F32 larger(F32 a, F32 b) { return {vmaxq_f32(a.v, b.v)}; }
inline F32 ceiling(F32 a) { return {vrndpq_f32(a.v)}; }
inline F32 scaled(F32 a, F32 n) {
  return {vmulq_f32(a.v, vreinterpretq_f32_s32(vshlq_n_s32(vreinterpretq_s32_f32(n.v), 23)))};
}
inline F32::Mask less(F32 a, F32 b) { return vcltq_f32(a.v, b.v); }
inline F32 select(F32::Mask m, F32 a, F32 b) { return {vbslq_f32(m, a.v, b.v)}; }
template <class E>
class Rounder {
  using Of = Doubt<E>;
  static uint16x8_t all(std::uint32_t n) { return vreinterpretq_u16_u32(vdupq_n_u32(n)); }
  uint16x8_t near_ = all(~0U), least_ = all(~0U), most_ = all(0);
  float32x4_t finite_ = vdupq_n_f32(0);  // else NaN

 public:
  ATTEND_INLINE void store(F32 first, F32 second, E* to) {
    const uint16x8_t low = from_middle(first), high = from_middle(second);
    uint16x8_t halves;
    if constexpr (Of::kBf16) {
      halves = vuzp2q_u16(low, high);
      least_ = vminq_u16(least_, vsubq_u16(vaddq_u16(halves, halves), vdupq_n_u16(1)));
    } else {
      halves = vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(first.v), second.v));
      most_ = vmaxq_u16(most_, vaddq_u16(halves, halves));
    }
    vst1q_u16(&to->bits, halves);
  }

  bool doubtful() const {
    if constexpr (Of::kBf16)
      return vminvq_u16(vorrq_u16(near_, all(0xFFFF0000))) <= Of::kNear ||
             vminvq_u16(least_) < Of::kLeast || vminvq_u32(vceqq_f32(finite_, finite_)) == 0;
    else
      return vmaxvq_u16(vcleq_u16(near_, all(Of::kHalves))) != 0 || vmaxvq_u16(most_) >= Of::kMost;
  }

 private:
  ATTEND_INLINE uint16x8_t from_middle(F32 x) {
    const uint32x4_t bits = vreinterpretq_u32_f32(x.v);
    uint16x8_t sum;
    if constexpr (Of::kBf16) {
      sum = vreinterpretq_u16_u32(vaddq_u32(bits, vdupq_n_u32(Of::kMiddle)));
      finite_ = vfmaq_f32(finite_, x.v, vdupq_n_f32(0));
    } else {
      const int16x8_t up = vreinterpretq_s16_u16(all(1 << 16 | Of::kUp));
      sum = vaddq_u16(vshlq_u16(vreinterpretq_u16_u32(bits), up), all(Of::kToHalves));
    }
    near_ = vminq_u16(near_, sum);
    return sum;
  }
};
inline bool all_finite(F32 a) {
  const float32x4_t zero = vsubq_f32(a.v, a.v);
  return vminvq_u32(vceqq_f32(zero, zero)) != 0;
}
template <int kIndex>
inline F64 wide(F32 a) {
  if constexpr (kIndex == 0) return {vcvt_f64_f32(vget_low_f32(a.v))};
  else return {vcvt_high_f64_f32(a.v)};
}

}  // namespace
}  // namespace attend
