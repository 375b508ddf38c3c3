// Attention's products by the tiles of AMX: operands bf16 or f16, sums f32. A group of 32 keys is
// what one multiplication takes, of scores as the rows of two tiles, of values as its depth.
//
//   S^T [32 keys][lanes]  =  K [keys][d]   as it lies       times  Q^T  in pairs of features
//   O   [lanes][dv]      +=  P [lanes][32 keys]             times  V    in pairs of keys
//
// A score is the sum over blocks of 32 features, ascending, of what amx.h says of one; a value of O
// the same over groups of 32 keys. Groups begin at multiples of 32, and a key that is hidden, or
// behind the last, weighs exactly 0: so no sum depends on which keys the rows beside it see.
//
// What limits it, in cycles, was measured: docs/decisions/025-amx.md.
#pragma once

#include "cpu/amx.h"
#include "cpu/pairs.h"

namespace attend {
namespace {

// Columns [0, width) of a product of up to 32 rows, in registers of kHigh x kWide tiles: calls
// use<kHigh, kWide>(first column) for as many at a time as eight tiles hold.
template <class Use>
ATTEND_INLINE void for_columns(int rows, std::int64_t width, Use use) {
  std::int64_t x = 0;
  const auto take = [&]<int kHigh, int kWide>() {
    for (; x + kWide * F32::kLanes <= width; x += kWide * F32::kLanes)
      use.template operator()<kHigh, kWide>(x);
  };
  if (rows <= kTileRows) {
    take.template operator()<1, 4>();
    take.template operator()<1, 1>();
  } else {
    take.template operator()<2, 2>();
    take.template operator()<2, 1>();
  }
}

template <class E>
struct AmxProducts : PairOperands<AmxProducts<E>, E> {
  using Pairs = PairOperands<AmxProducts<E>, E>;
  static constexpr int kDepth = AmxTiles<E>::kDepth;
  static constexpr int kKeyGroup = kDepth;  // keys
  static constexpr int kLanes = F32::kLanes;
  static constexpr int kTile = kTileRows * kTileSteps;  // elements
  static constexpr int kBlock = kTile;

  static void keep_awake() noexcept { stay_awake(); }
  static void configure() noexcept { configure_tiles(); }

  // Where the values of a group from `first` of the chunk on stand.
  static std::int64_t values_at(std::int64_t first, std::int64_t width) { return first * width; }

  // s = K Q^T of 32 keys, `s_stride` apart; the second vector of lanes is `s_vector` behind the
  // first. Of the features [from, to): sums stay in the tiles 0 to 3 until the last of them.
  static void scores(const E* k, std::int64_t stride, const E* q, int, int lanes, std::int64_t from,
                     std::int64_t to, std::int64_t depth, float* s, std::int64_t s_stride,
                     std::int64_t s_vector) noexcept {
    const std::int64_t k_bytes = stride * 2, q_bytes = lanes * 4, bytes = s_stride * 4;
    const E* const k_second = k + kTileRows * stride;
    float* const s_second = s + kTileRows * s_stride;
    if (from == 0) unrolled<4>(ATTEND_EACH(n) { tile_zero<n>(); });
    if (lanes == kLanes) {
      for (std::int64_t x = from; x < to; x += kTileSteps) {
        tile_load<4>(k + x, k_bytes);
        tile_load<6>(q + x * lanes, q_bytes);
        tile_load<5>(k_second + x, k_bytes);
        tile_multiply<0, 4, 6, E>();
        tile_multiply<1, 5, 6, E>();
      }
    } else {
      for (std::int64_t x = from; x < to; x += kTileSteps) {
        tile_load<6>(q + x * lanes, q_bytes);
        tile_load<4>(k + x, k_bytes);
        tile_load<7>(q + x * lanes + 2 * kLanes, q_bytes);
        tile_load<5>(k_second + x, k_bytes);
        tile_multiply<0, 4, 6, E>();
        tile_multiply<2, 4, 7, E>();
        tile_multiply<1, 5, 6, E>();
        tile_multiply<3, 5, 7, E>();
      }
    }
    if (to < depth) return;
    tile_store<0>(s, bytes);
    tile_store<1>(s_second, bytes);
    if (lanes == kLanes) return;
    tile_store<2>(s + s_vector, bytes);
    tile_store<3>(s_second + s_vector, bytes);
  }

  // The scores of a group become weights, 2^((s - base) unit), for one vector of lanes; in their
  // place stands then P [16 lanes][32 keys], times the factors (of dropout, of scales), if any.
  // Adds up the even and the odd keys.
  template <bool kFactors>
  ATTEND_INLINE static void weights(float* s, F32 base, F32 unit, const float* factors,
                                    std::int64_t factors_stride, F32 (&total)[2]) noexcept {
    stay_awake();
    F32 square[kLanes];
    unrolled<kLanes>(ATTEND_EACH(pair) {
      square[pair] = Pairs::template weight_pair<kFactors>(
          s + 2 * pair * kLanes, base, unit,
          kFactors ? factors + 2 * pair * factors_stride : nullptr, factors_stride, total);
    });
    store_turned(square, s);
  }

