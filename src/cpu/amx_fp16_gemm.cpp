// cpu.amx_fp16.product: products of matrices of f16 numbers by the tiles of AMX that take these.
// The kernel is pairs_gemm.h, the order of its sums amx_unit.h.
#include "cpu/amx_unit.h"
#include "cpu/declines.h"

namespace attend {

extern constinit const Kernel<Product> kAmxFp16Product{
    .name = "cpu.amx_fp16.product",
    .only_if_forced = false,
    .takes = Features{Feature::f16, Feature::row_bias},
    .declines = declines_amx_fp16<ProductProblem>,
    .f16 = PairsGemm<AmxUnit<AsTheyAre<f16>>>::functions(),
};

}  // namespace attend
