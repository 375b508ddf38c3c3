// cpu.neon_bf16.forward: bf16 by BFMMLA and BFDOT. The kernel is flash_forward.h; its products,
// with the order of their sums, are neon_bf16_tiles.h.
#include "cpu/neon_bf16_tiles.h"

namespace attend {
namespace {

template <>
struct ChosenTiles<F32> {
  using Type = NeonBf16Tiles;
};
template <>
struct Matrix<F32> : NeonBf16Products {};

}  // namespace
}  // namespace attend

#include "cpu/declines.h"
#include "cpu/flash_forward.h"

namespace attend {

extern constinit const Kernel<Forward> kNeonBf16Forward = kernel_row_of<FlashForward<F32>>(
    "cpu.neon_bf16.forward", Feature::bf16, declines_neon_bf16<ForwardProblem>);

}  // namespace attend
