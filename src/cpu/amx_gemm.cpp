// cpu.amx.product: products of matrices of bf16 numbers, and of f16 numbers in two parts, by the
// tiles of AMX. How, and in which order sums are made, says amx_gemm.h.
#include "cpu/amx_gemm.h"

#include "cpu/declines.h"

namespace attend {

extern constinit const Kernel<Product> kAmxProduct{
    .name = "cpu.amx.product",
    .only_if_forced = false,
    .takes = Features{Feature::bf16, Feature::f16, Feature::row_bias},
    .declines = declines_amx<ProductProblem>,
    .bf16 = AmxGemm<AsTheyAre<bf16>>::functions(),
    .f16 = AmxGemm<HighAndLow>::functions(),
};

}  // namespace attend
