// Backward for any machine. The kernel is flash_backward.h; its vectors are generic.h.
#include "cpu/generic.h"

#include "cpu/declines.h"
#include "cpu/flash_backward.h"

namespace attend {

extern constinit const Kernel<Backward> kGenericBackward =
    kernel_row<FlashBackward, F32, F64>("cpu.generic.backward", declines_generic<BackwardProblem>);

}  // namespace attend
