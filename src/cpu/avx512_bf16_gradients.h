// What backward asks of VDPBF16PS beside avx512_bf16_tiles.h: P and dS, rounded to bf16 once each,
// as operands of three products.
//
//   dQ [rows][d]   = dS^T [16 keys, ...][rows]           times  K   in pairs of keys
//   dV [keys][dv] += P^T  [keys][32 rows]  as it lies    times  dO  in pairs of rows
//   dK [keys][d]  += dS^T [keys][32 rows]  as it lies    times  Q   in pairs of rows
//
// A sum over the rows of a group is one chain of pairs; what is there is added to it. A pair that
// is hidden is exactly 0 in P and dS, and so are rows behind the last: what is added for them
// changes no sum, unless what they are multiplied with is not finite. Then sums are made again, by
// the same instruction, with zeros in the place of what is hidden.
#pragma once

#include "cpu/avx512_bf16_tiles.h"
#include "cpu/pairs_gradients.h"

namespace attend {
namespace {

struct Avx512Bf16Gradients {
  using Products = Avx512Bf16Products;
  using Units = NoUnits;
  static constexpr int kLanes = F32::kLanes, kPair = Products::kPair, kBlock = Products::kBlock;
  static constexpr int kPairsOfTile = Avx512Bf16Tiles::kScores * kLanes / 2;  // of rows

  // Whether all of so many rows are, as Matrix::values leaves them, in whole groups.
  static bool rows_finite(const bf16* values, std::int64_t rows, std::int64_t width) noexcept {
    for (std::int64_t x = 0; x < width; x += kLanes, values += kBlock)
      if (!are_finite(values, rows * kLanes)) return false;
    return true;
  }

  static Units units_of_rows(const float*, std::int64_t, int, int) noexcept { return {}; }
  static void bring_back(Units, int, std::int64_t, float*) noexcept {}

  // A group of keys, f32 [16 keys][lanes], as Matrix::products reads weights.
  static void turn(const float* pairs, std::int64_t stride, int lanes, Units, float* to) noexcept {
    for (int n = 0; n < lanes; n += kLanes, to += kLanes * kChunk)
      unrolled<Products::kKeyGroup / 2>(ATTEND_EACH(pair) {
        const float* even = pairs + 2 * pair * stride + n;
        Products::rounded_pair(F32::load(even), F32::load(even + stride)).store(to + pair * kLanes);
      });
  }

  template <class Pairs>
  static Units narrow(const Pairs& pairs, bf16* to, std::int64_t to_stride) noexcept {
    RowsOfKeys<Products, bf16>::narrow(pairs, Products::kKeyGroup, nullptr, to, to_stride);
    return {};
  }

  // c[keys][width] (+)= a b, over so many tiles of rows: a[key][32 rows of each], b as
  // Matrix::values leaves them.
  static void products(const bf16* a, std::int64_t a_stride, const bf16* b, int tiles,
                       std::int64_t width, float* c, std::int64_t c_stride, int keys, Units,
                       bool add) noexcept {
    constexpr int kKeys = Products::kRowsOfTile;
    const auto take = [&]<int kVectors>(std::int64_t x) {
      for (int key = 0; key < keys; key += kKeys)
        key_product_tile<kKeys, kVectors>(a + key * a_stride, a_stride, b + x * kChunk,
                                          tiles * kPairsOfTile, c + key * c_stride + x, c_stride,
                                          keys - key, add);
    };
    std::int64_t x = 0;
    for (; x + 2 * kLanes <= width; x += 2 * kLanes) take.template operator()<2>(x);
    for (; x < width; x += kLanes) take.template operator()<1>(x);
  }

  // The sums of one key again, without the rows for which hidden(tile, row) is true.
  template <class Hidden>
  static void products_of_key(const bf16* a, std::int64_t a_stride, int key, const bf16* b,
                              int tiles, std::int64_t width, Hidden hidden, float* c, Units,
                              bool add) noexcept {
    a += key * a_stride;
    for (std::int64_t x = 0; x < width; x += kLanes) {
      F32 sum = F32::set(0);
      for (int pair = 0; pair < tiles * kPairsOfTile; ++pair) {
        const int tile = pair / kPairsOfTile, row = pair % kPairsOfTile * 2;
        const std::uint32_t seen =
            (hidden(tile, row) ? 0 : 0xFFFF) | (hidden(tile, row + 1) ? 0 : 0xFFFF0000);
        const __m512i rows = _mm512_loadu_si512(b + x * kChunk + pair * kPair);
        const __m512i kept = _mm512_and_si512(rows, _mm512_set1_epi32(static_cast<int>(seen)));
        add_pairs(broadcast_pair(a + 2 * pair), {_mm512_castsi512_ps(kept)}, sum);
      }
      joined(sum, c + x, add).store(c + x);
    }
  }

 private:
  // A sum that is -0, of products too small for f32, is +0, as it is among others.
  ATTEND_INLINE static F32 joined(F32 sum, const float* at, bool add) {
    return (add ? F32::load(at) : F32::set(0)) + sum;
  }

  template <int kKeys, int kVectors>
  [[gnu::noinline]] static void key_product_tile(const bf16* a, std::int64_t a_stride,
                                                 const bf16* b, int pairs, float* c,
                                                 std::int64_t c_stride, int keys,
                                                 bool add) noexcept {
    F32 sum[kKeys][kVectors];
    unrolled<kKeys>(ATTEND_EACH(r) { set_zero(sum[r]); });
    multiply<true>(a, a_stride, b, kPair, kBlock, pairs, sum);
    unrolled<kKeys>(ATTEND_EACH(r) {
      if (r < keys)
        unrolled<kVectors>(ATTEND_EACH(n) {
          float* const at = c + r * c_stride + n * kLanes;
          joined(sum[r][n], at, add).store(at);
        });
    });
  }
};

}  // namespace
}  // namespace attend
