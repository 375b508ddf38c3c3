// Statistics for AVX-512. The kernel is inspect.h; its vectors are avx512.h.
#include "cpu/avx512.h"

#include "cpu/declines.h"
#include "cpu/inspect.h"

namespace attend {

extern constinit const Kernel<Inspect> kAvx512Inspect =
    kernel_row<FusedInspect, F32, F64>("cpu.avx512.inspect", declines_avx512<InspectProblem>);

}  // namespace attend
