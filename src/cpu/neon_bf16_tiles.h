// Attention's products by BFMMLA: operands bf16, sums f32 in vectors.
//
//   S^T [8 keys][lanes]  =  K [keys][d]                times  Q^T     4 features at a time
//   O   [lanes][dv]      =  P [lanes][8 keys, ...]     times  V       4 keys at a time
//
// A score is one chain of pairs of features (neon_bf16.h), in parts of 256 features that are added;
// a value of O one chain of pairs of keys. A key that is hidden, or behind the last, weighs exactly
// 0, and adds nothing: so no sum depends on which keys the rows beside it see.
//
// Operands, each of 2 rows and 4 steps, 16 bytes, in the order in which loops read them:
//
//   queries   [4 features][2 queries][query][feature]
//   keys      of a group of 8: [4 features][2 keys][key][feature]; or rows as they lie, if no more
//             than one tile of queries reads them
//   P         of a group and 4 lanes: [4 keys][2 lanes][lane][key], in the place of its scores
//   values    [8 features][4 keys of the chunk][2 features][feature][key]; or rows as they lie, for
//             few queries, which take pairs of keys by BFDOT
//
// What limits it, on a Neoverse V1 in cycles a score: BFMMLA, 4.0 at d = 128 and 2.0 at d = 64, and
// beside it, in the same units, some 21 instructions for every 4 scores: 1.3 (of these the weights
// 17, of which 3 are moves; their turning and rounding 2; scores stored in order, and the largest
// found 3).
#pragma once

#include "core/softmax_state.h"
#include "cpu/elements.h"
#include "cpu/exp2.h"
#include "cpu/neon_bf16.h"
#include "cpu/product.h"

namespace attend {
namespace {

// 2^f - 1 = f g(f) for |f| <= 1/2, to 2.9e-6: bf16 has 2^-9.
struct Exp2OfBf16 {
  static constexpr float kG[] = {0.009582853F, 0.055906426F, 0.24024099F, 0.6931242F};
};

struct NeonBf16Products {
  static constexpr int kKeyGroup = 8, kLanes = F32::kLanes;
  static constexpr bool kArrangesKeys = true;
  static constexpr int kRowsTogether = 4;  // that values() asks for before it uses the first
  static constexpr int kSteps = 4;         // of an operand
  static constexpr int kOperand = 2 * kSteps;
  static constexpr std::int64_t kChain = 256;  // features
  static constexpr int kBlock = 8;             // features of values that are taken together

  static void keep_awake() noexcept {}
  static void configure() noexcept {}

  static void queries(const bf16* const* rows, int lanes, std::int64_t d, bf16* to,
                      bool minus) noexcept {
    const uint16x8_t signs = vdupq_n_u16(minus ? 0x8000 : 0);
    for (int n = 0; n < lanes; n += 2)
      for (std::int64_t x = 0; x < d; x += kOperand) {
        const auto take = [&](const bf16* row) {
          return veorq_u16(load_bf16(row + x, d - x), signs);
        };
        const Bf16x8 a = take(rows[n]), b = take(rows[n + 1]);
        bf16* const at = to + x * lanes + n * kSteps;
        store_bf16(lower(a, b), at);
        store_bf16(upper(a, b), at + kSteps * lanes);
      }
  }

  // Where the values of a group from `first` of the chunk on stand.
  static std::int64_t values_at(std::int64_t first, std::int64_t) { return first * kBlock; }

  // row(key of the group) gives one, null behind the last.
  template <class Row>
  static void keys(Row row, std::int64_t d, bf16* to) noexcept {
    for (int key = 0; key < kKeyGroup; key += 2, to += kOperand) {
      const bf16 *a = row(key), *b = row(key + 1);
      bf16* at = to;
      for (std::int64_t x = 0; x < d; x += kOperand, at += 2 * kSteps * kKeyGroup) {
        const Bf16x8 first = row_elements(a, x, d), second = row_elements(b, x, d);
        store_bf16(lower(first, second), at);
        store_bf16(upper(first, second), at + kSteps * kKeyGroup);
      }
    }
  }

