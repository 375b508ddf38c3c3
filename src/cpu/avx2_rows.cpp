// cpu.avx2.norm, norm_backward, activation, activation_backward, rotary and convert.
#include "cpu/avx2.h"

#include "cpu/row_kernels.h"

namespace attend {

ATTEND_ROW_KERNELS(Avx2, avx2)

}  // namespace attend
