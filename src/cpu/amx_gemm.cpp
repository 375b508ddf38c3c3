// cpu.amx.product: products of matrices of bf16 numbers, and of f16 numbers in two parts, by the
// tiles of AMX. The kernel is pairs_gemm.h, the order of its sums amx_unit.h.
#include "cpu/amx_unit.h"
#include "cpu/declines.h"

namespace attend {

extern constinit const Kernel<Product> kAmxProduct{
    .name = "cpu.amx.product",
    .only_if_forced = false,
    .takes = Features{Feature::bf16, Feature::f16, Feature::row_bias},
    .declines = declines_amx<ProductProblem>,
    .bf16 = PairsGemm<AmxUnit<AsTheyAre<bf16>>>::functions(),
    .f16 = PairsGemm<AmxUnit<HighAndLow>>::functions(),
};

}  // namespace attend
