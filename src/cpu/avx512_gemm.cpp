// cpu.avx512.matrix: the products of cpu/gemm.h in the vectors of cpu/avx512.h.
#include "cpu/avx512.h"

#include "cpu/gemm.h"

namespace attend {

extern constinit const MatrixKernel kAvx512Matrix{
    .name = "cpu.avx512.matrix",
    .needs = &Machine::avx512,
    .f32 = kMatrixFunctions<F32>,
    .f64 = kMatrixFunctions<F64>,
};

}  // namespace attend
