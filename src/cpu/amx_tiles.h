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

#include "core/softmax_state.h"
#include "cpu/amx.h"
#include "cpu/elements.h"

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
struct AmxProducts {
  static constexpr int kKeyGroup = AmxTiles<E>::kDepth;  // keys
  static constexpr int kLanes = F32::kLanes;
  static constexpr int kTile = kTileRows * kTileSteps;  // elements
  static constexpr bool kArrangesKeys = false;
  static constexpr int kRowsTogether = 2;

  static void keep_awake() noexcept { stay_awake(); }
  static void configure() noexcept { configure_tiles(); }

  // to[pair of features][lane][2] of `lanes` rows of d features, or of -1 times these; 0 behind
  // them, up to a whole depth.
  static void queries(const E* const* rows, int lanes, std::int64_t d, E* to, bool minus) noexcept {
    const __m512i signs = _mm512_set1_epi16(static_cast<short>(minus ? 0x8000 : 0));
    for (int n = 0; n < lanes; n += kLanes) {
      for (std::int64_t x = 0; x < d; x += kTileSteps) {
        F32 square[kLanes];
        unrolled<kLanes>(ATTEND_EACH(r) {
          square[r].v =
              _mm512_castsi512_ps(_mm512_xor_si512(bits(pairs(rows[n + r] + x, d - x)), signs));
        });
        transpose(square);
        stay_awake();
        E* at = to + (x / 2 * lanes + n) * 2;
        unrolled<kLanes>(ATTEND_EACH(r) { store_pairs(square[r].v, at + r * lanes * 2); });
      }
    }
  }

  // Where the values of a group from `first` of the chunk on stand.
  static std::int64_t values_at(std::int64_t first, std::int64_t width) { return first * width; }

  // A group of values, to[16 features][pair of keys][feature][2], from two rows at a time:
  // row(key of the group) gives one, null behind the last.
  template <class RowOf>
  static void values(RowOf row, std::int64_t dv, E* to) noexcept {
    const __m512i low = interleave(0, 32), high = interleave(16, 32);
    stay_awake();
    for (int pair = 0; pair < kKeyGroup / 2; ++pair) {
      const E *a = row(2 * pair), *b = row(2 * pair + 1);
      E* at = to + pair * 2 * kLanes;
      if (a == nullptr) {
        for (std::int64_t x = 0; x < dv; x += kLanes, at += kTile)
          _mm512_storeu_si512(at, _mm512_setzero_si512());
        continue;
      }
      for (std::int64_t x = 0; x < dv; x += 2 * kLanes, at += 2 * kTile) {
        const __m512i first = bits(pairs(a + x, dv - x));
        const __m512i second = b == nullptr ? _mm512_setzero_si512() : bits(pairs(b + x, dv - x));
        _mm512_storeu_si512(at, _mm512_permutex2var_epi16(first, low, second));
        if (dv - x > kLanes)
          _mm512_storeu_si512(at + kTile, _mm512_permutex2var_epi16(first, high, second));
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

  // s = K Q^T of 32 keys, `s_stride` apart; the second vector of lanes is `s_vector` behind the
  // first. Of the features [from, to): sums stay in the tiles 0 to 3 until the last of them.
  static void scores(const E* k, std::int64_t stride, const E* q, int lanes, std::int64_t from,
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
      F32 w[2];
      unrolled<2>(ATTEND_EACH(n) {
        const F32 t = (F32::load(s + (2 * pair + n) * kLanes) - base) * unit;
        w[n] = power_of_two(t);
        total[n] = total[n] + w[n];
        if constexpr (kFactors) w[n] = w[n] * F32::load(factors + (2 * pair + n) * factors_stride);
      });
      square[pair] = rounded_pair(w[0], w[1]);
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
      store_pairs(pairs_in_lanes[n].v, reinterpret_cast<E*>(to) + n * kKeyGroup);
    });
  }

  // The first n numbers rounded to 16 bits, or all lanes; anything in place of what is doubtful.
  template <class To>
  ATTEND_INLINE static void store_clear(F32 x, To* to, std::int64_t n) noexcept {
    if constexpr (std::is_same_v<To, bf16>) {
      const auto all = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x.v));
      if (n >= kLanes) _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), all);
      else _mm256_mask_storeu_epi16(to, F32::first(n), all);
    } else {
      store_elements(x, to, n);
    }
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

  // 2^t for t <= 0, -inf included; NaN stays. t = n + f with n whole, 0 <= f < 1; 2^f = 1 + f g(f)
  // with a polynomial of degree 3, whose largest relative error is 3.4e-6, and none at 0 and 1.
  ATTEND_INLINE static F32 power_of_two(F32 t) {
    const F32 f{_mm512_reduce_ps(t.v, 0x09)};
    F32 g = fma(F32::set(0.013555747F), f, F32::set(0.05203237F));
    g = fma(g, f, F32::set(0.24137977F));
    g = fma(g, f, F32::set(0.69303215F));
    return {_mm512_scalef_ps(fma(g, f, F32::set(1)).v, t.v)};
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

  static __m512i bits(__m512 v) { return _mm512_castps_si512(v); }

  // Up to 32 elements, 0 behind the last.
  ATTEND_INLINE static __m512 pairs(const E* from, std::int64_t count) {
    if (count >= 2 * kLanes) return _mm512_loadu_ps(from);
    const auto first = static_cast<__mmask32>((std::uint64_t{1} << count) - 1);
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(first, from));
  }
  ATTEND_INLINE static void store_pairs(__m512 v, E* to) { _mm512_storeu_ps(to, v); }

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
