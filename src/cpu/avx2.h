// The vectors of AVX2 with FMA: eight floats or four doubles, sixteen registers.
#pragma once

#include "cpu/tiles.h"

#include <immintrin.h>

namespace attend {
namespace {

struct F64 {
  using T = double;
  using RegisterTiles = Avx2Tiles<T>;
  using Mask = __m256d;
  using Double = F64;
  static constexpr int kLanes = 4, kDoubles = 1;
  static constexpr double kLowestPower = -1022;
  static constexpr bool kByLane = false;
  static constexpr bool kFused = true;
  __m256d v;

  static F64 load(const double* p) { return {_mm256_loadu_pd(p)}; }
  static F64 load_first(const double* p, std::int64_t n) {
    return {_mm256_maskload_pd(p, first(n))};
  }
  template <class From>
  static F64 pieces(From p) {
    const __m256d low = _mm256_castpd128_pd256(_mm_loadu_pd(p(At<0>{})));
    return {_mm256_insertf128_pd(low, _mm_loadu_pd(p(At<1>{})), 1)};
  }
  static F64 set(double x) { return {_mm256_set1_pd(x)}; }
  static F64 narrowed(const F64* doubles) { return doubles[0]; }
  void store(double* p) const { _mm256_storeu_pd(p, v); }
  void store_first(double* p, std::int64_t n) const { _mm256_maskstore_pd(p, first(n), v); }
  static __m256i first(std::int64_t n) {
    return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3));
  }
};
inline F64 operator+(F64 a, F64 b) { return {_mm256_add_pd(a.v, b.v)}; }
inline F64 operator-(F64 a, F64 b) { return {_mm256_sub_pd(a.v, b.v)}; }
inline F64 operator*(F64 a, F64 b) { return {_mm256_mul_pd(a.v, b.v)}; }
inline F64 operator/(F64 a, F64 b) { return {_mm256_div_pd(a.v, b.v)}; }
inline F64 fma(F64 a, F64 b, F64 c) { return {_mm256_fmadd_pd(a.v, b.v, c.v)}; }
// In place: the compiler would copy sums from register to register.
ATTEND_INLINE void add_product(F64 a, F64 b, F64& sum) {
  asm("vfmadd231pd %1, %2, %0" : "+x"(sum.v) : "x"(a.v), "x"(b.v));
}
inline F64 larger(F64 a, F64 b) { return {_mm256_max_pd(a.v, b.v)}; }
inline F64 ceiling(F64 a) { return {_mm256_ceil_pd(a.v)}; }
inline F64 scaled(F64 a, F64 n) {
  return {_mm256_mul_pd(a.v, _mm256_castsi256_pd(_mm256_slli_epi64(_mm256_castpd_si256(n.v), 52)))};
}
inline F64::Mask less(F64 a, F64 b) { return _mm256_cmp_pd(a.v, b.v, _CMP_LT_OQ); }
inline F64 select(F64::Mask m, F64 a, F64 b) { return {_mm256_blendv_pd(b.v, a.v, m)}; }
inline bool all_finite(F64 a) {
  const __m256d zero = _mm256_sub_pd(a.v, a.v);
  return _mm256_movemask_pd(_mm256_cmp_pd(zero, zero, _CMP_UNORD_Q)) == 0;
}
template <int kIndex>
inline F64 wide(F64 a) {
  return a;
}

struct F32 {
  using T = float;
  using RegisterTiles = Avx2Tiles<T>;
  using Mask = __m256;
  using Double = F64;
  static constexpr int kLanes = 8, kDoubles = 2;
  static constexpr float kLowestPower = -126;
  static constexpr bool kByLane = false;
  static constexpr bool kFused = true;
  __m256 v;

