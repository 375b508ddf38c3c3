// cpu.neon.product: the products of cpu/gemm.h in the vectors of cpu/neon.h.
#include "cpu/neon.h"

#include "cpu/declines.h"
#include "cpu/gemm.h"

namespace attend {

extern constinit const Kernel<Product> kNeonProduct{
    .name = "cpu.neon.product",
    .only_if_forced = false,
    .takes = kTakenByProducts,
    .declines = declines_neon<ProductProblem>,
    .f32 = kMatrixFunctions<F32>,
    .f64 = kMatrixFunctions<F64>,
};

}  // namespace attend
