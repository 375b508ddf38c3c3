// The vectors of AVX-512 (F, DQ, BW, VL): sixteen floats or eight doubles, thirty-two registers.
#pragma once

#include "cpu/tiles.h"

#include <immintrin.h>

namespace attend {
namespace {

struct F64 {
  using T = double;
  using RegisterTiles = Avx512Tiles<T>;
  using Mask = __mmask8;
  using Double = F64;
  static constexpr int kLanes = 8, kDoubles = 1;
  static constexpr double kLowestPower = -1022;  // subnormal results would take 150 cycles each
  static constexpr bool kByLane = false;
  static constexpr bool kFused = true;
  __m512d v;

  static F64 load(const double* p) { return {_mm512_loadu_pd(p)}; }
  static F64 load_first(const double* p, std::int64_t n) {
    return {_mm512_maskz_loadu_pd(first(n), p)};
  }
  template <class From>
  static F64 pieces(From p) {
    __m512d v = _mm512_broadcast_f64x2(_mm_loadu_pd(p(At<0>{})));
    v = _mm512_mask_broadcast_f64x2(v, 0x0C, _mm_loadu_pd(p(At<1>{})));
    v = _mm512_mask_broadcast_f64x2(v, 0x30, _mm_loadu_pd(p(At<2>{})));
    return {_mm512_mask_broadcast_f64x2(v, 0xC0, _mm_loadu_pd(p(At<3>{})))};
  }
  static F64 set(double x) { return {_mm512_set1_pd(x)}; }
  static F64 narrowed(const F64* doubles) { return doubles[0]; }
  void store(double* p) const { _mm512_storeu_pd(p, v); }
  void store_first(double* p, std::int64_t n) const { _mm512_mask_storeu_pd(p, first(n), v); }
  static __mmask8 first(std::int64_t n) { return static_cast<__mmask8>((1U << n) - 1); }
};
inline F64 operator+(F64 a, F64 b) { return {_mm512_add_pd(a.v, b.v)}; }
inline F64 operator-(F64 a, F64 b) { return {_mm512_sub_pd(a.v, b.v)}; }
inline F64 operator*(F64 a, F64 b) { return {_mm512_mul_pd(a.v, b.v)}; }
inline F64 operator/(F64 a, F64 b) { return {_mm512_div_pd(a.v, b.v)}; }
inline F64 fma(F64 a, F64 b, F64 c) { return {_mm512_fmadd_pd(a.v, b.v, c.v)}; }
// In place: the compiler would copy sums from register to register. Broadcast on the way from
// memory: a load more, an instruction less.
ATTEND_INLINE void add_product(F64 a, F64 b, F64& sum) {
  asm("vfmadd231pd %1, %2, %0" : "+v"(sum.v) : "v"(a.v), "v"(b.v));
}
ATTEND_INLINE void add_product(const double* a, F64 b, F64& sum) {
  asm("vfmadd231pd %1%{1to8%}, %2, %0" : "+v"(sum.v) : "m"(*a), "v"(b.v));
}
inline F64 larger(F64 a, F64 b) { return {_mm512_max_pd(a.v, b.v)}; }
inline F64 ceiling(F64 a) {
  return {_mm512_roundscale_pd(a.v, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC)};
}
inline F64 scaled(F64 a, F64 n) {
  return {_mm512_mul_pd(a.v, _mm512_castsi512_pd(_mm512_slli_epi64(_mm512_castpd_si512(n.v), 52)))};
}
inline F64::Mask less(F64 a, F64 b) { return _mm512_cmp_pd_mask(a.v, b.v, _CMP_LT_OQ); }
inline F64 select(F64::Mask m, F64 a, F64 b) { return {_mm512_mask_blend_pd(m, b.v, a.v)}; }
inline bool all_finite(F64 a) {
  const __m512d zero = _mm512_sub_pd(a.v, a.v);
  return _mm512_cmp_pd_mask(zero, zero, _CMP_UNORD_Q) == 0;
}
template <int kIndex>
inline F64 wide(F64 a) {
  return a;
}

struct F32 {
  using T = float;
  using RegisterTiles = Avx512Tiles<T>;
  using Mask = __mmask16;
  using Double = F64;
  static constexpr int kLanes = 16, kDoubles = 2;
  static constexpr float kLowestPower = -126;
  static constexpr bool kByLane = false;
  static constexpr bool kFused = true;
  __m512 v;

