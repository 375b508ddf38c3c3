// Statistics for NEON. The kernel is inspect.h; its vectors are neon.h.
#include "cpu/neon.h"

#include "cpu/declines.h"
#include "cpu/inspect.h"

namespace attend {

extern constinit const Kernel<Inspect> kNeonInspect =
    kernel_row<FusedInspect, F32, F64>("cpu.neon.inspect", declines_neon<InspectProblem>);

}  // namespace attend
