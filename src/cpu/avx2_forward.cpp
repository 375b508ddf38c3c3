// Forward for AVX2 with FMA. The kernel is flash_forward.h; its vectors are avx2.h.
#include "cpu/avx2.h"

#include "cpu/declines.h"
#include "cpu/flash_forward.h"

namespace attend {

extern constinit const Kernel<Forward> kAvx2Forward =
    kernel_row<FlashForward, F32, F64>("cpu.avx2.forward", declines_avx2<ForwardProblem>);

}  // namespace attend
