// cpu.avx512_bf16.forward: bf16 by VDPBF16PS. The kernel is flash_forward.h; its products, with the
// order of their sums, are avx512_bf16_tiles.h.
#include "cpu/avx512_bf16_tiles.h"

namespace attend {
namespace {

template <>
struct ChosenTiles<F32> {
  using Type = Avx512Bf16Tiles;
};
template <>
struct Matrix<F32> : Avx512Bf16Products {};

}  // namespace
}  // namespace attend

#include "cpu/declines.h"
#include "cpu/flash_forward.h"

namespace attend {

extern constinit const Kernel<Forward> kAvx512Bf16Forward = [] {
  Kernel<Forward> row = kernel_row_of<FlashForward<F32>>("cpu.avx512_bf16.forward", Feature::bf16,
                                                         declines_avx512_bf16<ForwardProblem>);
  row.slower = slower_avx512_bf16;
  return row;
}();

}  // namespace attend
