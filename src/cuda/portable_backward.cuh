// One pair (i, j) of backward: steps 4 to 1 reversed, as in the reference.
#pragma once

#include "portable.cuh"
#include "portable_backward.h"

namespace attend::cuda {

__device__ __forceinline__ std::int64_t row_index(const Problem& p, const Sequence& s,
                                                  std::int64_t h, std::int64_t i) {
  return (s.b * p.heads + h) * p.q_length + i;
}

// What one pair contributes; all 0 if it is hidden, or weighs nothing.
struct PairGradient {
  bool counts;
  double p;       // the weight after dropout: dv_j += p * dout_i
  double dadded;  // at the sum of bias and ALiBi
  double ds;      // at q . k: dq_i += ds * k_j and dk_j += ds * q_i
};

// Of a pair that positions allow; product: q . k, dout_v: dout . v, both with the key's scales.
template <class Real>
__device__ __noinline__ PairGradient pair_gradient(const BackwardProblem& p,
                                                   const BackwardCall& call, const Sequence& s,
                                                   const RowStatistics& row, std::int64_t h,
                                                   std::int64_t i, std::int64_t j, double product,
                                                   double dout_v) {
  PairGradient none{false, 0, 0, 0};
  if (!block_visible(p, call, s.b, h, i, j) || masked_out(p, call, s.b, h, i, j)) return none;
  const Score score = score_of(p, call, s, h, i, j, product);
  if (score.masked == kMinusInfinity) return none;
  const double p_j = weight_of<Real>(score.masked, row.top) / row.l;
  const double keep = drop(p, call, s.b, h, i, j);
  const double dp = keep == 0 ? 0 : keep * dout_v;  // 4 reversed
  double ds = p_j * (dp - row.delta);               // 3 reversed
  const double after_cap = ds;                      // 2 reversed
  if (p.softcap != 0) ds *= 1 - (score.capped / p.softcap) * (score.capped / p.softcap);
  return {true, p_j * keep, p.bias_before_softcap ? ds : after_cap, p.scale * ds};
}

template <class Real>
struct BackwardShared {
  ProductTiles<Real> tiles;
  Factors<Real> factors;
  KeyRanges ranges;
  std::int64_t q_at[kRows], dout_at[kRows], k_at[kLanes], v_at[kLanes];  // of queries' blocks
};

// The queries' side: 16 rows of queries of head h, from `first` on.
template <class Real>
struct QueryBlock {
  const PortableBackward& a;
  const BackwardProblem& p;
  const BackwardCall& call;
  BackwardShared<Real>& shared;
  Sequence s;
  std::int64_t h, first;

  __device__ QueryBlock(const PortableBackward& arguments, BackwardShared<Real>& memory,
                        std::int64_t block)
      : a(arguments), p(a.problem), call(a.call), shared(memory) {
    const std::int64_t head = block / a.row_blocks;
    s = sequence_of(p, call, head / p.heads);
    h = head % p.heads;
    first = block % a.row_blocks * kRows;
  }
  __device__ std::int64_t row(int n) const { return first + warp() * kWarpRows + n; }

  __device__ void begin() {
    find_ranges(shared.ranges, p, s, first);
    if (threadIdx.x < kRows) {
      const std::int64_t i = first + threadIdx.x;
      shared.q_at[threadIdx.x] = i < s.q_length ? query_row(p, call.q, s, h, i) : kNone;
      shared.dout_at[threadIdx.x] = i < s.q_length ? query_row(p, call.dout, s, h, i) : kNone;
    }
  }

  // q . k and dout . v of this warp's rows and this lane's key.
  __device__ void products(std::int64_t j0, double (&q_k)[kWarpRows], double (&dout_v)[kWarpRows]) {
    const std::int64_t kv_head = h / p.group(), j = j0 + lane();
    find_keys(shared, p, call, s, kv_head, j0);
    const double k_scale = key_scale(p, call, call.k_scales, s, kv_head, j);
    const double v_scale = key_scale(p, call, call.v_scales, s, kv_head, j);
    Real product[kWarpRows];
    multiply(shared.tiles, p.d, call.q, shared.q_at, call.k, shared.k_at, product);
#pragma unroll
    for (int n = 0; n < kWarpRows; ++n) q_k[n] = k_scale * product[n];
    multiply(shared.tiles, p.dv, call.dout, shared.dout_at, call.v, shared.v_at, product);
#pragma unroll
    for (int n = 0; n < kWarpRows; ++n) dout_v[n] = v_scale * product[n];
  }
  __device__ bool in_range(int n, std::int64_t j) const {
    const KeyRange keys = shared.ranges.of(warp() * kWarpRows + n);
    return j >= keys.begin && j < keys.end;
  }
};

}  // namespace attend::cuda

// A kernel for the driver: attend_backward_rows_float.
#define ATTEND_PORTABLE(name, Real)                                                               \
  extern "C" __global__ void __launch_bounds__(attend::cuda::kPortableThreads)                    \
      attend_backward_##name##_##Real(const __grid_constant__ attend::cuda::PortableBackward a) { \
    attend::cuda::name<Real>(a);                                                                  \
  }
