// cpu.avx512_bf16.product: products of matrices of bf16 numbers, c = a b + bias, by VDPBF16PS. The
// kernel is pairs_gemm.h; of its 32 x 32 sums 8 x 32 are in registers, 16 vectors: two vectors of b
// and eight broadcast pairs of a are loaded for 16 products.
//
// A block of 2048 steps is made of chains of 256 at multiples of 256, as long as those of the other
// rows: each begins with 0 and takes a pair of steps at a time, as avx512_bf16.h says. They are
// added in order.
#include "cpu/avx512_bf16.h"

#include "cpu/declines.h"
#include "cpu/pairs_gemm.h"

namespace attend {
namespace {

constexpr std::int64_t kChain = 256;
static_assert(kSumBlock % kChain == 0 && kChain % kSteps == 0);
using Source = TileSource<bf16>;

// sums += left right: one chain, of kRows rows.
template <int kRows, int kVectors>
[[gnu::noinline]] void product_tile(Source left, Source right, std::int64_t steps,
                                    float (*sums)[kSide]) noexcept {
  F32 chain[kRows][kVectors];
  unrolled<kRows>(ATTEND_EACH(r) { set_zero(chain[r]); });
  for (; steps > 0; steps -= kSteps, left.at += left.step, right.at += right.step)
    multiply<true>(left.at, left.row_bytes / 2, right.at, kSteps, kTile, kSteps / 2, chain);
  unrolled<kRows>(ATTEND_EACH(r) {
    unrolled<kVectors>(ATTEND_EACH(n) {
      float* const at = sums[r] + n * F32::kLanes;
      F32{nearest_sum(F32::load(at).v, chain[r][n].v)}.store(at);
    });
  });
}

struct PairsUnit {
  using Of = AsTheyAre<bf16>;
  static constexpr bool kTurns = false;  // what is turned is quickly multiplied with many rows
  struct InUse {};
  static void configure() noexcept {}

  template <int kLeft, int kRight>
  struct Tiles {
    float (&sums)[kSide][kSide];
    const std::int64_t rows;

    Tiles(const BlockOfSums<Of>& x, float (&to)[kSide][kSide])
        : sums(to), rows(x.left_lines.count) {
      constexpr std::int64_t kAtOnce = 8;
      for (std::int64_t r = 0; r < (rows + kAtOnce - 1) / kAtOnce * kAtOnce; ++r)
        unrolled<kRight>(ATTEND_EACH(n) { F32::set(0).store(sums[r] + n * F32::kLanes); });
    }

    void multiply(Source left, Source right, std::int64_t steps) const {
      for (std::int64_t k = 0; k < steps; k += kChain) {
        const std::int64_t some = least(steps - k, kChain);
        if (rows <= 2) product_tile<2, kRight>(left, right, some, sums);
        for (std::int64_t r = 0; rows > 2 && r < rows; r += 8) {
          Source here = left;
          here.at += r / kLines * left.second + r % kLines * (left.row_bytes / 2);
          product_tile<8, kRight>(here, right, some, sums + r);
        }
        left.at += kChain / kSteps * left.step;
        right.at += kChain / kSteps * right.step;
      }
    }

    void finish() const {}
  };
};

}  // namespace

extern constinit const Kernel<Product> kAvx512Bf16Product{
    .name = "cpu.avx512_bf16.product",
    .only_if_forced = false,
    .takes = Features{Feature::bf16, Feature::row_bias},
    .declines = declines_avx512_bf16<ProductProblem>,
    .slower = slower_avx512_bf16,
    .bf16 = PairsGemm<PairsUnit>::functions(),
};

}  // namespace attend
