// What backward asks of the tiles of AMX beside amx_tiles.h: P and dS, rounded to 16 bits once
// each, as operands of three products. Sums as there, over groups of 32 keys or 32 query rows.
//
//   dQ [rows][d]   = dS   [rows][32 keys]  turned       times  K   in pairs of keys
//   dV [keys][dv] += P^T  [keys][32 rows]  as it lies   times  dO  in pairs of rows
//   dK [keys][d]  += dS^T [keys][32 rows]  as it lies   times  Q   in pairs of rows
//
// f16 has the digits, but not the exponents: gradients of 1e-7 would vanish in it, and those of 1e5
// become infinite. So a line of P or dS, which is what one sum is made of, is multiplied with a
// power of two that brings its largest number to [2^14, 2^15), and the sum with the inverse, in
// f32:
//
//   dQ   a line is a query row and a chunk of keys
//   dV   a line is a key and a group of query rows; a sum joins those before it after
//   dK   it was brought back, by vectors
//
// What is 2^-29 times the largest still has all digits, what is below 2^-40 times it is 0. A line
// has no number but its own pairs: so neither what is hidden nor NaN in another row reaches it.
//
// A pair that is hidden is exactly 0 in P and dS, and so are rows behind the last: what is added
// for them changes no sum, unless what they are multiplied with is not finite. Then sums are made
// again, with the same instruction, and with zeros in the place of what is hidden.
#pragma once

#include "cpu/amx_tiles.h"
#include "cpu/pairs_gradients.h"

namespace attend {
namespace {

template <class E>
struct AmxGradients {
  using Products = AmxProducts<E>;
  static constexpr int kLanes = F32::kLanes;
  static constexpr bool kScales = std::is_same_v<E, f16>;

  // Powers of two for 32 lines, and their inverses.
  struct Units {
    alignas(64) float to[2 * kLanes], back[2 * kLanes];
  };

  // Whether all of so many rows are, as Matrix::values leaves them, in whole groups.
  static bool rows_finite(const E* values, std::int64_t rows, std::int64_t width) noexcept {
    return are_finite(values, rows * width);
  }

  // ---- dq: the rows are lines ------------------------------------------------------------------

  // Of `keys` keys, f32 [keys][lanes].
  static Units units_of_rows(const float* pairs, std::int64_t stride, int keys,
                             int lanes) noexcept {
    Units units;
    for (int n = 0; kScales && n < lanes; n += kLanes) {
      F32 most = F32::set(0);
      for (int key = 0; key < keys; ++key) {
        if (key % (2 * kLanes) == 0) stay_awake();
        most = larger_size(F32::load(pairs + key * stride + n), most);
      }
      set_units(most, units, n);
    }
    return units;
  }

  // A group of keys, f32 [32 keys][lanes], as Matrix::products reads weights.
  static void turn(const float* pairs, std::int64_t stride, int lanes, const Units& units,
                   float* to) noexcept {
    stay_awake();
    for (int n = 0; n < lanes; n += kLanes, to += kLanes * kChunk) {
      F32 square[kLanes];
      const F32 unit = kScales ? F32::load(units.to + n) : F32::set(1);
      const auto scaled = [&](const float* from) __attribute__((always_inline)) {
        return kScales ? F32::load(from) * unit : F32::load(from);
      };
      unrolled<kLanes>(ATTEND_EACH(pair) {
        const float* even = pairs + 2 * pair * stride + n;
        square[pair] = Products::rounded_pair(scaled(even), scaled(even + stride));
      });
      Products::store_turned(square, to);
    }
  }

  // Their sums, [rows][width].
  static void bring_back(const Units& units, int rows, std::int64_t width, float* sums) noexcept {
    for (int n = 0; kScales && n < rows; ++n, sums += width)
      for (std::int64_t x = 0; x < width; x += kLanes)
        (F32::load(sums + x) * F32::set(units.back[n])).store(sums + x);
  }

  // ---- dk and dv: the keys are lines -----------------------------------------------------------

