// cpu.avx2.matrix: the products of cpu/gemm.h in the vectors of cpu/avx2.h.
#include "cpu/avx2.h"

#include "cpu/gemm.h"

namespace attend {

extern constinit const MatrixKernel kAvx2Matrix{
    .name = "cpu.avx2.matrix",
    .needs = &Machine::avx2,
    .f32 = kMatrixFunctions<F32>,
    .f64 = kMatrixFunctions<F64>,
};

}  // namespace attend
