// cpu.neon.matrix: the products of cpu/gemm.h in the vectors of cpu/neon.h.
#include "cpu/neon.h"

#include "cpu/gemm.h"

namespace attend {

extern constinit const MatrixKernel kNeonMatrix{
    .name = "cpu.neon.matrix",
    .needs = &Machine::neon,
    .f32 = kMatrixFunctions<F32>,
    .f64 = kMatrixFunctions<F64>,
};

}  // namespace attend
