// Forward for any machine. The kernel is flash_forward.h; its vectors are generic.h.
#include "cpu/generic.h"

#include "cpu/declines.h"
#include "cpu/flash_forward.h"

namespace attend {

extern constinit const Kernel<Forward> kGenericForward =
    kernel_row<FlashForward, F32, F64>("cpu.generic.forward", declines_generic<ForwardProblem>);

}  // namespace attend
