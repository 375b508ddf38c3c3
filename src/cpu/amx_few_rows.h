// What few rows of queries (matrix_few_rows.h) ask of the tiles of AMX: up to eight rows, of which
// a vector of 16 lanes holds several keys.
//
//   s [32 keys][kRows]   a tile of scores is stored so that its rows overlap: of each, what the
//                        next does not write over are its first kRows lanes
//   P [kRows][32 keys]   the rows of an operand a; what lies in its other rows is multiplied, too,
//                        and nobody looks at it
//
// Every number is that of AmxProducts, whose lanes are rows: products, powers of two and the order
// in which weights are added do not depend on where a number stands.
#pragma once

#include "cpu/amx_tiles.h"

#include <bit>

namespace attend {
namespace {

template <class E>
struct AmxFewRows {
  using Products = AmxProducts<E>;
  static constexpr int kMost = 8;
  static constexpr int kGroup = Products::kKeyGroup, kLanes = F32::kLanes, kTile = Products::kTile;
  static constexpr int kWide = 4;    // tiles of 16 features that are summed at a time
  static constexpr int kBlocks = 4;  // of 32 features of the queries that stay in tiles

  // q as AmxProducts::queries() leaves it, in the tiles 4 to 7.
  ATTEND_INLINE static void queries(const E* q, std::int64_t blocks) noexcept {
    unrolled<kBlocks>(ATTEND_EACH(x) {
      if (x < blocks) tile_load<4 + x>(q + x * kTile, 64);
    });
  }
  // Adds the products of one such block, of the two halves of a group of keys, to the tiles 0 and
  // 1.
  template <int kBlock>
  ATTEND_INLINE static void block(const E* first, const E* second, std::int64_t stride) noexcept {
    tile_load<2>(first + kBlock * kTileSteps, stride * 2);
    tile_load<3>(second + kBlock * kTileSteps, stride * 2);
    tile_multiply<0, 2, 4 + kBlock, E>();
    tile_multiply<1, 3, 4 + kBlock, E>();
  }
  template <int kRows>
  ATTEND_INLINE static void store_scores(float* s) noexcept {
    tile_store<0>(s, kRows * 4);
    tile_store<1>(s + kTileRows * kRows, kRows * 4);
  }

  // The sums of a group become scores, times `by` and the scales of the keys, if there are any;
  // those from `keys` on are hidden. `most` becomes the largest so far, in each lane.
  template <int kRows>
  ATTEND_INLINE static void finish(float* s, int keys, float by, const float* scales,
                                   F32& most) noexcept {
    constexpr int kKeys = kLanes / kRows;
    unrolled<2 * kRows>(ATTEND_EACH(n) {
      float* const at = s + n * kLanes;
      F32 u = F32::load(at);
      if (by != 1) u = u * F32::set(by);
      if (scales != nullptr) u = u * for_rows<kRows>(scales + n * kKeys);
      if (keys < kGroup) {
        const int seen = keys - n * kKeys;
        const auto lanes = F32::first(seen < 0 ? 0 : seen > kKeys ? kLanes : seen * kRows);
        u.v = _mm512_mask_mov_ps(F32::set(-std::numeric_limits<float>::infinity()).v, lanes, u.v);
      }
      if (by != 1 || scales != nullptr || keys < kGroup) u.store(at);
      most = larger(u, most);
    });
  }

  // Each lane becomes the largest of its row.
  template <int kRows>
  ATTEND_INLINE static F32 largest(F32 most) noexcept {
    if constexpr (kRows == kLanes) {
      return most;
    } else {
      const __m512i all = _mm512_castps_si512(most.v);
      const F32 other{_mm512_castsi512_ps(_mm512_alignr_epi32(all, all, kRows))};
      return largest<2 * kRows>(larger(most, other));
    }
  }

  // The scores of a group become weights, 2^((s - base) unit), and these, times the scales of the
  // values, if there are any, P.
  template <int kRows>
  ATTEND_INLINE static void weights(float* s, F32 base, F32 unit, const float* scales,
                                    E* p) noexcept {
    constexpr int kKeys = kLanes / kRows;
    __m512i rows[kRows];
    unrolled<kRows>(ATTEND_EACH(r) {
      F32 w[2];
      unrolled<2>(ATTEND_EACH(n) {
        float* const at = s + (2 * r + n) * kLanes;
        w[n] = Products::power_of_two((F32::load(at) - base) * unit);
        w[n].store(at);
        if (scales != nullptr) w[n] = w[n] * for_rows<kRows>(scales + (2 * r + n) * kKeys);
      });
      rows[r] = Products::rounded(w[0], w[1]);
    });
    part<kRows>(rows);
    unrolled<kRows>(
        ATTEND_EACH(r) { _mm512_storeu_si512(p + reversed<kRows>(r) * kGroup, rows[r]); });
  }