  // As rows of keys, to[key][32 rows of each tile].
  template <class Pairs>
  static Units narrow(const Pairs& pairs, E* to, std::int64_t to_stride) noexcept {
    Units units;
    const int lines = pairs.keys > kTileRows ? 2 * kTileRows : kTileRows;
    if constexpr (kScales) units_of_keys(pairs, lines, units);
    RowsOfKeys<Products, E>::narrow(pairs, lines, units.to, to, to_stride);
    return units;
  }

  // c[keys][width] (+)= a b, over `steps` groups of rows: a[key][32 rows of each], b as
  // Matrix::values leaves them.
  static void products(const E* a, std::int64_t a_stride, const E* b, int steps, std::int64_t width,
                       float* c, std::int64_t c_stride, int keys, const Units& units,
                       bool add) noexcept {
    for_columns(keys, width, [&]<int kHigh, int kWide>(std::int64_t x) {
      products<kHigh, kWide>(a, a_stride, b + x * kTileSteps, width * kTileSteps, steps, c + x,
                             c_stride, keys, units, add);
    });
  }

  // The sums of one key again, without the rows for which hidden(step, row) is true.
  template <class Hidden>
  static void products_of_key(const E* a, std::int64_t a_stride, int key, const E* b, int steps,
                              std::int64_t width, Hidden hidden, float* c, const Units& units,
                              bool add) noexcept {
    for (std::int64_t x = 0; x < width; x += kLanes) {
      float sums[kTileRows][kLanes] = {};
      if (add && !kScales) std::memcpy(sums[0], c + x, sizeof sums[0]);
      tile_load<0>(sums, sizeof sums[0]);
      for (int s = 0; s < steps; ++s) {
        E pairs[kTileRows][kTileSteps] = {};
        std::memcpy(pairs[0], a + key * a_stride + s * kTileSteps, sizeof pairs[0]);
        tile_load<1>(pairs, sizeof pairs[0]);
        Products::template load_seen<2>(b + (s * width + x) * kTileSteps,
                                        [&](int row) { return hidden(s, row); });
        tile_multiply<0, 1, 2, E>();
      }
      tile_store<0>(sums, sizeof sums[0]);
      if constexpr (kScales) join(sums[0], units.back[key], c + x, add);
      else std::memcpy(c + x, sums[0], sizeof sums[0]);
    }
  }

 private:
  // The larger of |x| and `most`, which is not NaN; if x is, `most`.
  ATTEND_INLINE static F32 larger_size(F32 x, F32 most) {
    return {_mm512_max_ps(_mm512_abs_ps(x.v), most.v)};
  }

  // Of the largest numbers of 16 lines. Where one is 0, infinite, or below 2^-100: any number that
  // keeps it so, and has an inverse.
  ATTEND_INLINE static void set_units(F32 most, Units& units, int at) {
    const __m512 exponent = _mm512_getexp_ps(most.v), one = _mm512_set1_ps(1);
    const __m512 e = _mm512_sub_ps(
        _mm512_min_ps(_mm512_max_ps(exponent, _mm512_set1_ps(-100)), _mm512_set1_ps(128)),
        _mm512_set1_ps(14));
    _mm512_store_ps(units.back + at, _mm512_scalef_ps(one, e));
    _mm512_store_ps(units.to + at, _mm512_scalef_ps(one, _mm512_sub_ps(_mm512_setzero_ps(), e)));
  }

  template <class Pairs>
  static void units_of_keys(const Pairs& pairs, int lines, Units& units) {
    for (int half = 0; half < lines; half += kLanes) {
      F32 most[kLanes];
      unrolled<kLanes>(ATTEND_EACH(n) { most[n] = F32::set(0); });
      const auto take = [&](auto taken, int row) __attribute__((always_inline)) {
        const float* from = pairs.from(row) + half * pairs.stride;
        unrolled<kLanes>(
            ATTEND_EACH(n) { most[n] = larger_size(taken(from + n * pairs.stride), most[n]); });
      };
      stay_awake();
      for (int row = 0; row < pairs.rows; row += kLanes)
        if (pairs.all(row, kLanes)) take(AllRows(pairs, row), row);
        else take(SeenRows(pairs, row), row);
      set_units(largest_lanes(most), units, half);
    }
  }