  static F32 load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static F32 load_first(const float* p, std::int64_t n) {
    return {_mm512_maskz_loadu_ps(first(n), p)};
  }
  template <class From>
  static F32 pieces(From p) {
    __m512 v = _mm512_broadcast_f32x4(_mm_loadu_ps(p(At<0>{})));
    v = _mm512_mask_broadcast_f32x4(v, 0x00F0, _mm_loadu_ps(p(At<1>{})));
    v = _mm512_mask_broadcast_f32x4(v, 0x0F00, _mm_loadu_ps(p(At<2>{})));
    return {_mm512_mask_broadcast_f32x4(v, 0xF000, _mm_loadu_ps(p(At<3>{})))};
  }
  static F32 set(float x) { return {_mm512_set1_ps(x)}; }
  static F32 narrowed(const F64* doubles) {
    const __m512 low = _mm512_castps256_ps512(_mm512_cvtpd_ps(doubles[0].v));
    return {_mm512_insertf32x8(low, _mm512_cvtpd_ps(doubles[1].v), 1)};
  }
  static F32 odd(const F64* doubles) {
    const __m512 low = _mm512_castps256_ps512(odd_half(doubles[0].v));
    return {_mm512_insertf32x8(low, odd_half(doubles[1].v), 1)};
  }
  static __m256 odd_half(__m512d x) {
    const __m256 cut = _mm512_cvt_roundpd_ps(x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    const __m256i bits = _mm256_castps_si256(cut);
    const __mmask8 changed = _mm512_cmp_pd_mask(_mm512_cvtps_pd(cut), x, _CMP_NEQ_OQ);
    return _mm256_castsi256_ps(_mm256_mask_or_epi32(bits, changed, bits, _mm256_set1_epi32(1)));
  }
  static F32 widened(const bf16* p) {
    const __m512i bits =
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16))};
  }
  static F32 widened(const f16* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  static F32 widened(const std::int8_t* p) {
    return {_mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
  }
  static void load_pairs(const bf16* p, F32& even, F32& odd) {
    const __m512i both = _mm512_loadu_si512(p);
    const __m512i high = _mm512_set1_epi32(static_cast<int>(0xFFFF0000));
    even.v = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
    odd.v = _mm512_castsi512_ps(_mm512_and_si512(both, high));
  }
  void rounded(bf16* p) const {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), last);
    const __m512i all = _mm512_mask_or_epi32(up, nan(), bits, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(all, 16)));
  }
  void rounded(f16* p) const {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i sign = _mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0x80000000)));
    const __m512i plain = _mm512_mask_or_epi32(bits, nan(), sign, _mm512_set1_epi32(0x7FC00000));
    _mm256_storeu_si256(
        reinterpret_cast<__m256i*>(p),
        _mm512_cvtps_ph(_mm512_castsi512_ps(plain), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  __mmask16 nan() const { return _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q); }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  void store_first(float* p, std::int64_t n) const { _mm512_mask_storeu_ps(p, first(n), v); }
  static __mmask16 first(std::int64_t n) { return static_cast<__mmask16>((1U << n) - 1); }
};
inline F32 operator+(F32 a, F32 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F32 operator-(F32 a, F32 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F32 operator*(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F32 operator/(F32 a, F32 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F32 fma(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
ATTEND_INLINE void add_product(F32 a, F32 b, F32& sum) {
  asm("vfmadd231ps %1, %2, %0" : "+v"(sum.v) : "v"(a.v), "v"(b.v));
}
ATTEND_INLINE void add_product(const float* a, F32 b, F32& sum) {
  asm("vfmadd231ps %1%{1to16%}, %2, %0" : "+v"(sum.v) : "m"(*a), "v"(b.v));
}
inline F32 larger(F32 a, F32 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F32 ceiling(F32 a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC)};
}
inline F32 scaled(F32 a, F32 n) {
  return {_mm512_mul_ps(a.v, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(n.v), 23)))};
}
inline F32::Mask less(F32 a, F32 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ); }
inline F32 select(F32::Mask m, F32 a, F32 b) { return {_mm512_mask_blend_ps(m, b.v, a.v)}; }
template <class E>
class Rounder {
  using Of = Doubt<E>;
  static __m512i all(std::uint32_t n) { return _mm512_set1_epi32(static_cast<int>(n)); }
  static __m512i words(std::uint32_t n) { return _mm512_set1_epi16(static_cast<short>(n)); }
  __m512i near_ = all(~0U), least_ = all(~0U), most_ = all(0);
  __m512 finite_ = _mm512_setzero_ps();  // else NaN

 public:
  ATTEND_INLINE void store(F32 first, F32 second, E* to) {
    __m512i halves;
    if constexpr (Of::kBf16) {
      const __m512i low = rounded(first), high = rounded(second);
      alignas(64) std::int16_t odd[32];
      for (int n = 0; n < 32; ++n) odd[n] = static_cast<std::int16_t>(2 * n + 1);
      halves = _mm512_permutex2var_epi16(low, _mm512_load_si512(odd), high);
      const __m512i size = _mm512_add_epi16(halves, halves);
      least_ = _mm512_min_epu16(least_, _mm512_sub_epi16(size, words(1)));
    } else {
      const __m256i low = rounded(first), high = rounded(second);
      halves = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
      most_ = _mm512_max_epu16(most_, _mm512_add_epi16(halves, halves));
    }
    _mm512_storeu_si512(to, halves);
  }

  bool doubtful() const {
    constexpr __mmask32 kLower = 0x55555555;  // of each lane
    if constexpr (Of::kBf16)
      return (_mm512_mask_cmple_epu16_mask(kLower, near_, words(Of::kNear)) |
              _mm512_cmplt_epu16_mask(least_, words(Of::kLeast)) |
              _mm512_cmp_ps_mask(finite_, finite_, _CMP_UNORD_Q)) != 0;
    else
      return (_mm512_cmple_epu16_mask(near_, all(Of::kHalves)) |
              _mm512_cmpge_epu16_mask(most_, words(Of::kMost))) != 0;
  }

 private:
  // In bf16 the upper half of each lane, else vectors of 16 bits.
  ATTEND_INLINE auto rounded(F32 x) {
    const __m512i bits = _mm512_castps_si512(x.v);
    if constexpr (Of::kBf16) {
      const __m512i sum = _mm512_add_epi32(bits, all(Of::kMiddle));
      near_ = _mm512_min_epu16(near_, sum);
      finite_ = _mm512_fmadd_ps(x.v, _mm512_setzero_ps(), finite_);
      return sum;
    } else {
      const __m512i moved = _mm512_sllv_epi16(bits, all(1 << 16 | Of::kUp));
      near_ = _mm512_min_epu16(near_, _mm512_add_epi16(moved, all(Of::kToHalves)));
      return _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }
  }
};
// 16 rows of 16 numbers of 16 bits, transposed as 8 columns of pairs: 16 shuffles, where squares of
// floats take 32. Of bf16 two more instructions give the two columns of a pair.
template <class Rows>
ATTEND_INLINE void transposed(bf16, const Rows& rows, F32 (&square)[16]) {
  F32 pairs[8];
  load_columns(rows, pairs);
  unrolled<8>(ATTEND_EACH(c) {
    const __m512i both = _mm512_castps_si512(pairs[c].v);
    const __m512i high = _mm512_set1_epi32(static_cast<int>(0xFFFF0000));
    square[2 * c].v = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
    square[2 * c + 1].v = _mm512_castsi512_ps(_mm512_and_si512(both, high));
  });
}
// Of f16 they are brought apart and converted: 32 shuffles more, where converted first all would be
// 64 and 16 conversions.
template <class Rows>
ATTEND_INLINE void transposed(f16, const Rows& rows, F32 (&square)[16]) {
  F32 pairs[8];
  load_columns(rows, pairs);
  const __m512i even = _mm512_cvtepi8_epi16(
      _mm256_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 1, 3, 5, 7, 9, 11,
                       13, 15, 17, 19, 21, 23, 25, 27, 29, 31));
  unrolled<8>(ATTEND_EACH(c) {
    const __m512i apart = _mm512_permutexvar_epi16(even, _mm512_castps_si512(pairs[c].v));
    square[2 * c].v = _mm512_cvtph_ps(_mm512_castsi512_si256(apart));
    square[2 * c + 1].v = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(apart, 1));
  });
}
// 16 rows of 16 bytes, transposed as bytes and then converted: 24 shuffles, where 16 conversions
// and the square of floats would take 48. quads[g] holds of each four rows (16 bytes) the columns
// 4g to 4g + 3; a column's bytes become the highest of their lanes, and are shifted down.
template <class Rows>
ATTEND_INLINE void transposed(std::int8_t, const Rows& rows, F32 (&square)[16]) {
  __m512i four[4], pairs[4], quads[4];
  unrolled<4>(ATTEND_EACH(p) {
    const auto row = [&](int n) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows.at(4 * n + p, 0)));
    };
    four[p] = _mm512_broadcast_i32x4(row(0));
    four[p] = _mm512_mask_broadcast_i32x4(four[p], 0x00F0, row(1));
    four[p] = _mm512_mask_broadcast_i32x4(four[p], 0x0F00, row(2));
    four[p] = _mm512_mask_broadcast_i32x4(four[p], 0xF000, row(3));
  });
  unrolled<2>(ATTEND_EACH(n) {
    pairs[n] = _mm512_unpacklo_epi8(four[2 * n], four[2 * n + 1]);
    pairs[2 + n] = _mm512_unpackhi_epi8(four[2 * n], four[2 * n + 1]);
  });
  unrolled<2>(ATTEND_EACH(n) {
    quads[2 * n] = _mm512_unpacklo_epi16(pairs[2 * n], pairs[2 * n + 1]);
    quads[2 * n + 1] = _mm512_unpackhi_epi16(pairs[2 * n], pairs[2 * n + 1]);
  });
  const __m512i first = _mm512_broadcast_i32x4(_mm_setr_epi8(
      -128, -128, -128, 0, -128, -128, -128, 1, -128, -128, -128, 2, -128, -128, -128, 3));
  unrolled<16>(ATTEND_EACH(c) {
    const __m512i bytes = _mm512_add_epi8(first, _mm512_set1_epi32((c % 4 * 4) << 24));
    const __m512i high = _mm512_shuffle_epi8(quads[c / 4], bytes);
    square[c].v = _mm512_cvtepi32_ps(_mm512_srai_epi32(high, 24));
  });
}
inline bool all_finite(F32 a) {
  const __m512 zero = _mm512_sub_ps(a.v, a.v);
  return _mm512_cmp_ps_mask(zero, zero, _CMP_UNORD_Q) == 0;
}
template <int kIndex>
inline F64 wide(F32 a) {
  return {_mm512_cvtps_pd(_mm512_extractf32x8_ps(a.v, kIndex))};
}

}  // namespace
}  // namespace attend
