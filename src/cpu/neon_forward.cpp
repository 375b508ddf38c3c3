// Forward for NEON. The kernel is flash_forward.h; its vectors are neon.h.
#include "cpu/neon.h"

#include "cpu/declines.h"
#include "cpu/flash_forward.h"

namespace attend {

extern constinit const Kernel<Forward> kNeonForward =
    kernel_row<FlashForward, F32, F64>("cpu.neon.forward", declines_neon<ForwardProblem>);

}  // namespace attend
