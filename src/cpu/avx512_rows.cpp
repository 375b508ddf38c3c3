// cpu.avx512.norm, norm_backward, activation, activation_backward, rotary and convert.
#include "cpu/avx512.h"

#include "cpu/row_kernels.h"

namespace attend {

ATTEND_ROW_KERNELS(Avx512, avx512)

}  // namespace attend