  template <class Row>
  static void values(Row row, std::int64_t dv, bf16* to) noexcept {
    for (int key = 0; key < kKeyGroup; key += kSteps, to += kSteps * kBlock) {
      const bf16* rows[kSteps];
      for (int n = 0; n < kSteps; ++n) rows[n] = row(key + n);
      bf16* at = to;
      for (std::int64_t x = 0; x < dv; x += kBlock, at += kBlock * kChunk) {
        Bf16x8 v[kSteps];
        unrolled<kSteps>(ATTEND_EACH(n) { v[n] = row_elements(rows[n], x, dv); });
        unrolled<2>(ATTEND_EACH(half) {
          const Bf16x8 first = paired<half>(v[0], v[1]), second = paired<half>(v[2], v[3]);
          store_bf16(fours<0>(first, second), at + 2 * half * kOperand);
          store_bf16(fours<1>(first, second), at + (2 * half + 1) * kOperand);
        });
      }
    }
  }

  // Whole numbers of 8 bits as elements, which hold them exactly.
  static void elements(const std::int8_t* from, std::int64_t count, bf16* to) noexcept {
    std::int64_t x = 0;
    for (; x + 8 <= count; x += 8) store_bf16(widened_bf16(from + x), to + x);
    if (x < count) convert_elements<F32>(from + x, 1, count - x, to + x);
  }

  // s = K Q^T of 8 keys, `s_stride` apart; a vector of lanes is `s_vector` behind the one before.
  // The keys are rows, `stride` apart, or arranged: 0. Of the features [from, to) only the last
  // part is worked on, and then all of them: sums stay in registers.
  static void scores(const bf16* k, std::int64_t stride, const bf16* q, int, int lanes,
                     std::int64_t, std::int64_t to, std::int64_t depth, float* s,
                     std::int64_t s_stride, std::int64_t s_vector) noexcept {
    if (to < depth) return;
    const auto take = [&]<int kVectors>() {
      if (stride == 0) score_product_tile<kVectors, true>(k, 0, q, depth, s, s_stride, s_vector);
      else score_product_tile<kVectors, false>(k, stride, q, depth, s, s_stride, s_vector);
    };
    if (lanes == kLanes) take.template operator()<1>();
    else if (lanes == 2 * kLanes) take.template operator()<2>();
    else take.template operator()<3>();
  }

  // The same of kFewKeys keys that lie as rows, for up to four queries, whose vector of lanes
  // `s_stride` apart holds them again. Eight keys alone would wait for their own sums.
  static constexpr int kFewKeys = 16;
  static void scores_of_few(const bf16* k, std::int64_t stride, const bf16* q, int rows,
                            std::int64_t depth, float* s, std::int64_t s_stride,
                            bool from_memory) noexcept {
    if (rows <= 2) few_scores<1>(k, stride, q, depth, s, s_stride, from_memory);
    else few_scores<2>(k, stride, q, depth, s, s_stride, from_memory);
  }

  // The scores of a group become weights, 2^((s - base) unit), for one vector of lanes; in their
  // place stands then P, times the factors (of dropout, of scales), if any. Adds up the even and
  // the odd keys.
  template <bool kFactors>
  ATTEND_INLINE static void weights(float* s, F32 base, F32 unit, const float* factors,
                                    std::int64_t factors_stride, F32 (&total)[2]) noexcept {
    unrolled<kKeyGroup / kSteps>(ATTEND_EACH(step) {
      F32 w[kSteps];
      unrolled<kSteps>(ATTEND_EACH(n) {
        constexpr int kKey = step * kSteps + n;
        w[n] = power_of_two((F32::load(s + kKey * kLanes) - base) * unit);
        total[n % 2] = total[n % 2] + w[n];
        if constexpr (kFactors) w[n] = w[n] * F32::load(factors + kKey * factors_stride);
      });
      store_weights(w, reinterpret_cast<bf16*>(s) + step * 2 * kOperand);
    });
  }

  // Four keys and four lanes, rounded: two operands.
  ATTEND_INLINE static void store_weights(const F32 (&w)[kSteps], bf16* to) noexcept {
    const Bf16x8 first = paired<0>(rounded(w[0]), rounded(w[1])),
                 second = paired<0>(rounded(w[2]), rounded(w[3]));
    store_bf16(fours<0>(first, second), to);
    store_bf16(fours<1>(first, second), to + kOperand);
  }

  // o[rows][dv] = P V of some groups, with P as weights() leaves it; dv in whole vectors.
  static void products(const float* weights, int rows, const bf16* const* v, int groups,
                       std::int64_t dv, float* o, std::int64_t o_stride) noexcept {
    const auto take = [&]<int kVectors>() {
      for (std::int64_t x = 0; x < dv; x += kBlock)
        value_product_tile<kVectors>(weights, rows, v, x * kChunk, groups, o + x, o_stride, dv - x);
    };
    if (rows <= kLanes) take.template operator()<1>();
    else if (rows <= 2 * kLanes) take.template operator()<2>();
    else take.template operator()<3>();
  }

