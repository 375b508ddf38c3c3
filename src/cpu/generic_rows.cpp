// cpu.generic.norm, norm_backward, activation, activation_backward, rotary and convert.
#include "cpu/generic.h"

#include "cpu/row_kernels.h"

namespace attend {

ATTEND_ROW_KERNELS(Generic, generic)

}  // namespace attend
