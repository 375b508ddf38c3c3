// Statistics for NEON. The kernel is inspect.h; its vectors are neon.h.
#include "cpu/neon.h"

#include "cpu/declines.h"
#include "cpu/inspect.h"

namespace attend {

extern constinit const Kernel kNeonInspect =
    kernel_row<Inspect, F32, F64>("cpu.neon.inspect", declines_neon);

}  // namespace attend
