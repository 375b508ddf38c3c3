// cpu.amx_fp16.backward: f16 by the tiles of AMX. The kernel is flash_backward.h; its products,
// with the order of their sums, are amx_tiles.h and amx_gradients.h.
#include "cpu/amx_fp16.h"

#include "cpu/amx_row.h"
#include "cpu/flash_backward.h"

namespace attend {

extern constinit const Kernel<Backward> kAmxFp16Backward = amx_row<FlashBackward<F32>>(
    "cpu.amx_fp16.backward", Feature::f16, declines_amx_fp16<BackwardProblem>);

}  // namespace attend