  // Adds up the weights of a group: even keys in the first kRows lanes, odd ones in the next.
  template <int kRows>
  ATTEND_INLINE static void add_up(const float* s, F32& total) noexcept {
    F32 sum = total;
    unrolled<kGroup / 2>(
        ATTEND_EACH(pair) { sum = sum + F32::load_first(s + pair * 2 * kRows, 2 * kRows); });
    total = sum;
  }
  template <int kRows>
  ATTEND_INLINE static F32 even_and_odd(F32 total) noexcept {
    const __m512i all = _mm512_castps_si512(total.v);
    return total + F32{_mm512_castsi512_ps(_mm512_alignr_epi32(all, all, kRows))};
  }

  // A row of 8 bits as operands, whole tiles of it. In bf16 by tables: of a number's size below 64
  // they hold both bytes; from there on the first is twice the size, and the second 0x42 or, of
  // -128 alone, 0x43. 11 instructions for 64 numbers, of which 6 shuffle; by f32 it would be 14.
  ATTEND_INLINE static void keys(const std::int8_t* k, std::int64_t count, E* to) noexcept {
    if constexpr (!std::is_same_v<E, bf16>) return Products::elements(k, count, to);
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);  // for unpacklo and unpackhi
    const auto all = [](int byte) { return _mm512_set1_epi8(static_cast<char>(byte)); };
    for (std::int64_t x = 0; x < count; x += 2 * kTileSteps) {
      const bool whole = count - x >= 2 * kTileSteps;
      const __m512i some =
          whole ? _mm512_loadu_si512(k + x) : _mm512_maskz_loadu_epi8(0xFFFFFFFF, k + x);
      const __m512i n = _mm512_permutexvar_epi64(order, some), size = _mm512_abs_epi8(n);
      const __mmask64 small = _mm512_cmplt_epu8_mask(size, all(64));
      const __m512i low = _mm512_mask_permutexvar_epi8(_mm512_add_epi8(size, size), small, size,
                                                       _mm512_load_si512(kBytes.low));
      const __m512i large = _mm512_mask_mov_epi8(all(0x42), _mm512_movepi8_mask(size), all(0x43));
      const __m512i high =
          _mm512_mask_permutexvar_epi8(large, small, size, _mm512_load_si512(kBytes.high));
      constexpr int kSignOrHigh = 0xEA;  // (n & 0x80) | high
      const __m512i second = _mm512_ternarylogic_epi32(n, all(0x80), high, kSignOrHigh);
      _mm512_storeu_si512(to + x, _mm512_unpacklo_epi8(low, second));
      if (whole) _mm512_storeu_si512(to + x + kTileSteps, _mm512_unpackhi_epi8(low, second));
    }
  }

  // 16 kTiles features of a group of values, as operand b: to[16 features][pair of keys][16][2]; 0
  // from `keys` on. row(key) gives the first row of a pair, the other is `stride` behind it. Those
  // of the operand's own type come in another order, see in_order(). Meanwhile asks(pair) may ask
  // for what comes next.
  template <int kTiles, class Row, class Asks>
  ATTEND_INLINE static void values(Row row, std::int64_t stride, int keys, E* to,
                                   Asks asks) noexcept {
    for_pairs(
        keys, [&](int pair, bool first, bool second) __attribute__((always_inline)) {
          const auto* const a = row(2 * pair);
          asks(pair);
          if constexpr (std::is_same_v<decltype(a), const std::int8_t* const>) {
            unrolled<kTiles>(ATTEND_EACH(c) {
              const F32 even = first ? F32::widened(a + c * kLanes) : F32::set(0);
              const F32 odd = second ? F32::widened(a + stride + c * kLanes) : F32::set(0);
              _mm512_storeu_si512(to + c * kTile + pair * 2 * kLanes, pair_of(even, odd));
            });
          } else {
            unrolled<kTiles / 2>(ATTEND_EACH(c) {
              const __m512i zero = _mm512_setzero_si512();
              const __m512i even = first ? _mm512_loadu_si512(a + 2 * c * kLanes) : zero;
              const __m512i odd = second ? _mm512_loadu_si512(a + stride + 2 * c * kLanes) : zero;
              E* const at = to + 2 * c * kTile + pair * 2 * kLanes;
              _mm512_storeu_si512(at, _mm512_unpacklo_epi16(even, odd));
              _mm512_storeu_si512(at + kTile, _mm512_unpackhi_epi16(even, odd));
            });
          }
        });
  }

