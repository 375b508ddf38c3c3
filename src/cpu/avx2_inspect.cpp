// Statistics for AVX2. The kernel is inspect.h; its vectors are avx2.h.
#include "cpu/avx2.h"

#include "cpu/declines.h"
#include "cpu/inspect.h"

namespace attend {

extern constinit const Kernel<Inspect> kAvx2Inspect =
    kernel_row<FusedInspect, F32, F64>("cpu.avx2.inspect", declines_avx2<InspectProblem>);

}  // namespace attend
