// Statistics for every machine. The kernel is inspect.h; its vectors are generic.h.
#include "cpu/generic.h"

#include "cpu/declines.h"
#include "cpu/inspect.h"

namespace attend {

extern constinit const Kernel<Inspect> kGenericInspect =
    kernel_row<FusedInspect, F32, F64>("cpu.generic.inspect", declines_generic<InspectProblem>);

}  // namespace attend
