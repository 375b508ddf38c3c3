// P and dS as 16-bit operands, by AVX-512: what backward by AMX (amx_gradients.h) and by VDPBF16PS
// (avx512_bf16_gradients.h) have in common.
#pragma once

#include "cpu/gradient_pairs.h"
#include "cpu/pairs.h"

namespace attend {
namespace {

// A vector of 16 rows; or those that are there and not hidden, and 0 for the others.
struct AllRows {
  template <class Pairs>
  AllRows(const Pairs&, int) {}
  ATTEND_INLINE F32 operator()(const float* from) const { return F32::load(from); }
};
struct SeenRows {
  __mmask16 rows;
  __m512 least;
  template <class Pairs>
  SeenRows(const Pairs& pairs, int first)
      : least(_mm512_set1_ps(pairs.marks ? std::numeric_limits<float>::lowest()
                                         : -std::numeric_limits<float>::infinity())) {
    const int left = pairs.rows - first;
    rows = F32::first(left < 0 ? 0 : left < F32::kLanes ? left : F32::kLanes);
  }
  ATTEND_INLINE F32 operator()(const float* from) const {
    const __m512 v = _mm512_maskz_loadu_ps(rows, from);
    return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(v, least, _CMP_NLT_UQ), v)};
  }
};

// As rows of keys, to[line][32 rows of each tile], rounded, f16 times a number for each line: 0
// behind the last row, and what is hidden.
template <class Products, class E>
class RowsOfKeys {
  template <class Taken, class Pairs>
  static void narrow_tile(const Pairs& pairs, int row, int lines, const float* units, E* to,
                          std::int64_t to_stride) noexcept {
    const Taken low(pairs, row), high(pairs, row + F32::kLanes);
    const float* from = pairs.from(row);
    Products::keep_awake();
    for (int n = 0; n < lines; ++n, from += pairs.stride, to += to_stride) {
      F32 first = low(from), second = high(from + F32::kLanes);
      if constexpr (std::is_same_v<E, f16>) {
        const F32 unit = F32::set(units[n]);
        first = first * unit;
        second = second * unit;
      }
      _mm512_storeu_si512(to, Products::rounded(first, second));
    }
  }

 public:
  template <class Pairs>
  static void narrow(const Pairs& pairs, int lines, const float* units, E* to,
                     std::int64_t to_stride) noexcept {
    static_assert(Pairs::kTile == 2 * F32::kLanes);
    for (int row = 0; row < pairs.rows; row += Pairs::kTile, to += Pairs::kTile)
      if (pairs.all(row, Pairs::kTile))
        narrow_tile<AllRows>(pairs, row, lines, units, to, to_stride);
      else narrow_tile<SeenRows>(pairs, row, lines, units, to, to_stride);
  }
};

// Whether all of `count` numbers are, a multiple of 16.
template <class E>
bool are_finite(const E* numbers, std::int64_t count) noexcept {
  const __m256i no_sign = _mm256_set1_epi16(0x7FFF);
  __m256i largest = _mm256_setzero_si256();
  for (std::int64_t x = 0; x < count; x += 16) {
    const auto some = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(numbers + x));
    largest = _mm256_max_epu16(largest, _mm256_and_si256(some, no_sign));
  }
  constexpr short kInfinity = std::is_same_v<E, bf16> ? 0x7F80 : 0x7C00;
  return _mm256_cmpge_epu16_mask(largest, _mm256_set1_epi16(kInfinity)) == 0;
}

}  // namespace
}  // namespace attend
