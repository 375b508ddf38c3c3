// cpu.avx512.product: the products of cpu/gemm.h in the vectors of cpu/avx512.h.
#include "cpu/avx512.h"

#include "cpu/declines.h"
#include "cpu/gemm.h"

namespace attend {

extern constinit const Kernel<Product> kAvx512Product{
    .name = "cpu.avx512.product",
    .only_if_forced = false,
    .takes = kTakenByProducts,
    .declines = declines_avx512<ProductProblem>,
    .f32 = kMatrixFunctions<F32>,
    .f64 = kMatrixFunctions<F64>,
};

}  // namespace attend
