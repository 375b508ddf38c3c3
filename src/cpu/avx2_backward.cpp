// Backward for AVX2 with FMA. The kernel is flash_backward.h; its vectors are avx2.h.
#include "cpu/avx2.h"

#include "cpu/declines.h"
#include "cpu/flash_backward.h"

namespace attend {

extern constinit const Kernel<Backward> kAvx2Backward =
    kernel_row<FlashBackward, F32, F64>("cpu.avx2.backward", declines_avx2<BackwardProblem>);

}  // namespace attend