  // The same of some groups of rows of values as they lie, for up to four queries; added to what is
  // there, unless it is the first.
  static void add_products(const float* weights, int rows, const bf16* v, std::int64_t stride,
                           int groups, std::int64_t dv, float* o, std::int64_t o_stride, bool first,
                           bool from_memory) noexcept {
    RowsToCome soon = rows_to_come(v, stride, dv, from_memory);
    const auto take = [&]<int kRows>() {
      for (std::int64_t x = 0; x < dv; x += kBlock)
        row_products<kRows>(weights, v + x, stride, groups, o + x, o_stride, first, dv - x, soon);
    };
    if (rows == 1) take.template operator()<1>();
    else if (rows == 2) take.template operator()<2>();
    else if (rows == 3) take.template operator()<3>();
    else take.template operator()<4>();
  }

  // Row n of products() again, without the keys for which hidden(group, key) is true: 0 * NaN is
  // NaN.
  template <class Hidden>
  static void products_of_row(const float* weights, int n, const bf16* const* v, int groups,
                              std::int64_t dv, Hidden hidden, float* o) noexcept {
    row_again(
        weights, n, groups, dv, hidden,
        [&](int g, std::int64_t x, auto pair) {
          const bf16* at = v[g] + x / kBlock * kBlock * kChunk + pair / 2 * kSteps * kBlock +
                           x % kBlock / 2 * kOperand;
          return pairs_of<pair % 2>(load_bf16(at), load_bf16(at + kOperand));
        },
        o);
  }
  // And of add_products(): row(group, key) is a row of values.
  template <class Row, class Hidden>
  requires std::is_invocable_v<Row, int, int>
  static void products_of_row(const float* weights, int n, Row row, int groups, std::int64_t dv,
                              Hidden hidden, float* o) noexcept {
    row_again(
        weights, n, groups, dv, hidden,
        [&](int g, std::int64_t x, auto pair) {
          return paired<0>(load_bf16(row(g, 2 * pair) + x, kSteps),
                           load_bf16(row(g, 2 * pair + 1) + x, kSteps));
        },
        o);
  }

 private:
  // Rows of memory that few queries read next, asked for twice: those 32 keys later, and 64 KB
  // behind them. Of rows that were brought already, the same line again.
  using RowsToCome = Lines<bf16, true>;
  static RowsToCome rows_to_come(const bf16* row, std::int64_t stride, std::int64_t count,
                                 bool from_memory) {
    constexpr std::int64_t kKeys = 32, kLater = (64 << 10) / sizeof(bf16);
    if (!from_memory) return {row, 0, 0};
    return {row + kKeys * stride, stride, count, kLater / count};
  }

  template <int kQueries>  // in pairs
  [[gnu::noinline]] static void few_scores(const bf16* k, std::int64_t stride, const bf16* q,
                                           std::int64_t depth, float* s, std::int64_t s_stride,
                                           bool from_memory) noexcept {
    constexpr int kKeys = kFewKeys / 2;
    RowsToCome soon = rows_to_come(k, stride, depth, from_memory);
    for (std::int64_t from = 0; from < depth; from += kChain) {
      const std::int64_t to = from + kChain < depth ? from + kChain : depth;
      F32 sum[kKeys][kQueries];
      unrolled<kKeys>(ATTEND_EACH(r) { set_zero(sum[r]); });
      for (std::int64_t x = from; x < to; x += kOperand, k += kOperand, q += kOperand * kLanes) {
        Bf16x8 some[2][kQueries];
        unrolled<kQueries>(ATTEND_EACH(c) {
          some[0][c] = load_bf16(q + c * kOperand);
          some[1][c] = load_bf16(q + kSteps * kLanes + c * kOperand);
        });
        const bf16* row = k;
        unrolled<kKeys>(ATTEND_EACH(r) {
          if constexpr (r % 2 == 0) soon.prefetch_next();
          const Bf16x8 a = load_bf16(row), b = load_bf16(row + stride);
          row += 2 * stride;
          const Bf16x8 low = lower(a, b), high = upper(a, b);
          unrolled<kQueries>(ATTEND_EACH(c) { multiply(sum[r][c], low, some[0][c]); });
          unrolled<kQueries>(ATTEND_EACH(c) { multiply(sum[r][c], high, some[1][c]); });
        });
      }
      unrolled<kKeys>(ATTEND_EACH(r) {
        float* const at = s + 2 * r * s_stride;
        F32 first = lower(sum[r][0], sum[r][kQueries - 1]);
        F32 second = upper(sum[r][0], sum[r][kQueries - 1]);
        if (from > 0) first = F32::load(at) + first, second = F32::load(at + s_stride) + second;
        first.store(at);
        second.store(at + s_stride);
      });
    }
  }

