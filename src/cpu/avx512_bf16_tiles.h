// Attention's products by VDPBF16PS: operands bf16 in pairs (pairs.h), sums f32 in vectors.
//
//   S^T [16 keys][lanes]  =  K [keys][d]   as it lies        times  Q^T  in pairs of features
//   O   [lanes][dv]       =  P^T [16 keys, ...][lanes]       times  V    in pairs of keys
//
// A score is one chain of pairs of features (avx512_bf16.h), in parts of 256 features that are
// added; a value of O one chain of pairs of keys. A key that is hidden, or behind the last, weighs
// exactly 0, and adds nothing: so no sum depends on which keys the rows beside it see.
//
// Few rows (decode) would leave most lanes of Q^T without work: there the keys are turned, 16 of
// them in lanes, and pairs of Q are what is broadcast. Chains are the same.
//
// Registers: 8 keys or rows x 2 vectors, 16 sums, 10 loads for 16 products. More sums would not be
// faster: an instruction takes 6 cycles (Zen 4) or 8 (Xeon), and at most two begin in a cycle.
#pragma once

#include "cpu/avx512_bf16.h"
#include "cpu/pairs.h"

namespace attend {
namespace {

struct Avx512Bf16Products : PairOperands<Avx512Bf16Products, bf16> {
  static constexpr int kDepth = Avx512Bf16Tiles::kDepth;
  static constexpr int kKeyGroup = 16;
  static constexpr int kPair = 2 * kLanes;        // elements of a vector of pairs
  static constexpr int kBlock = kLanes * kChunk;  // elements of 16 features of values
  static constexpr std::int64_t kChain = 256;     // features
  static constexpr int kRowsOfTile = 8;

  static void keep_awake() noexcept {}
  static void configure() noexcept {}

  // Where the values of a group from `first` of the chunk on stand.
  static std::int64_t values_at(std::int64_t first, std::int64_t) { return first * kLanes; }

  // s = K Q^T of 16 keys, `s_stride` apart; the second vector of lanes is `s_vector` behind the
  // first. Of the features [from, to) only the last part is worked on, and then all of them: sums
  // stay in registers.
  static void scores(const bf16* k, std::int64_t stride, const bf16* q, int rows, int lanes,
                     std::int64_t, std::int64_t to, std::int64_t depth, float* s,
                     std::int64_t s_stride, std::int64_t s_vector) noexcept {
    if (to < depth) return;
    if (rows == 1) return scores_of_few<1>(k, stride, q, depth, s, s_stride);
    if (rows <= 4) return scores_of_few<4>(k, stride, q, depth, s, s_stride);
    if (rows <= 8) return scores_of_few<8>(k, stride, q, depth, s, s_stride);
    if (lanes == kLanes)
      return score_product_tile<kKeyGroup, 1>(k, stride, q, depth, s, s_stride, s_vector);
    for (int key = 0; key < kKeyGroup; key += kRowsOfTile)
      score_product_tile<kRowsOfTile, 2>(k + key * stride, stride, q, depth, s + key * s_stride,
                                         s_stride, s_vector);
  }

  // The scores of a group become weights, 2^((s - base) unit), for one vector of lanes; in their
  // place stands then P^T [8 pairs of keys][16 lanes][2], times the factors (of dropout, of
  // scales), if any. Adds up the even and the odd keys.
  template <bool kFactors>
  ATTEND_INLINE static void weights(float* s, F32 base, F32 unit, const float* factors,
                                    std::int64_t factors_stride, F32 (&total)[2]) noexcept {
    unrolled<kKeyGroup / 2>(ATTEND_EACH(pair) {
      weight_pair<kFactors>(s + 2 * pair * kLanes, base, unit,
                            kFactors ? factors + 2 * pair * factors_stride : nullptr,
                            factors_stride, total)
          .store(s + pair * kLanes);
    });
  }

  // o[rows][dv] = P V of some groups, with P as weights() leaves it; dv in whole vectors.
  static void products(const float* weights, int rows, const bf16* const* v, int groups,
                       std::int64_t dv, float* o, std::int64_t o_stride) noexcept {
    const auto take = [&]<int kRows, int kVectors>(int n) {
      const bf16* const p = weights_of_row(weights, n);
      const int left = rows - n < kRows ? rows - n : kRows;
      std::int64_t x = 0;
      for (; x + kVectors * kLanes <= dv; x += kVectors * kLanes)
        value_product_tile<kRows, kVectors>(p, v, x * kChunk, groups, o + n * o_stride + x,
                                            o_stride, left);
      for (; x < dv; x += kLanes)
        value_product_tile<kRows, 1>(p, v, x * kChunk, groups, o + n * o_stride + x, o_stride,
                                     left);
    };
    if (rows <= 2) return take.template operator()<2, 4>(0);
    for (int n = 0; n < rows; n += kRowsOfTile) take.template operator()<kRowsOfTile, 2>(n);
  }

