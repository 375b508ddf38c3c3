// What backward asks of the tiles of AMX beside amx_tiles.h: P and dS, rounded to bf16 once each,
// as operands of three products. Sums as there, over groups of 32 keys or 32 query rows.
//
//   dQ [rows][d]   = dS   [rows][32 keys]  turned       times  K   in pairs of keys
//   dV [keys][dv] += P^T  [keys][32 rows]  as it lies   times  dO  in pairs of rows
//   dK [keys][d]  += dS^T [keys][32 rows]  as it lies   times  Q   in pairs of rows
//
// A pair that is hidden is exactly 0 in P and dS, and so are rows behind the last: what is added
// for them changes no sum, unless what they are multiplied with is not finite. Then sums are made
// again, with the same instruction, and with zeros in the place of what is hidden.
#pragma once

#include "cpu/amx_tiles.h"

namespace attend {
namespace {

struct AmxGradients {
  using Products = AmxProducts<bf16>;
  static constexpr int kLanes = F32::kLanes;

  // Whether all of them are; `count` a multiple of 32.
  static bool are_finite(const bf16* numbers, std::int64_t count) noexcept {
    const __m512i no_sign = _mm512_set1_epi16(0x7FFF);
    __m512i largest = _mm512_setzero_si512();
    for (std::int64_t x = 0; x < count; x += 2 * kLanes)
      largest =
          _mm512_max_epu16(largest, _mm512_and_si512(_mm512_loadu_si512(numbers + x), no_sign));
    return _mm512_cmpge_epu16_mask(largest, _mm512_set1_epi16(0x7F80)) == 0;
  }

  // A group of keys, f32 [32 keys][lanes], as Matrix::products reads weights.
  static void turn(const float* pairs, std::int64_t stride, int lanes, float* to) noexcept {
    stay_awake();
    for (int n = 0; n < lanes; n += kLanes, to += kLanes * kChunk) {
      F32 square[kLanes];
      unrolled<kLanes>(ATTEND_EACH(pair) {
        const float* even = pairs + 2 * pair * stride + n;
        square[pair] = Products::rounded_pair(F32::load(even), F32::load(even + stride));
      });
      Products::store_turned(square, to);
    }
  }

  // The same as rows of keys, to[key][32 rows]: 0 behind the last of `rows` and, if -inf is a mark
  // of what is hidden, there.
  static void narrow(const float* pairs, std::int64_t stride, int rows, bool marks, bf16* to,
                     std::int64_t to_stride) noexcept {
    stay_awake();
    const __mmask16 low = F32::first(rows < kLanes ? rows : kLanes);
    const __mmask16 high = F32::first(rows < kLanes ? 0 : rows - kLanes);
    constexpr float kNone = -std::numeric_limits<float>::infinity();
    const __m512 least = _mm512_set1_ps(marks ? std::numeric_limits<float>::lowest() : kNone);
    const auto seen = [&](const float* from, __mmask16 lanes) __attribute__((always_inline)) {
      const __m512 v = _mm512_maskz_loadu_ps(lanes, from);
      return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(v, least, _CMP_NLT_UQ), v);
    };
    for (int key = 0; key < Products::kKeyGroup; ++key, pairs += stride, to += to_stride) {
      const __m512 first = seen(pairs, low), second = seen(pairs + kLanes, high);
      _mm512_storeu_si512(to, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first)));
    }
  }

  // c[keys][width] (+)= a b, over `steps` groups of rows: a[key][32 rows of each], b as
  // Matrix::values leaves them.
  static void products(const bf16* a, std::int64_t a_stride, const bf16* b, int steps,
                       std::int64_t width, float* c, std::int64_t c_stride, int keys,
                       bool add) noexcept {
    for_columns(keys, width, [&]<int kHigh, int kWide>(std::int64_t x) {
      products<kHigh, kWide>(a, a_stride, b + x * kTileSteps, width * kTileSteps, steps, c + x,
                             c_stride, keys, add);
    });
  }

  // The sums of one key again, without the rows for which hidden(step, row) is true.
  template <class Hidden>
  static void products_of_key(const bf16* a, std::int64_t a_stride, int key, const bf16* b,
                              int steps, std::int64_t width, Hidden hidden, float* c,
                              bool add) noexcept {
    for (std::int64_t x = 0; x < width; x += kLanes) {
      float sums[kTileRows][kLanes] = {};
      if (add) std::memcpy(sums[0], c + x, sizeof sums[0]);
      tile_load<0>(sums, sizeof sums[0]);
      for (int s = 0; s < steps; ++s) {
        bf16 pairs[kTileRows][kTileSteps] = {};
        std::memcpy(pairs[0], a + key * a_stride + s * kTileSteps, sizeof pairs[0]);
        tile_load<1>(pairs, sizeof pairs[0]);
        Products::load_seen<2>(b + (s * width + x) * kTileSteps,
                               [&](int row) { return hidden(s, row); });
        tile_multiply<0, 1, 2>();
      }
      tile_store<0>(sums, sizeof sums[0]);
      std::memcpy(c + x, sums[0], sizeof sums[0]);
    }
  }

 private:
  // Sums stay where they lie, or, if keys are fewer than the tiles' rows, in a copy.
  template <int kHigh, int kWide>
  static void products(const bf16* a, std::int64_t a_stride, const bf16* b, std::int64_t b_step,
                       int steps, float* c, std::int64_t c_stride, int keys, bool add) noexcept {
    constexpr int kRows = kHigh * kTileRows, kColumns = kWide * kLanes;
    if (keys < kRows) {
      float some[kRows * kColumns] = {};
      for (int key = 0; add && key < keys; ++key)
        std::memcpy(some + key * kColumns, c + key * c_stride, kColumns * sizeof(float));
      products<kHigh, kWide>(a, a_stride, b, b_step, steps, some, kColumns, kRows, add);
      for (int key = 0; key < keys; ++key)
        std::memcpy(c + key * c_stride, some + key * kColumns, kColumns * sizeof(float));
      return;
    }
    const std::int64_t c_bytes = c_stride * 4, a_bytes = a_stride * 2;
    const auto place = [&](auto n) __attribute__((always_inline)) {
      return c + n / kWide * kTileRows * c_stride + n % kWide * kLanes;
    };
    unrolled<kHigh * kWide>(ATTEND_EACH(n) {
      if (add) tile_load<n>(place(n), c_bytes);
      else tile_zero<n>();
    });
    for (int s = 0; s < steps; ++s, a += kTileSteps, b += b_step)
      Products::multiply<kHigh, kWide>(a, kTileRows * a_bytes, a_bytes, b);
    unrolled<kHigh * kWide>(ATTEND_EACH(n) { tile_store<n>(place(n), c_bytes); });
  }
};

}  // namespace
}  // namespace attend
