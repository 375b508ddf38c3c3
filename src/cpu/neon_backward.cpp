// Backward for NEON. The kernel is flash_backward.h; its vectors are neon.h.
#include "cpu/neon.h"

#include "cpu/declines.h"
#include "cpu/flash_backward.h"

namespace attend {

extern constinit const Kernel<Backward> kNeonBackward =
    kernel_row<FlashBackward, F32, F64>("cpu.neon.backward", declines_neon<BackwardProblem>);

}  // namespace attend
