// Weights and scores of a forward pass on any NVIDIA GPU, and how many blocks it visited: what
// portable_forward.cu does not write.
#include "portable_forward.cuh"

namespace attend::cuda {
namespace {

// On request, in a launch of its own, of all pairs that there are: a row's state is known by now.
template <class Real>
__device__ void write_pairs(const PortableForward& a, ForwardShared<Real>& shared,
                            std::int64_t index) {
  const ForwardProblem& p = a.problem;
  const ForwardCall& call = a.call;
  const ForwardItem item(a, index);
  const Sequence& s = item.sequence;
  const std::int64_t kv_head = item.h / p.group(), place = place_in_weights(p, call, item.h);
  find_ranges(shared.ranges, p, s, item.first);
  if (threadIdx.x < kRows) {
    const std::int64_t i = item.first + threadIdx.x;
    shared.q_at[threadIdx.x] = i < s.q_length ? query_row(p, call.q, s, item.h, i) : kNone;
  }
  for (std::int64_t j0 = 0; j0 < p.k_length; j0 += kLanes) {
    const std::int64_t j = j0 + lane();
    find_keys(shared, p, call, s, kv_head, j0);
    Real product[kWarpRows];
    multiply(shared.tiles, p.d, call.q, shared.q_at, call.k, shared.k_at, product);
    const double k_scale = key_scale(p, call, call.k_scales, s, kv_head, j);
#pragma unroll
    for (int n = 0; n < kWarpRows; ++n) {
      const int r = warp() * kWarpRows + n;
      const std::int64_t i = item.first + r;
      if (i >= p.q_length || j >= p.k_length) continue;
      const bool there = i < s.q_length && j < s.k_stored;
      const bool visible = there && is_visible(p, call, s, shared.ranges.of(r), item.h, i, j);
      const bool shown = visible || (there && p.stage != ScoreStage::masked);
      Score score{kMinusInfinity, kMinusInfinity, kMinusInfinity, 0};
      if (shown) score = score_of(p, call, s, item.h, i, j, k_scale * product[n]);
      if (p.scores)
        store(call.scores, call.scores.offset(s.b, item.h, i, j),
              p.stage == ScoreStage::raw          ? score.raw
              : p.stage == ScoreStage::softcapped ? score.capped
                                                  : score.masked);
      if (place < 0) continue;
      const double* const state = a.states + ((s.b * p.heads + item.h) * p.q_length + i) * 2;
      store(call.weights, call.weights.offset(s.b, place, i, j),
            visible && score.masked != kMinusInfinity
                ? weight_of<Real>(score.masked, state[0]) / state[1]
                : 0);
    }
  }
}

template <class Real>
__device__ void pairs(const PortableForward& a) {
  __shared__ ForwardShared<Real> shared;
  for (std::int64_t index = blockIdx.x; index < a.items; index += gridDim.x) {
    __syncthreads();
    write_pairs(a, shared, index);
  }
}

// How many pairs (query, key block) a query enters: added to visited_blocks.
__device__ std::int64_t blocks_entered(const ForwardProblem& p, const ForwardCall& call,
                                       const Sequence& s, std::int64_t h, std::int64_t i) {
  const KeyRange keys = positions(p, s, i);
  std::int64_t entered = 0;
  for (std::int64_t j = keys.begin; j < keys.end;) {
    const std::int64_t left = p.block_keys - j % p.block_keys;
    entered += block_visible(p, call, s.b, h, i, j);
    j = left < keys.end - j ? j + left : keys.end;
  }
  return entered;
}

}  // namespace
}  // namespace attend::cuda

using attend::cuda::PortableForward;

extern "C" __global__ void __launch_bounds__(attend::cuda::kPortableThreads)
    attend_pairs_f32(const __grid_constant__ PortableForward a) {
  attend::cuda::pairs<float>(a);
}
extern "C" __global__ void __launch_bounds__(attend::cuda::kPortableThreads)
    attend_pairs_f64(const __grid_constant__ PortableForward a) {
  attend::cuda::pairs<double>(a);
}
extern "C" __global__ void attend_visited_blocks(const __grid_constant__ PortableForward a) {
  const attend::ForwardProblem& p = a.problem;
  const std::int64_t rows = p.batch * p.heads * p.q_length;
  for (std::int64_t n = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; n < rows;
       n += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const std::int64_t head = n / p.q_length, i = n % p.q_length;
    const attend::Sequence s = attend::sequence_of(p, a.call, head / p.heads);
    if (i >= s.q_length) continue;
    atomicAdd(reinterpret_cast<unsigned long long*>(a.call.visited_blocks),
              static_cast<unsigned long long>(
                  attend::cuda::blocks_entered(p, a.call, s, head % p.heads, i)));
  }
}
