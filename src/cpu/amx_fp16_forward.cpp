// cpu.amx_fp16.forward: f16 by the tiles of AMX. The kernel is flash_forward.h; its products, with
// the order of their sums, are amx_tiles.h.
#include "cpu/amx_fp16.h"

#include "cpu/amx_row.h"
#include "cpu/flash_forward.h"

namespace attend {

extern constinit const Kernel<Forward> kAmxFp16Forward = amx_row<FlashForward<F32>>(
    "cpu.amx_fp16.forward", Feature::f16, declines_amx_fp16<ForwardProblem>);

}  // namespace attend
