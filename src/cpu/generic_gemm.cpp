// cpu.generic.product: the products of cpu/gemm.h in the vectors of cpu/generic.h.
#include "cpu/generic.h"

#include "cpu/declines.h"
#include "cpu/gemm.h"

namespace attend {

extern constinit const Kernel<Product> kGenericProduct{
    .name = "cpu.generic.product",
    .only_if_forced = false,
    .takes = kTakenByProducts,
    .declines = declines_generic<ProductProblem>,
    .f32 = kMatrixFunctions<F32>,
    .f64 = kMatrixFunctions<F64>,
    .widens_f16 = false,
};

}  // namespace attend
