// cpu.amx.backward: bf16 by the tiles of AMX. The kernel is flash_backward.h; its products, with
// the order of their sums, are amx_tiles.h and amx_gradients.h.
//
// What limits it: vectors and the caches, not the tiles. At d = 64 five products are 0.6 cycles a
// score of the 6.5 that it takes (d = 128: 1.25 of 9.5). The rest is softmax and dS in f32, two
// bands of f32 that are written and read (some 50 bytes a score, by the second level cache),
// rounding P and dS and turning dS, and dk and dv, which pass by once a group of 128 rows.
// One core of a Xeon of 2024, five products counted, 2026-11-18: 339 GFLOP/s at 2048 keys and
// d = 64 (cpu.avx512.backward in f32: 128; cpu.amx.forward: 494), 462 at d = 128 (136; 708), 391
// at T = 512. Short sequences pay for groups of 32: T = 20 takes as long as in f32, T = 10 1.3
// times as long, and 1.5 times where the unit was asleep.
#include "cpu/amx_bf16.h"

#include "cpu/amx_row.h"
#include "cpu/flash_backward.h"

namespace attend {

extern constinit const Kernel<Backward> kAmxBackward =
    amx_row<FlashBackward<F32>>("cpu.amx.backward", Feature::bf16, declines_amx<BackwardProblem>);

}  // namespace attend