  // Lane n: the largest lane of lines[n]. Halves of the lanes of two lines at a time.
  ATTEND_INLINE static F32 largest_lanes(F32 (&lines)[kLanes]) {
    __m512 of[4];  // lane 4 r + x is one of four of line 4 r + n
    unrolled<4>(ATTEND_EACH(n) {
      const auto fold = [](__m512 a, __m512 b) __attribute__((always_inline)) {
        return _mm512_max_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
      };
      const __m512 low = fold(lines[n].v, lines[n + 4].v);
      const __m512 high = fold(lines[n + 8].v, lines[n + 12].v);
      of[n] = _mm512_max_ps(_mm512_shuffle_f32x4(low, high, 0x88),
                            _mm512_shuffle_f32x4(low, high, 0xDD));
    });
    const auto fold = [](__m512 a, __m512 b) __attribute__((always_inline)) {
      return _mm512_castps_pd(_mm512_max_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
    };
    const __m512d a = fold(of[0], of[1]), b = fold(of[2], of[3]);
    return {_mm512_max_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                          _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)))};
  }

  ATTEND_INLINE static void join(const float* sums, float back, float* c, bool add) {
    const F32 sum = F32::load(sums) * F32::set(back);
    (add ? F32::load(c) + sum : sum).store(c);
  }

  // Sums stay where they lie; or, if keys are fewer than the tiles' rows, in a copy; or are brought
  // back first.
  template <int kHigh, int kWide>
  static void products(const E* a, std::int64_t a_stride, const E* b, std::int64_t b_step,
                       int steps, float* c, std::int64_t c_stride, int keys, const Units& units,
                       bool add) noexcept {
    constexpr int kRows = kHigh * kTileRows, kColumns = kWide * kLanes;
    if constexpr (kScales) {
      alignas(64) float sums[kRows * kColumns];
      multiply<kHigh, kWide>(a, a_stride, b, b_step, steps, sums, kColumns, false);
      for (int key = 0; key < keys && key < kRows; ++key, c += c_stride)
        unrolled<kWide>(ATTEND_EACH(n) {
          join(sums + key * kColumns + n * kLanes, units.back[key], c + n * kLanes, add);
        });
    } else if (keys < kRows) {
      float some[kRows * kColumns] = {};
      for (int key = 0; add && key < keys; ++key)
        std::memcpy(some + key * kColumns, c + key * c_stride, kColumns * sizeof(float));
      multiply<kHigh, kWide>(a, a_stride, b, b_step, steps, some, kColumns, add);
      for (int key = 0; key < keys; ++key)
        std::memcpy(c + key * c_stride, some + key * kColumns, kColumns * sizeof(float));
    } else {
      multiply<kHigh, kWide>(a, a_stride, b, b_step, steps, c, c_stride, add);
    }
  }

  template <int kHigh, int kWide>
  ATTEND_INLINE static void multiply(const E* a, std::int64_t a_stride, const E* b,
                                     std::int64_t b_step, int steps, float* c,
                                     std::int64_t c_stride, bool add) noexcept {
    const std::int64_t c_bytes = c_stride * 4, a_bytes = a_stride * 2;
    const auto place = [&](auto n) __attribute__((always_inline)) {
      return c + n / kWide * kTileRows * c_stride + n % kWide * kLanes;
    };
    unrolled<kHigh * kWide>(ATTEND_EACH(n) {
      if (add) tile_load<n>(place(n), c_bytes);
      else tile_zero<n>();
    });
    for (int s = 0; s < steps; ++s, a += kTileSteps, b += b_step)
      Products::template multiply<kHigh, kWide>(a, kTileRows * a_bytes, a_bytes, b);
    unrolled<kHigh * kWide>(ATTEND_EACH(n) { tile_store<n>(place(n), c_bytes); });
  }
};

}  // namespace
}  // namespace attend