  template <int kVectors, bool kArranged>
  [[gnu::noinline]] static void score_product_tile(const bf16* k, std::int64_t stride,
                                                   const bf16* q, std::int64_t depth, float* s,
                                                   std::int64_t s_stride,
                                                   std::int64_t s_vector) noexcept {
    constexpr int kKeys = kKeyGroup / 2, kQueries = kVectors * kLanes / 2;  // in pairs
    for (std::int64_t from = 0; from < depth; from += kChain) {
      const std::int64_t to = from + kChain < depth ? from + kChain : depth;
      F32 sum[kKeys][kQueries];
      unrolled<kKeys>(ATTEND_EACH(r) { set_zero(sum[r]); });
      if constexpr (kArranged) {
        multiply(k, q, to - from, sum);
      } else {
        for (std::int64_t x = from; x < to; x += kSteps) {
          Bf16x8 keys[kKeys];
          unrolled<kKeys>(ATTEND_EACH(r) {
            keys[r] = load_halves(k + 2 * r * stride, k + (2 * r + 1) * stride);
          });
          unrolled<kQueries>(ATTEND_EACH(c) {
            const Bf16x8 some = load_bf16(q + c * kOperand);
            unrolled<kKeys>(ATTEND_EACH(r) { multiply(sum[r][c], keys[r], some); });
            after(q, sum[0][c], sum[1][c], sum[2][c], sum[3][c]);
            after(k, sum[0][c], sum[1][c], sum[2][c], sum[3][c]);
          });
          k += kSteps;
          q += kSteps * kVectors * kLanes;
        }
      }
      unrolled<kKeys>(ATTEND_EACH(r) {
        unrolled<kVectors>(ATTEND_EACH(n) {
          float* const at = s + 2 * r * s_stride + n * s_vector;
          F32 first = lower(sum[r][2 * n], sum[r][2 * n + 1]);
          F32 second = upper(sum[r][2 * n], sum[r][2 * n + 1]);
          if (from > 0) first = F32::load(at) + first, second = F32::load(at + s_stride) + second;
          first.store(at);
          second.store(at + s_stride);
        });
      });
    }
  }