  // o of kTiles tiles += P times such values. P has one row, or several.
  template <int kRows, int kTiles>
  ATTEND_INLINE static void multiply(const E* p, const E* v) noexcept {
    tile_load<4>(p, kRows == 1 ? 0 : 2 * kGroup);
    unrolled<kTiles>(ATTEND_EACH(c) {
      tile_load<5 + c % 2>(v + c * kTile, 64);
      tile_multiply<c, 4, 5 + c % 2, E>();
    });
  }
  template <int kTiles>
  ATTEND_INLINE static void clear() noexcept {
    unrolled<kTiles>(ATTEND_EACH(c) { tile_zero<c>(); });
  }

  // `rows` of o; `mixed`: the values were of the operand's own type.
  template <int kTiles>
  static void store(int rows, bool mixed, float* o, std::int64_t stride) noexcept {
    unrolled<kTiles / 2>(ATTEND_EACH(c) {
      float all[2][kTileRows][kLanes];
      tile_store<2 * c>(all[0], 64);
      tile_store<2 * c + 1>(all[1], 64);
      for (int n = 0; n < rows; ++n) {
        F32 x = F32::load(all[0][n]), y = F32::load(all[1][n]);
        if (mixed) in_order(x, y);
        x.store(o + n * stride + 2 * c * kLanes);
        y.store(o + n * stride + (2 * c + 1) * kLanes);
      }
    });
  }

 private:
  // Of whole numbers below 64 as bf16, the bytes.
  struct alignas(64) Bytes {
    std::uint8_t low[64], high[64];
  };
  static constexpr Bytes kBytes = [] {
    Bytes made{};
    for (int n = 0; n < 64; ++n) {
      const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(n));
      made.low[n] = static_cast<std::uint8_t>(bits >> 16);
      made.high[n] = static_cast<std::uint8_t>(bits >> 24);
    }
    return made;
  }();

  // For each key of a vector of kRows rows, its number in all lanes of these.
  template <int kRows>
  ATTEND_INLINE static F32 for_rows(const float* keys) noexcept {
    if constexpr (kRows == 1) return F32::load(keys);
    alignas(64) std::int32_t index[kLanes];
    for (int n = 0; n < kLanes; ++n) index[n] = n / kRows;
    const F32 some = F32::load_first(keys, kLanes / kRows);
    return {_mm512_permutexvar_ps(_mm512_load_si512(index), some.v)};
  }

  // [keys][kRows] becomes [kRows][keys], its rows in the order of reversed bits.
  template <int kRows>
  ATTEND_INLINE static void part(__m512i* x) noexcept {
    if constexpr (kRows > 1) {
      alignas(64) std::int16_t index[2][2 * kLanes];
      for (int n = 0; n < 2 * kLanes; ++n)
        index[0][n] = static_cast<std::int16_t>(2 * n),
        index[1][n] = static_cast<std::int16_t>(2 * n + 1);
      __m512i half[kRows];
      unrolled<kRows>(ATTEND_EACH(n) {
        half[n] = _mm512_permutex2var_epi16(x[n % (kRows / 2) * 2],
                                            _mm512_load_si512(index[n / (kRows / 2)]),
                                            x[n % (kRows / 2) * 2 + 1]);
      });
      unrolled<kRows>(ATTEND_EACH(n) { x[n] = half[n]; });
      part<kRows / 2>(x);
      part<kRows / 2>(x + kRows / 2);
    }
  }
  template <int kRows>
  static constexpr int reversed(int n) {
    if constexpr (kRows == 1) return n;
    else return n / (kRows / 2) + 2 * reversed<kRows / 2>(n % (kRows / 2));
  }

  // use(pair, whether its first key is there, whether its second is)
  template <class Use>
  ATTEND_INLINE static void for_pairs(int keys, Use use) {
    if (keys >= kGroup) {
      for (int pair = 0; pair < kGroup / 2; ++pair) use(pair, true, true);
    } else {
      for (int pair = 0; pair < kGroup / 2; ++pair) use(pair, 2 * pair < keys, 2 * pair + 1 < keys);
    }
  }

  // Whole numbers of 8 bits: in bf16 the first half of their f32.
  ATTEND_INLINE static __m512i pair_of(F32 even, F32 odd) noexcept {
    if constexpr (std::is_same_v<E, bf16>) {
      const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(even.v), 16);
      return _mm512_mask_blend_epi16(0xAAAAAAAA, low, _mm512_castps_si512(odd.v));
    } else {
      return _mm512_castps_si512(Products::rounded_pair(even, odd).v);
    }
  }

  // Of 32 features, unpacklo and unpackhi gave x the first and y the last four of each eight.
  ATTEND_INLINE static void in_order(F32& x, F32& y) noexcept {
    const __m512 low = _mm512_shuffle_f32x4(x.v, y.v, 0x44),
                 high = _mm512_shuffle_f32x4(x.v, y.v, 0xEE);
    x.v = _mm512_shuffle_f32x4(low, low, 0xD8);
    y.v = _mm512_shuffle_f32x4(high, high, 0xD8);
  }
};

}  // namespace
}  // namespace attend