  // Row n of it again, without the keys for which hidden(group, key) is true: 0 * NaN is NaN.
  template <class Hidden>
  static void products_of_row(const float* weights, int n, const bf16* const* v, int groups,
                              std::int64_t dv, Hidden hidden, float* o) noexcept {
    int seen[kChunk / 2];  // what to keep of a pair of keys
    for (int key = 0; key < groups * kKeyGroup; key += 2) {
      const auto keeps = [&](int x, std::uint32_t half) {
        return hidden(x / kKeyGroup, x % kKeyGroup) ? 0 : half;
      };
      seen[key / 2] = static_cast<int>(keeps(key, 0xFFFF) | keeps(key + 1, 0xFFFF0000));
    }
    const bf16* const p = weights_of_row(weights, n);
    for (std::int64_t x = 0; x < dv; x += kLanes) {
      F32 sum = F32::set(0);
      for (int pair = 0; pair < groups * kKeyGroup / 2; ++pair) {
        const int g = pair / (kKeyGroup / 2), at = pair % (kKeyGroup / 2) * kPair;
        const __m512i values = _mm512_loadu_si512(v[g] + x * kChunk + at);
        const __m512i kept = _mm512_and_si512(values, _mm512_set1_epi32(seen[pair]));
        add_pairs(broadcast_pair(p + g * kGroupOfWeights + at), {_mm512_castsi512_ps(kept)}, sum);
      }
      sum.store(o + x);
    }
  }

 private:
  // From a group's weights to the next: in the place of f32 scores, half of it used.
  static constexpr int kGroupOfWeights = 2 * kKeyGroup * kLanes;
  static const bf16* weights_of_row(const float* weights, int n) {
    return reinterpret_cast<const bf16*>(weights + n / kLanes * kLanes * kChunk) + n % kLanes * 2;
  }

  template <int kKeys, int kVectors>
  [[gnu::noinline]] static void score_product_tile(const bf16* k, std::int64_t stride,
                                                   const bf16* q, std::int64_t depth, float* s,
                                                   std::int64_t s_stride,
                                                   std::int64_t s_vector) noexcept {
    for (std::int64_t from = 0; from < depth; from += kChain) {
      const std::int64_t features = from + kChain < depth ? kChain : depth - from;
      F32 sum[kKeys][kVectors];
      unrolled<kKeys>(ATTEND_EACH(r) { set_zero(sum[r]); });
      multiply<true>(k + from, stride, q + from * kVectors * kLanes, kVectors * kPair, kPair,
                     features / 2, sum);
      float* at = s;
      unrolled<kKeys>(ATTEND_EACH(r) {
        unrolled<kVectors>(ATTEND_EACH(n) {
          if (from > 0) sum[r][n] = F32::load(at + n * s_vector) + sum[r][n];
          sum[r][n].store(at + n * s_vector);
        });
        at += s_stride;
        asm("" : "+r"(at));  // else each key has an address of its own, all computed beforehand
      });
    }
  }

  // The same of one vector of lanes, of which the first kRows are made. Those behind the last row
  // repeat it, and so do the scores behind kRows.
  template <int kRows>
  [[gnu::noinline]] static void scores_of_few(const bf16* k, std::int64_t stride, const bf16* q,
                                              std::int64_t depth, float* s,
                                              std::int64_t s_stride) noexcept {
    F32 square[kLanes], total[kRows];
    for (std::int64_t from = 0; from < depth; from += kChain) {
      const std::int64_t to = from + kChain < depth ? from + kChain : depth;
      F32 sum[kRows];
      set_zero(sum);
      for (std::int64_t x = from; x < to; x += kPair) {
        load_turned(k + x, stride, to - x, square);
        unrolled<kLanes>(ATTEND_EACH(n) {
          if (x + 2 * n < to)
            unrolled<kRows>(ATTEND_EACH(r) {
              add_pairs(broadcast_pair(q + (x + 2 * n) * kLanes + 2 * r), square[n], sum[r]);
            });
        });
      }
      unrolled<kRows>(ATTEND_EACH(r) { total[r] = from > 0 ? total[r] + sum[r] : sum[r]; });
    }
    unrolled<kLanes>(ATTEND_EACH(r) { square[r] = total[r < kRows ? r : kRows - 1]; });
    transpose(square);
    unrolled<kLanes>(ATTEND_EACH(key) { square[key].store(s + key * s_stride); });
  }

  // 16 pairs of features of 16 keys, those in lanes; of the first `left` features.
  ATTEND_INLINE static void load_turned(const bf16* k, std::int64_t stride, std::int64_t left,
                                        F32 (&square)[kLanes]) {
    if (left >= kPair && stride % 2 == 0)
      return load_transposed<F32>(reinterpret_cast<const float*>(k), stride / 2, square);
    unrolled<kLanes>(ATTEND_EACH(key) { square[key].v = pairs(k + key * stride, left); });
    transpose(square);
  }

  // P V for kRows rows, `rows` of which are stored.
  template <int kRows, int kVectors>
  [[gnu::noinline]] static void value_product_tile(const bf16* p, const bf16* const* v,
                                                   std::int64_t block, int groups, float* o,
                                                   std::int64_t o_stride, int rows) noexcept {
    F32 sum[kRows][kVectors];
    unrolled<kRows>(ATTEND_EACH(r) { set_zero(sum[r]); });
    for (int g = 0; g < groups; ++g, p += kGroupOfWeights)
      multiply<false>(p, kPair, v[g] + block, kPair, kBlock, kKeyGroup / 2, sum);
    unrolled<kRows>(ATTEND_EACH(r) {
      if (r < rows) store(sum[r], o + r * o_stride);
    });
  }
};

}  // namespace
}  // namespace attend
