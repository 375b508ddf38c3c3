// merge() on any NVIDIA GPU, as the reference does it: a block of threads has a row, a thread some
// of its columns.
#include "portable_merge.h"

#include "core/mask.h"

extern "C" __global__ void __launch_bounds__(128)
    attend_merge(const __grid_constant__ attend::cuda::PortableMerge a) {
  using attend::kMinusInfinity;
  const attend::MergeProblem& p = a.problem;
  const std::int64_t rows = p.batch * p.heads * p.q_length;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const std::int64_t i = row % p.q_length, h = row / p.q_length % p.heads;
    const std::int64_t b = row / p.q_length / p.heads;
    const auto lse_of = [&](const attend::Part& part) {
      return load(part.lse, part.lse.offset(b, h, i));
    };
    double m = kMinusInfinity, l = 0;
    for (std::int64_t n = 0; n < p.parts; ++n) {
      const double lse = lse_of(a.call.parts[n]);
      m = m < lse ? lse : m;
    }
    for (std::int64_t n = 0; n < p.parts; ++n) {
      const double lse = lse_of(a.call.parts[n]);
      l += lse == kMinusInfinity ? 0 : exp(lse - m);
    }
    for (std::int64_t x = threadIdx.x; x < p.dv; x += 128) {
      double o = 0;
      for (std::int64_t n = 0; n < p.parts; ++n) {
        const attend::Part& part = a.call.parts[n];
        const double lse = lse_of(part);
        if (lse != kMinusInfinity) o += exp(lse - m) * load(part.o, part.o.offset(b, h, i, x));
      }
      store(a.call.out, a.call.out.offset(b, h, i, x), l == 0 ? 0 : o / l);
    }
    if (p.lse && threadIdx.x == 0)
      store(a.call.lse, a.call.lse.offset(b, h, i), l == 0 ? kMinusInfinity : m + log(l));
  }
}
