// A window of one head's weights from lse on any NVIDIA GPU: p = exp(s - lse), 16 queries and 512
// keys a block of threads. Rows whose lse is so large that its rounding would show are summed
// again.
#include "portable_inspect.cuh"

namespace attend::cuda {
namespace {

template <class Real>
__device__ __forceinline__ void write_window(const PortableWeights& a, RowShared<Real>& shared,
                                             std::int64_t index) {
  const WeightsProblem& p = a.problem;
  const WeightsCall& call = a.call;
  const WindowOrigin& from = call.window;
  const InspectedHead head(p, call, from.b * p.heads + from.h);
  const Sequence& s = head.sequence;
  const std::int64_t row0 = index % a.row_blocks * kRows, first = from.i + row0;
  const std::int64_t key0 = index / a.row_blocks * kWindowKeys;
  double lse[kWarpRows];
  bool coarse[kWarpRows], any = false;
#pragma unroll
  for (int n = 0; n < kWarpRows; ++n) {
    const std::int64_t i = first + warp() * kWarpRows + n;
    const bool there = i < s.q_length && i < from.i + p.window_queries;
    lse[n] = there ? load(call.lse, query_row(p, call.lse, s, head.h, i)) : 0;
    coarse[n] = is_coarse(p.lse_type, lse[n]);
    any = any || coarse[n];
  }
  RowSums<Real, false> sums(p, call, shared, head, first, nullptr);
  if (__syncthreads_or(any) != 0) {
    sums.run();
  } else {
    find_ranges(shared.ranges, p, s, first);
    sums.open();
  }
  const std::int64_t end = min(key0 + kWindowKeys, p.window_keys);
  for (std::int64_t x0 = key0; x0 < end; x0 += kLanes) {
    const std::int64_t x = x0 + lane(), j = from.j + x;
    find_keys(shared, p, call, s, head.kv_head, from.j + x0);
    Real product[kWarpRows];
    multiply(shared.tiles, p.d, call.q, shared.q_at, call.k, shared.k_at, product);  // 1 scores
    const double k_scale = key_scale(p, call, call.k_scales, s, head.kv_head, j);
#pragma unroll
    for (int n = 0; n < kWarpRows; ++n) {
      const int r = warp() * kWarpRows + n;
      if (x >= end || row0 + r >= p.window_queries) continue;
      double w = 0;
      if (is_visible(p, call, s, shared.ranges.of(r), head.h, first + r, j)) {  // 2 mask
        const double score =
            score_of(p, call, s, head.h, first + r, j, k_scale * product[n]).masked;
        if (score != kMinusInfinity)  // 3 softmax
          w = coarse[n] ? weight_of<Real>(score, shared.top[r]) / shared.l[r] : exp(score - lse[n]);
      }
      store(call.weights, (row0 + r) * p.window_keys + x, w);
    }
  }
}

template <class Real>
__device__ void window(const PortableWeights& a) {
  __shared__ RowShared<Real> shared;
  for (std::int64_t index = blockIdx.x; index < a.items; index += gridDim.x) {
    __syncthreads();
    write_window(a, shared, index);
  }
}

}  // namespace
}  // namespace attend::cuda

using attend::cuda::PortableWeights;

extern "C" __global__ void __launch_bounds__(attend::cuda::kPortableThreads)
    attend_window_f32(const __grid_constant__ PortableWeights a) {
  attend::cuda::window<float>(a);
}
extern "C" __global__ void __launch_bounds__(attend::cuda::kPortableThreads)
    attend_window_f64(const __grid_constant__ PortableWeights a) {
  attend::cuda::window<double>(a);
}