  // o[rows][dv] = P V of some groups, with P as weights() leaves it; dv in whole vectors.
  static void products(const float* weights, int rows, const E* const* v, int groups,
                       std::int64_t dv, float* o, std::int64_t o_stride) noexcept {
    for_columns(rows, dv, [&]<int kHigh, int kWide>(std::int64_t x) {
      products<kHigh, kWide>(weights, rows, v, groups, x, o + x, o_stride);
    });
  }

  // Row n of it again, without the keys for which hidden(group, key) is true: 0 * NaN is NaN.
  template <class Hidden>
  static void products_of_row(const float* weights, int n, const E* const* v, int groups,
                              std::int64_t dv, Hidden hidden, float* o) noexcept {
    const float* const p = weights + n / kTileRows * kLanes * kChunk;
    for (std::int64_t x = 0; x < dv; x += kLanes) {
      tile_zero<0>();
      for (int g = 0; g < groups; ++g) {
        tile_load<1>(p + g * kKeyGroup * kLanes, 64);
        load_seen<2>(v[g] + x * kKeyGroup, [&](int key) { return hidden(g, key); });
        tile_multiply<0, 1, 2, E>();
      }
      float sums[kTileRows][kLanes];
      tile_store<0>(sums, 64);
      std::memcpy(o + x, sums[n % kTileRows], sizeof sums[0]);
    }
  }

  // A tile of 32 steps and 16 columns, as values() leaves it, with 0 for steps that are hidden.
  template <int kTo, class Hidden>
  ATTEND_INLINE static void load_seen(const E* from, Hidden hidden) {
    E seen[kTileSteps / 2][kLanes][2];
    std::memcpy(seen, from, sizeof seen);
    for (int step = 0; step < kTileSteps; ++step)
      for (int f = 0; hidden(step) && f < kLanes; ++f) seen[step / 2][f][step % 2] = E{};
    tile_load<kTo>(seen, 64);
  }

  // Adds one step of 32 to the tiles 0, 1, ..., kHigh x kWide of them: a has its tiles `a_next`
  // bytes apart, b side by side.
  template <int kHigh, int kWide>
  ATTEND_INLINE static void multiply(const void* a, std::int64_t a_next, std::int64_t a_row_bytes,
                                     const E* b) {
    unrolled<kHigh>(ATTEND_EACH(r) {
      tile_load<4 + r>(static_cast<const std::byte*>(a) + r * a_next, a_row_bytes);
    });
    unrolled<kWide>(ATTEND_EACH(c) {
      constexpr int kB = 4 + kHigh + c % (4 - kHigh);
      tile_load<kB>(b + c * kTile, 64);
      unrolled<kHigh>(ATTEND_EACH(r) { tile_multiply<r * kWide + c, 4 + r, kB, E>(); });
    });
  }

  // Pairs of keys in lanes become rows of keys; the place is one of f32 numbers, half of it used.
  ATTEND_INLINE static void store_turned(F32 (&pairs_in_lanes)[kLanes], float* to) noexcept {
    transpose(pairs_in_lanes);
    unrolled<kLanes>(ATTEND_EACH(n) {
      Pairs::store_pairs(pairs_in_lanes[n].v, reinterpret_cast<E*>(to) + n * kKeyGroup);
    });
  }

 private:
  template <int kHigh, int kWide>
  static void products(const float* p, int rows, const E* const* v, int groups, std::int64_t x,
                       float* o, std::int64_t o_stride) noexcept {
    unrolled<kHigh * kWide>(ATTEND_EACH(n) { tile_zero<n>(); });
    constexpr std::int64_t kNext = kLanes * kChunk * sizeof(float);
    for (int g = 0; g < groups; ++g, p += kKeyGroup * kLanes)
      multiply<kHigh, kWide>(p, kNext, 64, v[g] + x * kKeyGroup);
    unrolled<kHigh>(ATTEND_EACH(r) {
      unrolled<kWide>(ATTEND_EACH(c) {
        store_rows<r * kWide + c>(o + r * kTileRows * o_stride + c * kLanes, o_stride,
                                  rows - r * kTileRows);
      });
    });
  }

  template <int kTile>
  ATTEND_INLINE static void store_rows(float* o, std::int64_t stride, int rows) {
    if (rows >= kTileRows) return tile_store<kTile>(o, stride * 4);
    float all[kTileRows][kLanes];
    tile_store<kTile>(all, sizeof all[0]);
    for (int n = 0; n < rows; ++n) F32::load(all[n]).store(o + n * stride);
  }
};

}  // namespace
}  // namespace attend
