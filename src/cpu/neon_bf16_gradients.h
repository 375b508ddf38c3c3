// What backward asks of BFMMLA beside neon_bf16_tiles.h: P and dS, rounded to bf16 once each, as
// operands of three products.
//
//   dQ [rows][d]   = dS   [rows][8 keys, ...]     turned      times  K    4 keys at a time
//   dV [keys][dv] += P^T  [8 keys][12 rows, ...]              times  dO   4 rows at a time
//   dK [keys][d]  += dS^T [8 keys][12 rows, ...]              times  Q    4 rows at a time
//
// P^T and dS^T of 8 keys are [4 rows][2 keys][key][row]: two vectors of a band, rounded, are one
// operand, and nothing is turned. A sum over the rows of a group is one chain of pairs; what is
// there is added to it. A pair that is hidden is exactly 0 in P and dS, and so are rows behind the
// last: what is added for them changes no sum, unless what they are multiplied with is not finite.
// Then sums are made again, by BFDOT, with zeros in the place of what is hidden.
#pragma once

#include "cpu/gradient_pairs.h"
#include "cpu/neon_bf16_tiles.h"

namespace attend {
namespace {

struct NeonBf16Gradients {
  using Products = NeonBf16Products;
  using Units = NoUnits;
  static constexpr int kLanes = F32::kLanes, kSteps = Products::kSteps, kBlock = Products::kBlock;
  static constexpr int kKeys = Products::kKeyGroup, kOperand = Products::kOperand;
  static constexpr int kStepsOfTile = NeonBf16Tiles::kScores * kLanes / kSteps;  // of 4 rows

  // Whether all of so many rows are, as Matrix::values leaves them, in whole groups.
  static bool rows_finite(const bf16* values, std::int64_t rows, std::int64_t width) noexcept {
    uint16x8_t largest = vdupq_n_u16(0);
    for (std::int64_t x = 0; x < width; x += kBlock, values += kBlock * kChunk)
      for (std::int64_t n = 0; n < rows * kBlock; n += 8)
        largest = vmaxq_u16(largest, vandq_u16(vld1q_u16(&values[n].bits), vdupq_n_u16(0x7FFF)));
    return vmaxvq_u16(largest) < 0x7F80;
  }

  static Units units_of_rows(const float*, std::int64_t, int, int) noexcept { return {}; }
  static void bring_back(Units, int, std::int64_t, float*) noexcept {}

  // A group of keys, f32 [8 keys][lanes], as Matrix::products reads weights.
  static void turn(const float* pairs, std::int64_t stride, int lanes, Units, float* to) noexcept {
    for (int n = 0; n < lanes; n += kLanes, to += kLanes * kChunk)
      unrolled<kKeys / kSteps>(ATTEND_EACH(step) {
        F32 w[kSteps];
        unrolled<kSteps>(
            ATTEND_EACH(key) { w[key] = F32::load(pairs + (step * kSteps + key) * stride + n); });
        Products::store_weights(w, reinterpret_cast<bf16*>(to) + step * 2 * kOperand);
      });
  }

  template <class Pairs>
  static Units narrow(const Pairs& pairs, bf16* to, std::int64_t) noexcept {
    for (int row = 0; row < pairs.rows; row += kStepsOfTile * kSteps)
      for (int n = row; n < row + kStepsOfTile * kSteps; n += kSteps, to += kKeys * kSteps) {
        if (pairs.all(n, kSteps)) narrow_step(pairs, n, to, [](F32 x) { return x; });
        else if (n < pairs.rows) narrow_step(pairs, n, to, seen_of(pairs, n));
        else
          unrolled<kKeys / 2>(
              ATTEND_EACH(pair) { store_bf16(vdupq_n_u16(0), to + pair * kOperand); });
      }
    return {};
  }

  // c[keys][width] (+)= a b, over so many tiles of rows: a as narrow() leaves it, b as
  // Matrix::values does.
  static void products(const bf16* a, std::int64_t, const bf16* b, int tiles, std::int64_t width,
                       float* c, std::int64_t c_stride, int keys, Units, bool add) noexcept {
    for (std::int64_t x = 0; x < width; x += kBlock)
      key_product_tile(a, b + x * kChunk, tiles * kStepsOfTile * kSteps, c + x, c_stride, keys,
                       width - x, add);
  }