  static F32 load(const float* p) { return {_mm256_loadu_ps(p)}; }
  static F32 load_first(const float* p, std::int64_t n) {
    return {_mm256_maskload_ps(p, first(n))};
  }
  template <class From>
  static F32 pieces(From p) {
    const __m256 low = _mm256_castps128_ps256(_mm_loadu_ps(p(At<0>{})));
    return {_mm256_insertf128_ps(low, _mm_loadu_ps(p(At<1>{})), 1)};
  }
  static F32 set(float x) { return {_mm256_set1_ps(x)}; }
  static F32 narrowed(const F64* doubles) {
    return {_mm256_set_m128(_mm256_cvtpd_ps(doubles[1].v), _mm256_cvtpd_ps(doubles[0].v))};
  }
  static F32 odd(const F64* doubles) {
    return {_mm256_set_m128(odd_half(doubles[1].v), odd_half(doubles[0].v))};
  }
  // To nearest, and where that was cut and ends in an even bit, one step towards what it was.
  static __m128 odd_half(__m256d x) {
    const __m128 near = _mm256_cvtpd_ps(x);
    const __m256d back = _mm256_cvtps_pd(near), size = _mm256_set1_pd(-0.0);
    const auto of_lanes = [](__m256d mask) {
      const __m256 halves = _mm256_castpd_ps(mask);
      return _mm_castps_si128(
          _mm_shuffle_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1), 0x88));
    };
    const __m128i one = _mm_set1_epi32(1), bits = _mm_castps_si128(near);
    const __m128i cut = of_lanes(_mm256_cmp_pd(back, x, _CMP_NEQ_OQ));
    const __m128i away = of_lanes(
        _mm256_cmp_pd(_mm256_andnot_pd(size, back), _mm256_andnot_pd(size, x), _CMP_GE_OQ));
    const __m128i even = _mm_cmpeq_epi32(_mm_and_si128(bits, one), _mm_setzero_si128());
    const __m128i step = _mm_and_si128(_mm_or_si128(away, one), _mm_and_si128(cut, even));
    return _mm_castsi128_ps(_mm_add_epi32(bits, step));
  }
  static F32 widened(const bf16* p) {
    const __m256i bits =
        _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(bits, 16))};
  }
  static F32 widened(const f16* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
  }
  static F32 widened(const std::int8_t* p) {
    return {_mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
  }
  static void load_pairs(const bf16* p, F32& even, F32& odd) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m256i high = _mm256_set1_epi32(static_cast<int>(0xFFFF0000));
    even.v = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
    odd.v = _mm256_castsi256_ps(_mm256_and_si256(both, high));
  }
  void rounded(bf16* p) const {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i last = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), last);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i all = _mm256_castps_si256(_mm256_blendv_ps(
        _mm256_castsi256_ps(up), _mm256_castsi256_ps(quiet), _mm256_cmp_ps(v, v, _CMP_UNORD_Q)));
    const __m256i high = _mm256_srli_epi32(all, 16), pairs = _mm256_packus_epi32(high, high);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm256_castsi256_si128(_mm256_permute4x64_epi64(pairs, 0xD8)));
  }
  void rounded(f16* p) const {
    const __m256 nan = _mm256_or_ps(_mm256_and_ps(v, _mm256_set1_ps(-0.0F)),
                                    _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000)));
    const __m256 plain = _mm256_blendv_ps(v, nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm256_cvtps_ph(plain, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  void store(float* p) const { _mm256_storeu_ps(p, v); }
  void store_first(float* p, std::int64_t n) const { _mm256_maskstore_ps(p, first(n), v); }
  static __m256i first(std::int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
};
inline F32 operator+(F32 a, F32 b) { return {_mm256_add_ps(a.v, b.v)}; }
inline F32 operator-(F32 a, F32 b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline F32 operator*(F32 a, F32 b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline F32 operator/(F32 a, F32 b) { return {_mm256_div_ps(a.v, b.v)}; }
inline F32 fma(F32 a, F32 b, F32 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
ATTEND_INLINE void add_product(F32 a, F32 b, F32& sum) {
  asm("vfmadd231ps %1, %2, %0" : "+x"(sum.v) : "x"(a.v), "x"(b.v));
}
inline F32 larger(F32 a, F32 b) { return {_mm256_max_ps(a.v, b.v)}; }
inline F32 ceiling(F32 a) { return {_mm256_ceil_ps(a.v)}; }
inline F32 scaled(F32 a, F32 n) {
  return {_mm256_mul_ps(a.v, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(n.v), 23)))};
}
inline F32::Mask less(F32 a, F32 b) { return _mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ); }
inline F32 select(F32::Mask m, F32 a, F32 b) { return {_mm256_blendv_ps(b.v, a.v, m)}; }
template <class E>
class Rounder {
  using Of = Doubt<E>;
  static __m256i all(std::uint32_t n) { return _mm256_set1_epi32(static_cast<int>(n)); }
  static __m256i words(std::uint32_t n) { return _mm256_set1_epi16(static_cast<short>(n)); }
  __m256i near_ = all(~0U), least_ = all(~0U), most_ = all(0);
  __m256 finite_ = _mm256_setzero_ps();  // else NaN

 public:
  ATTEND_INLINE void store(F32 first, F32 second, E* to) {
    __m256i halves;
    if constexpr (Of::kBf16) {
      const __m256i low = rounded(first), high = rounded(second);
      halves = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xD8);
      const __m256i size = _mm256_add_epi16(halves, halves);
      least_ = _mm256_min_epu16(least_, _mm256_sub_epi16(size, words(1)));
    } else {
      const __m128i low = rounded(first), high = rounded(second);
      halves = _mm256_set_m128i(high, low);
      most_ = _mm256_max_epu16(most_, _mm256_add_epi16(halves, halves));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves);
  }

  bool doubtful() const {
    const auto up_to = [](__m256i x, __m256i most) {
      return _mm256_cmpeq_epi16(_mm256_min_epu16(x, most), x);
    };
    __m256i any;
    if constexpr (Of::kBf16) {
      const __m256i near = up_to(near_, all(Of::kNear));
      const __m256 none = _mm256_cmp_ps(finite_, finite_, _CMP_UNORD_Q);
      any = _mm256_or_si256(
          _mm256_and_si256(near, all(0xFFFF)),
          _mm256_or_si256(up_to(least_, words(Of::kLeast - 1)), _mm256_castps_si256(none)));
    } else {
      any = _mm256_or_si256(up_to(near_, all(Of::kHalves)), up_to(words(Of::kMost), most_));
    }
    return _mm256_testz_si256(any, any) == 0;
  }

 private:
  // In bf16 the lower half of each lane, else vectors of 16 bits.
  ATTEND_INLINE auto rounded(F32 x) {
    const __m256i bits = _mm256_castps_si256(x.v);
    if constexpr (Of::kBf16) {
      const __m256i sum = _mm256_add_epi32(bits, all(Of::kMiddle));
      near_ = _mm256_min_epu16(near_, sum);
      finite_ = _mm256_fmadd_ps(x.v, _mm256_setzero_ps(), finite_);
      return _mm256_srli_epi32(sum, 16);
    } else {
      const __m256i moved = _mm256_mullo_epi16(bits, all(2 << 16 | 1 << Of::kUp));
      near_ = _mm256_min_epu16(near_, _mm256_add_epi16(moved, all(Of::kToHalves)));
      return _mm256_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }
  }
};
// 8 rows of 8 numbers, transposed as 4 columns of pairs: 8 shuffles, where squares of floats
// take 16.
template <class Rows>
ATTEND_INLINE void transposed(bf16, const Rows& rows, F32 (&square)[8]) {
  F32 pairs[4];
  load_columns(rows, pairs);
  unrolled<4>(ATTEND_EACH(c) {
    const __m256i both = _mm256_castps_si256(pairs[c].v);
    const __m256i high = _mm256_set1_epi32(static_cast<int>(0xFFFF0000));
    square[2 * c].v = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
    square[2 * c + 1].v = _mm256_castsi256_ps(_mm256_and_si256(both, high));
  });
}
inline bool all_finite(F32 a) {
  const __m256 zero = _mm256_sub_ps(a.v, a.v);
  return _mm256_movemask_ps(_mm256_cmp_ps(zero, zero, _CMP_UNORD_Q)) == 0;
}
template <int kIndex>
inline F64 wide(F32 a) {
  return {_mm256_cvtps_pd(_mm256_extractf128_ps(a.v, kIndex))};
}

}  // namespace
}  // namespace attend
