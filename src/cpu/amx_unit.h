// Products of matrices by the tiles of AMX: the unit of pairs_gemm.h. 32 x 32 sums are
//
//                   b
//                   +-------+-------+
//        32 steps   | tmm6  | tmm7  |       Four tiles are loaded (32 cycles of the load ports,
//                   +-------+-------+       from L1) for four multiplications (64 cycles); of
//        a          c                       numbers in two parts twelve for sixteen.
//     +------+      +-------+-------+
//     | tmm4 |      | tmm0  | tmm1  |
//     +------+      +-------+-------+
//     | tmm5 |      | tmm2  | tmm3  |
//     +------+      +-------+-------+
//
// A block begins with 0 and adds 32 steps at a time, in ascending order, as amx.h says (the even
// and the odd ones are each a chain of 16 fused multiply-adds; their sum is added). Of 2048 steps
// that is 16 + 1 + 64 roundings one after another, where the chains of the other rows have 256.
#pragma once

#include "cpu/amx.h"
#include "cpu/pairs_gemm.h"

namespace attend {
namespace {

template <class What>
struct AmxUnit {
  using Of = What;
  using Part = typename Of::Part;
  using Source = TileSource<Part>;
  using InUse = TilesInUse;
  static constexpr bool kTurns = true;
  static void configure() noexcept { configure_tiles(); }

  template <int kLeft, int kRight>
  struct Tiles {
    const BlockOfSums<Of>& x;
    float (&sums)[kSide][kSide];

    ATTEND_INLINE Tiles(const BlockOfSums<Of>& block, float (&to)[kSide][kSide])
        : x(block), sums(to) {
      tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
    }

    // tmm0 ... tmm3 += left right.
    ATTEND_INLINE void multiply(Source left, Source right, std::int64_t steps) const {
      for (; steps > 0; steps -= kSteps, left.at += left.step, right.at += right.step) {
        if constexpr (Of::kParts == 1) multiply(left, right);
        else if (x.turned) multiply_parts_turned(left.at, right.at);
        else multiply_parts(left.at, right.at);
      }
    }

    ATTEND_INLINE static void multiply(const Source& left, const Source& right) {
      tile_load<4>(left.at, left.row_bytes);
      tile_load<6>(right.at, kLineBytes);
      tile_multiply<0, 4, 6, Part>();
      if constexpr (kRight == 2) {
        tile_load<7>(right.at + kTile, kLineBytes);
        tile_multiply<1, 4, 7, Part>();
      }
      if constexpr (kLeft == 2) {
        tile_load<5>(left.at + left.second, left.row_bytes);
        tile_multiply<2, 5, 6, Part>();
        if constexpr (kRight == 2) tile_multiply<3, 5, 7, Part>();
      }
    }

    // The parts of a pass by for each of b.
    ATTEND_INLINE void multiply_parts(const Part* a, const Part* b) const {
      for (int n = 0; n < x.parts; ++n, b += kPair) {
        tile_load<6>(b, kLineBytes);
        if constexpr (kRight == 2) tile_load<7>(b + kTile, kLineBytes);
        const Part* of_a = a;
        for (int m = 0; m < x.parts; ++m, of_a += kPair) {
          tile_load<4>(of_a, kLineBytes);
          tile_multiply<0, 4, 6, Part>();
          if constexpr (kRight == 2) tile_multiply<1, 4, 7, Part>();
          if constexpr (kLeft == 2) {
            tile_load<5>(of_a + kTile, kLineBytes);
            tile_multiply<2, 5, 6, Part>();
            if constexpr (kRight == 2) tile_multiply<3, 5, 7, Part>();
          }
        }
      }
    }

    // The same where b is on the left.
    ATTEND_INLINE void multiply_parts_turned(const Part* b, const Part* a) const {
      for (int n = 0; n < x.parts; ++n, b += kPair) {
        tile_load<4>(b, kLineBytes);
        if constexpr (kLeft == 2) tile_load<5>(b + kTile, kLineBytes);
        const Part* of_a = a;
        for (int m = 0; m < x.parts; ++m, of_a += kPair) {
          tile_load<6>(of_a, kLineBytes);
          tile_multiply<0, 4, 6, Part>();
          if constexpr (kLeft == 2) tile_multiply<2, 5, 6, Part>();
          if constexpr (kRight == 2) {
            tile_load<7>(of_a + kTile, kLineBytes);
            tile_multiply<1, 4, 7, Part>();
            if constexpr (kLeft == 2) tile_multiply<3, 5, 7, Part>();
          }
        }
      }
    }

    ATTEND_INLINE void finish() const {
      constexpr std::int64_t kRow = kSide * sizeof(float);
      tile_store<0>(sums[0], kRow);
      if constexpr (kRight == 2) tile_store<1>(sums[0] + 16, kRow);
      if constexpr (kLeft == 2) tile_store<2>(sums[16], kRow);
      if constexpr (kLeft == 2 && kRight == 2) tile_store<3>(sums[16] + 16, kRow);
    }
  };
};

}  // namespace
}  // namespace attend
