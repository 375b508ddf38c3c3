// cpu.generic.matrix: the products of cpu/gemm.h in the vectors of cpu/generic.h.
#include "cpu/generic.h"

#include "cpu/gemm.h"

namespace attend {

extern constinit const MatrixKernel kGenericMatrix{
    .name = "cpu.generic.matrix",
    .needs = nullptr,
    .f32 = kMatrixFunctions<F32>,
    .f64 = kMatrixFunctions<F64>,
};

}  // namespace attend
