// cpu.neon_bf16.backward: bf16 by BFMMLA and BFDOT. The kernel is flash_backward.h; its products,
// with the order of their sums, are neon_bf16_tiles.h and neon_bf16_gradients.h.
#include "cpu/neon_bf16_gradients.h"

namespace attend {
namespace {

template <>
struct ChosenTiles<F32> {
  using Type = NeonBf16Tiles;
};
template <>
struct Matrix<F32> : NeonBf16Products {};
template <>
struct GradientMatrix<F32> : NeonBf16Gradients {};

}  // namespace
}  // namespace attend

#include "cpu/declines.h"
#include "cpu/flash_backward.h"

namespace attend {

extern constinit const Kernel<Backward> kNeonBf16Backward = kernel_row_of<FlashBackward<F32>>(
    "cpu.neon_bf16.backward", Feature::bf16, declines_neon_bf16<BackwardProblem>);

}  // namespace attend