  template <int kVectors>
  [[gnu::noinline]] static void value_product_tile(const float* weights, int rows,
                                                   const bf16* const* v, std::int64_t block,
                                                   int groups, float* o, std::int64_t o_stride,
                                                   std::int64_t left) noexcept {
    constexpr int kFeatures = kBlock / 2, kPairs = kVectors * kLanes / 2;
    const bf16* p = reinterpret_cast<const bf16*>(weights);
    F32 sum[kPairs][kFeatures];
    unrolled<kPairs>(ATTEND_EACH(r) { set_zero(sum[r]); });
    for (int g = 0; g < groups; ++g, p += 2 * kKeyGroup * kLanes) {
      const bf16* at = v[g] + block;
      unrolled<kKeyGroup / kSteps>(ATTEND_EACH(step) {
        Bf16x8 features[kFeatures];
        unrolled<kFeatures>(
            ATTEND_EACH(c) { features[c] = load_bf16(at + (step * kFeatures + c) * kOperand); });
        unrolled<kPairs>(ATTEND_EACH(r) {
          const Bf16x8 some =
              load_bf16(p + r / 2 * 2 * kLanes * kChunk + (2 * step + r % 2) * kOperand);
          unrolled<kFeatures>(ATTEND_EACH(c) { multiply(sum[r][c], some, features[c]); });
          after(p, sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
          after(at, sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
        });
      });
    }
    unrolled<kPairs>(ATTEND_EACH(r) {
      unrolled<2>(ATTEND_EACH(half) {
        if (half * kLanes >= left) return;
        float* const at = o + 2 * r * o_stride + half * kLanes;
        const F32 a = sum[r][2 * half], b = sum[r][2 * half + 1];
        if (2 * r < rows) lower(a, b).store(at);
        if (2 * r + 1 < rows) upper(a, b).store(at + o_stride);
      });
    });
  }

  template <int kRows>
  [[gnu::noinline]] static void row_products(const float* weights, const bf16* v,
                                             std::int64_t stride, int groups, float* o,
                                             std::int64_t o_stride, bool first, std::int64_t left,
                                             RowsToCome& lines) noexcept {
    RowsToCome soon = lines;
    const bf16* p = reinterpret_cast<const bf16*>(weights);
    F32 sum[kRows][2];
    unrolled<kRows>(ATTEND_EACH(n) {
      sum[n][0] = first ? F32::set(0) : F32::load(o + n * o_stride);
      sum[n][1] = first || left <= kLanes ? F32::set(0) : F32::load(o + n * o_stride + kLanes);
    });
    for (; groups > 0; --groups, p += 2 * kKeyGroup * kLanes)
      unrolled<kKeyGroup / kSteps>(ATTEND_EACH(step) {
        Bf16x8 some[(kRows + 1) / 2];
        unrolled<(kRows + 1) / 2>(
            ATTEND_EACH(r) { some[r] = load_bf16(p + (2 * step + r) * kOperand); });
        soon.prefetch_next();
        unrolled<2>(ATTEND_EACH(pair) {
          const Bf16x8 a = load_bf16(v), b = load_bf16(v + stride);
          v += 2 * stride;
          const Bf16x8 low = paired<0>(a, b), high = paired<1>(a, b);
          unrolled<kRows>(ATTEND_EACH(n) {
            dot<n % 2 * 2 + pair>(sum[n][0], low, some[n / 2]);
            dot<n % 2 * 2 + pair>(sum[n][1], high, some[n / 2]);
          });
        });
      });
    lines = soon;
    unrolled<kRows>(ATTEND_EACH(n) {
      sum[n][0].store(o + n * o_stride);
      if (left > kLanes) sum[n][1].store(o + n * o_stride + kLanes);
    });
  }

  // values(group, feature, pair of keys): four features of two keys.
  template <class Hidden, class Values>
  static void row_again(const float* weights, int n, int groups, std::int64_t dv, Hidden hidden,
                        Values values, float* o) noexcept {
    std::uint32_t seen[kChunk / 2];  // what to keep of a pair of keys
    for (int key = 0; key < groups * kKeyGroup; key += 2)
      seen[key / 2] = (hidden(key / kKeyGroup, key % kKeyGroup) ? 0 : 0xFFFF) |
                      (hidden(key / kKeyGroup, key % kKeyGroup + 1) ? 0 : 0xFFFF0000);
    const bf16* p =
        reinterpret_cast<const bf16*>(weights + n / kLanes * kLanes * kChunk) + n % kLanes * kSteps;
    for (std::int64_t x = 0; x < dv; x += kLanes) {
      F32 sum = F32::set(0);
      for (int g = 0; g < groups; ++g)
        unrolled<kKeyGroup / 2>(ATTEND_EACH(pair) {
          const bf16* const w = p + g * 2 * kKeyGroup * kLanes + pair / 2 * kSteps * kLanes;
          const uint32x4_t mask = vdupq_n_u32(seen[g * kKeyGroup / 2 + pair]);
          const uint32x4_t some = vreinterpretq_u32_u16(values(g, x, pair));
          dot<pair % 2>(sum, vreinterpretq_u16_u32(vandq_u32(some, mask)), load_bf16(w, kSteps));
        });
      sum.store(o + x);
    }
  }

  // 2^t for t <= 0, -inf included; NaN stays. As exp2_of(), with fewer digits.
  ATTEND_INLINE static F32 power_of_two(F32 t) {
    const F32 whole = F32::set(Exp2<float>::kWhole);
    t = larger(F32::set(F32::kLowestPower - 1), t);
    const F32 n = t + whole, f = t - (n - whole);
    const F32 power{vreinterpretq_f32_s32(vshlq_n_s32(vreinterpretq_s32_f32(n.v), 23))};
    return fma(power * f, polynomial<Exp2OfBf16>(f), power);
  }

  // 8 elements from x on of a row of `count`, 0 behind the last, or all 0.
  ATTEND_INLINE static Bf16x8 row_elements(const bf16* row, std::int64_t x, std::int64_t count) {
    return row == nullptr ? load_bf16(row, 0) : load_bf16(row + x, count - x);
  }
};

}  // namespace
}  // namespace attend
