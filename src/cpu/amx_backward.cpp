// cpu.amx.backward: bf16 by the tiles of AMX. The kernel is flash_backward.h; its products, with
// the order of their sums, are amx_tiles.h and amx_gradients.h.
#include "cpu/amx_tiles.h"

namespace attend {
namespace {

template <>
struct ChosenTiles<F32> {
  using Type = AmxTiles<bf16>;
};
template <>
struct Matrix<F32> : AmxProducts<bf16> {};

}  // namespace
}  // namespace attend

#include "cpu/amx_gradients.h"
#include "cpu/amx_row.h"
#include "cpu/flash_backward.h"

namespace attend {

extern constinit const Kernel<Backward> kAmxBackward =
    amx_row<FlashBackward<F32>>("cpu.amx.backward", Feature::bf16, declines_amx<BackwardProblem>);

}  // namespace attend
