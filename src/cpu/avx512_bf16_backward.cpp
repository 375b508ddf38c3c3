// cpu.avx512_bf16.backward: bf16 by VDPBF16PS. The kernel is flash_backward.h; its products, with
// the order of their sums, are avx512_bf16_tiles.h and avx512_bf16_gradients.h.
#include "cpu/avx512_bf16_gradients.h"

namespace attend {
namespace {

template <>
struct ChosenTiles<F32> {
  using Type = Avx512Bf16Tiles;
};
template <>
struct Matrix<F32> : Avx512Bf16Products {};
template <>
struct GradientMatrix<F32> : Avx512Bf16Gradients {};

}  // namespace
}  // namespace attend

#include "cpu/declines.h"
#include "cpu/flash_backward.h"

namespace attend {

extern constinit const Kernel<Backward> kAvx512Bf16Backward = [] {
  Kernel<Backward> row = kernel_row_of<FlashBackward<F32>>(
      "cpu.avx512_bf16.backward", Feature::bf16, declines_avx512_bf16<BackwardProblem>);
  row.slower = slower_avx512_bf16;
  return row;
}();

}  // namespace attend
