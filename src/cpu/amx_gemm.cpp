// cpu.amx.product: products of matrices of bf16 numbers, c = a b + bias, by the tiles of AMX. The
// kernel is pairs_gemm.h; 32 x 32 sums are
//
//                   b
//                   +-------+-------+
//        32 steps   | tmm6  | tmm7  |       Four tiles are loaded (32 cycles of the load ports,
//        from
//                   +-------+-------+       L1) for four multiplications (64 cycles).
//        a          c
//     +------+      +-------+-------+
//     | tmm4 |      | tmm0  | tmm1  |
//     +------+      +-------+-------+
//     | tmm5 |      | tmm2  | tmm3  |
//     +------+      +-------+-------+
//
// A block of 2048 steps begins with 0 and adds 32 steps at a time, in ascending order, as amx.h
// says (the even and the odd ones are each a chain of 16 fused multiply-adds; their sum is added).
// That is 16 + 1 + 64 roundings one after another, where the chains of the other rows have 256.
#include "cpu/amx.h"

#include "cpu/declines.h"
#include "cpu/pairs_gemm.h"

namespace attend {
namespace {

struct AmxUnit {
  static constexpr bool kTurns = true;
  using InUse = TilesInUse;
  static void configure() noexcept { configure_tiles(); }

  template <int kLeft, int kRight>
  struct Tiles {
    float (&sums)[kSide][kSide];

    ATTEND_INLINE Tiles(float (&to)[kSide][kSide], std::int64_t) : sums(to) {
      tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
    }

    // tmm0 ... tmm3 += left right.
    ATTEND_INLINE void multiply(TileSource left, TileSource right, std::int64_t steps) const {
      for (; steps > 0; steps -= kTileSteps) {
        tile_load<4>(left.at, left.row_bytes);
        tile_load<6>(right.at, kLineBytes);
        tile_multiply<0, 4, 6>();
        if constexpr (kRight == 2) {
          tile_load<7>(right.at + kTile, kLineBytes);
          tile_multiply<1, 4, 7>();
        }
        if constexpr (kLeft == 2) {
          tile_load<5>(left.at + left.second, left.row_bytes);
          tile_multiply<2, 5, 6>();
          if constexpr (kRight == 2) tile_multiply<3, 5, 7>();
        }
        left.at += left.step;
        right.at += kPair;
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

extern constinit const Kernel<Product> kAmxProduct{
    .name = "cpu.amx.product",
    .only_if_forced = false,
    .takes = Features{Feature::bf16, Feature::row_bias},
    .declines = declines_amx<ProductProblem>,
    .bf16 = {.columns = kSide,
             .rows = kSide,
             .pack = pack,
             .run = run<AmxUnit>,
             .steps = kTileSteps,
             .longest_sum = kBlock},
};

}  // namespace attend
