// Forward for AVX-512. The kernel is flash_forward.h; its vectors are avx512.h.
#include "cpu/avx512.h"

#include "cpu/declines.h"
#include "cpu/flash_forward.h"

namespace attend {

extern constinit const Kernel<Forward> kAvx512Forward =
    kernel_row<FlashForward, F32, F64>("cpu.avx512.forward", declines_avx512<ForwardProblem>);

}  // namespace attend
