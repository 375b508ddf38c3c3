// Attention's 16-bit operands in pairs of steps, by AVX-512: what AMX (amx_tiles.h) and VDPBF16PS
// (avx512_bf16_tiles.h) have in common.
//
//   queries   [pair of features][lane][2]
//   keys      rows as they lie
//   values    [16 features][pair of keys][feature][2]
//   weights   2^t, rounded to the operands' type two keys at a time: [lane][2]
//
// Rounded to nearest, whatever the caller's mode is; subnormal bf16 numbers become 0.
#pragma once

#include "core/softmax_state.h"
#include "cpu/avx512.h"
#include "cpu/elements.h"

namespace attend {
namespace {

// Of is the Matrix<V> that derives from this. It has kKeyGroup, keep_awake() and
//   kDepth   of TilesOf: pairs of features behind the last are 0 up to a multiple of it
//   kBlock   elements from 16 features of values to the next 16
template <class Of, class E>
struct PairOperands {
  static constexpr int kLanes = F32::kLanes;
  static constexpr bool kArrangesKeys = false;
  static constexpr int kRowsTogether = 2;

  // to[pair of features][lane][2] of `lanes` rows of d features, or of -1 times these; 0 behind
  // them, up to a whole depth.
  static void queries(const E* const* rows, int lanes, std::int64_t d, E* to, bool minus) noexcept {
    constexpr std::int64_t kDepth = Of::kDepth;
    const std::int64_t depth = (d + kDepth - 1) / kDepth * kDepth;
    const __m512i signs = _mm512_set1_epi16(static_cast<short>(minus ? 0x8000 : 0));
    for (int n = 0; n < lanes; n += kLanes) {
      for (std::int64_t x = 0; x < d; x += 2 * kLanes) {
        F32 square[kLanes];
        unrolled<kLanes>(ATTEND_EACH(r) {
          square[r].v =
              _mm512_castsi512_ps(_mm512_xor_si512(bits(pairs(rows[n + r] + x, d - x)), signs));
        });
        transpose(square);
        Of::keep_awake();
        E* at = to + (x / 2 * lanes + n) * 2;
        unrolled<kLanes>(ATTEND_EACH(r) {
          if (kDepth == 2 * kLanes || x + 2 * r < depth)
            store_pairs(square[r].v, at + r * lanes * 2);
        });
      }
    }
  }

  // A group of values, from two rows at a time: row(key of the group) gives one, null behind the
  // last.
  template <class RowOf>
  static void values(RowOf row, std::int64_t dv, E* to) noexcept {
    const __m512i low = interleave(0, 32), high = interleave(16, 32);
    Of::keep_awake();
    for (int pair = 0; pair < Of::kKeyGroup / 2; ++pair) {
      const E *a = row(2 * pair), *b = row(2 * pair + 1);
      E* at = to + pair * 2 * kLanes;
      if (a == nullptr) {
        for (std::int64_t x = 0; x < dv; x += kLanes, at += Of::kBlock)
          _mm512_storeu_si512(at, _mm512_setzero_si512());
        continue;
      }
      for (std::int64_t x = 0; x < dv; x += 2 * kLanes, at += 2 * Of::kBlock) {
        const __m512i first = bits(pairs(a + x, dv - x));
        const __m512i second = b == nullptr ? _mm512_setzero_si512() : bits(pairs(b + x, dv - x));
        _mm512_storeu_si512(at, _mm512_permutex2var_epi16(first, low, second));
        if (dv - x > kLanes)
          _mm512_storeu_si512(at + Of::kBlock, _mm512_permutex2var_epi16(first, high, second));
      }
    }
  }

  // Whole numbers of 8 bits as elements, which hold them exactly.
  static void elements(const std::int8_t* from, std::int64_t count, E* to) noexcept {
    std::int64_t x = 0;
    for (; x + 2 * kLanes <= count; x += 2 * kLanes)
      _mm512_storeu_si512(to + x, rounded(F32::widened(from + x), F32::widened(from + x + kLanes)));
    convert_elements<F32>(from + x, 1, count - x, to + x);
  }

  // Two keys' scores become weights, 2^((s - base) unit), times the factors (of dropout, of
  // scales), if any. Adds up the even and the odd keys.
  template <bool kFactors>
  ATTEND_INLINE static F32 weight_pair(const float* s, F32 base, F32 unit, const float* factors,
                                       std::int64_t factors_stride, F32 (&total)[2]) noexcept {
    F32 w[2];
    unrolled<2>(ATTEND_EACH(n) {
      const F32 t = (F32::load(s + n * kLanes) - base) * unit;
      w[n] = power_of_two(t);
      total[n] = total[n] + w[n];
      if constexpr (kFactors) w[n] = w[n] * F32::load(factors + n * factors_stride);
    });
    return rounded_pair(w[0], w[1]);
  }

  // Two keys of one vector of lanes, rounded to pairs.
  ATTEND_INLINE static F32 rounded_pair(F32 even, F32 odd) noexcept {
    return {_mm512_castsi512_ps(_mm512_permutexvar_epi16(interleave(0, 16), rounded(even, odd)))};
  }
  // Two vectors, one behind the other.
  ATTEND_INLINE static __m512i rounded(F32 first, F32 second) noexcept {
    if constexpr (std::is_same_v<E, bf16>) {
      return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second.v, first.v));
    } else {
      constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
      const __m512i low = _mm512_castsi256_si512(_mm512_cvtps_ph(first.v, kNearest));
      return _mm512_inserti64x4(low, _mm512_cvtps_ph(second.v, kNearest), 1);
    }
  }

  ATTEND_INLINE static void store_pairs(__m512 v, E* to) { _mm512_storeu_ps(to, v); }

  // 2^t for t <= 0, -inf included; NaN stays. t = n + f with n whole, 0 <= f < 1; 2^f = 1 + f g(f)
  // with a polynomial of degree 3, whose largest relative error is 3.4e-6, and none at 0 and 1.
  ATTEND_INLINE static F32 power_of_two(F32 t) {
    const F32 f{_mm512_reduce_ps(t.v, 0x09)};
    F32 g = fma(F32::set(0.013555747F), f, F32::set(0.05203237F));
    g = fma(g, f, F32::set(0.24137977F));
    g = fma(g, f, F32::set(0.69303215F));
    return {_mm512_scalef_ps(fma(g, f, F32::set(1)).v, t.v)};
  }

 protected:
  static __m512i bits(__m512 v) { return _mm512_castps_si512(v); }

  // Up to 32 elements, 0 behind the last.
  ATTEND_INLINE static __m512 pairs(const E* from, std::int64_t count) {
    if (count >= 2 * kLanes) return _mm512_loadu_ps(from);
    const auto first = static_cast<__mmask32>((std::uint64_t{1} << count) - 1);
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(first, from));
  }

  // Words from, from + other, from + 1, from + 1 + other, ... of two vectors (32 and more: of the
  // second) or one.
  ATTEND_INLINE static __m512i interleave(int from, int other) {
    alignas(64) std::int16_t index[32];
    for (int n = 0; n < 32; ++n) index[n] = static_cast<std::int16_t>(from + n / 2 + n % 2 * other);
    return _mm512_load_si512(index);
  }
};

}  // namespace
}  // namespace attend
