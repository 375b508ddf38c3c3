// cpu.amx.forward: bf16 by the tiles of AMX. The kernel is flash_forward.h; its products, with the
// order of their sums, are amx_tiles.h.
#include "cpu/amx_bf16.h"

#include "cpu/amx_row.h"
#include "cpu/flash_forward.h"

namespace attend {

extern constinit const Kernel<Forward> kAmxForward =
    amx_row<FlashForward<F32>>("cpu.amx.forward", Feature::bf16, declines_amx<ForwardProblem>);

}  // namespace attend
