// Backward for AVX-512. The kernel is flash_backward.h; its vectors are avx512.h.
#include "cpu/avx512.h"

#include "cpu/declines.h"
#include "cpu/flash_backward.h"

namespace attend {

extern constinit const Kernel<Backward> kAvx512Backward =
    kernel_row<FlashBackward, F32, F64>("cpu.avx512.backward", declines_avx512<BackwardProblem>);

}  // namespace attend