  // The sums of one key again, without the rows for which hidden(tile, row) is true.
  template <class Hidden>
  static void products_of_key(const bf16* a, std::int64_t, int key, const bf16* b, int tiles,
                              std::int64_t width, Hidden hidden, float* c, Units,
                              bool add) noexcept {
    a += key / 2 * kOperand + key % 2 * kSteps;
    for (std::int64_t x = 0; x < width; x += kLanes) {
      const bf16* const features = b + x / kBlock * kBlock * kChunk + x % kBlock / 2 * kOperand;
      F32 sum = F32::set(0);
      for (int step = 0; step < tiles * kStepsOfTile; ++step)
        unrolled<2>(ATTEND_EACH(pair) {
          const int tile = step / kStepsOfTile,
                    row = step % kStepsOfTile * kSteps + 2 * static_cast<int>(pair);
          const std::uint32_t seen =
              (hidden(tile, row) ? 0 : 0xFFFF) | (hidden(tile, row + 1) ? 0 : 0xFFFF0000);
          const bf16* const at = features + step * kSteps * kBlock;
          const Bf16x8 rows = pairs_of<pair>(load_bf16(at), load_bf16(at + kOperand));
          const uint32x4_t kept = vandq_u32(vreinterpretq_u32_u16(rows), vdupq_n_u32(seen));
          dot<pair>(sum, vreinterpretq_u16_u32(kept), load_bf16(a + step * kKeys * kSteps, kSteps));
        });
      joined(sum, c + x, add).store(c + x);
    }
  }

 private:
  // A sum that is -0, of products too small for f32, is +0, as it is among others.
  ATTEND_INLINE static F32 joined(F32 sum, const float* at, bool add) {
    return (add ? F32::load(at) : F32::set(0)) + sum;
  }

  // 0 for rows from pairs.rows on, and for what is marked.
  template <class Pairs>
  static auto seen_of(const Pairs& pairs, int first) noexcept {
    std::uint32_t there[kLanes];
    for (int n = 0; n < kLanes; ++n) there[n] = first + n < pairs.rows ? 0xFFFFFFFF : 0;
    const float32x4_t least = vdupq_n_f32(pairs.marks ? std::numeric_limits<float>::lowest()
                                                      : -std::numeric_limits<float>::infinity());
    return [rows = vld1q_u32(there), least](F32 x) {
      const uint32x4_t bits = vandq_u32(vreinterpretq_u32_f32(x.v), rows);
      return F32{vreinterpretq_f32_u32(vbicq_u32(bits, vcltq_f32(x.v, least)))};
    };
  }

  // 4 rows of 8 keys.
  template <class Pairs, class Seen>
  ATTEND_INLINE static void narrow_step(const Pairs& pairs, int row, bf16* to, Seen seen) noexcept {
    const float* from = pairs.from(row);
    unrolled<kKeys / 2>(ATTEND_EACH(pair) {
      const F32 first = seen(F32::load(from)), second = seen(F32::load(from + pairs.stride));
      store_bf16(rounded(first, second), to + pair * kOperand);
      from += 2 * pairs.stride;
    });
  }

  [[gnu::noinline]] static void key_product_tile(const bf16* a, const bf16* b, std::int64_t rows,
                                                 float* c, std::int64_t c_stride, int keys,
                                                 std::int64_t left, bool add) noexcept {
    constexpr int kPairs = kKeys / 2;
    F32 sum[kPairs][kBlock / 2];
    unrolled<kPairs>(ATTEND_EACH(r) { set_zero(sum[r]); });
    multiply(a, b, rows, sum);
    unrolled<kPairs>(ATTEND_EACH(r) {
      unrolled<2>(ATTEND_EACH(half) {
        if (half * kLanes >= left) return;
        float* const at = c + 2 * r * c_stride + half * kLanes;
        const F32 x = sum[r][2 * half], y = sum[r][2 * half + 1];
        if (2 * r < keys) joined(lower(x, y), at, add).store(at);
        if (2 * r + 1 < keys) joined(upper(x, y), at + c_stride, add).store(at + c_stride);
      });
    });
  }
};

}  // namespace
}  // namespace attend
