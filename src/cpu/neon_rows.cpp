// cpu.neon.norm, norm_backward, activation, activation_backward, rotary and convert.
#include "cpu/neon.h"

#include "cpu/row_kernels.h"

namespace attend {

ATTEND_ROW_KERNELS(Neon, neon)

}  // namespace attend
