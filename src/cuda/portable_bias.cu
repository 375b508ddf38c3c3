// The rest of the portable backward pass (portable_backward.cu):
//
//   bias      dbias of 32 keys in a row, over all rows that share it
//   heads     dsinks and dalibi of a head, over its rows
#include "portable_backward.cuh"

namespace attend::cuda {
namespace {

// ---- Bias --------------------------------------------------------------------------------------

template <class Real>
__device__ double dot(std::int64_t n, const Strided& a, std::int64_t a_row, const Strided& b,
                      std::int64_t b_row) {
  Real sum = 0, chain = 0;
  for (std::int64_t x = 0; x < n; ++x) {
    if (x % kChain == 0) sum += chain, chain = 0;
    chain = multiply_add(element<Real>(a, a_row + x * a.stride[3]),
                         element<Real>(b, b_row + x * b.stride[3]), chain);
  }
  return sum + chain;
}

// dadded of one pair, by one thread.
template <class Real>
__device__ double bias_gradient(const PortableBackward& a, const Sequence& s, std::int64_t h,
                                std::int64_t i, std::int64_t j) {
  const BackwardProblem& p = a.problem;
  const BackwardCall& call = a.call;
  const KeyRange keys = positions(p, s, i);
  if (j < keys.begin || j >= keys.end) return 0;
  const std::int64_t kv_head = h / p.group();
  const auto key = [&](const Strided& t) { return key_row(p, call, t, s, kv_head, j); };
  const double q_k = dot<Real>(p.d, call.q, query_row(p, call.q, s, h, i), call.k, key(call.k));
  const double dout_v =
      dot<Real>(p.dv, call.dout, query_row(p, call.dout, s, h, i), call.v, key(call.v));
  const PairGradient g =
      pair_gradient<Real>(p, call, s, a.rows[row_index(p, s, h, i)], h, i, j,
                          key_scale(p, call, call.k_scales, s, kv_head, j) * q_k,
                          key_scale(p, call, call.v_scales, s, kv_head, j) * dout_v);
  return g.counts ? g.dadded : 0;
}

// A warp: 32 keys of a row of dbias or, where it has one for all keys, all of them.
template <class Real>
__device__ void bias_of_warp(const PortableBackward& a, std::int64_t index) {
  const BackwardProblem& p = a.problem;
  const BackwardCall& call = a.call;
  const std::int64_t tiles = (p.dbias_keys + kLanes - 1) / kLanes, row = index / tiles;
  const std::int64_t i = row % p.dbias_queries, h = row / p.dbias_queries % p.dbias_heads;
  const std::int64_t b = row / p.dbias_queries / p.dbias_heads;
  const std::int64_t j = index % tiles * kLanes + lane();
  const auto span = [](std::int64_t at, std::int64_t size, std::int64_t full) {
    return size == 1 ? KeyRange{0, full} : KeyRange{at, at + 1};
  };
  const KeyRange batches = span(b, p.dbias_batch, p.batch), heads = span(h, p.dbias_heads, p.heads);
  const KeyRange queries = span(i, p.dbias_queries, p.q_length);
  double sum = 0;
  for (std::int64_t n = batches.begin; n < batches.end; ++n) {
    const Sequence s = sequence_of(p, call, n);
    for (std::int64_t head = heads.begin; head < heads.end; ++head)
      for (std::int64_t query = queries.begin; query < queries.end && query < s.q_length; ++query) {
        if (p.dbias_keys > 1) {
          sum += bias_gradient<Real>(a, s, head, query, j);
          continue;
        }
        for (std::int64_t key = lane(); key < s.k_length; key += kLanes)
          sum += bias_gradient<Real>(a, s, head, query, key);
      }
  }
  if (p.dbias_keys == 1) sum = warp_sum(sum);
  if (j < p.dbias_keys) store(call.dbias, call.dbias.offset(b, h, i, j), sum);
}

// ---- Heads -------------------------------------------------------------------------------------

__device__ void head(const PortableBackward& a, std::int64_t h) {
  __shared__ double all[2][kPortableThreads];
  const BackwardProblem& p = a.problem;
  const BackwardCall& call = a.call;
  const double sink = p.sinks ? load(call.sinks, call.sinks.offset(0, h, 0)) : kMinusInfinity;
  double dalibi = 0, dsink = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Sequence s = sequence_of(p, call, b);
    for (std::int64_t i = threadIdx.x; i < s.q_length; i += kPortableThreads) {
      const RowStatistics& row = a.rows[row_index(p, s, h, i)];
      dalibi -= row.dalibi;
      if (sink != kMinusInfinity) dsink -= weight(sink, row.top) / row.l * row.delta;
    }
  }
  __syncthreads();
  all[0][threadIdx.x] = dalibi;
  all[1][threadIdx.x] = dsink;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int n = 1; n < kPortableThreads; ++n) dalibi += all[0][n], dsink += all[1][n];
  if (p.dalibi) store(call.dalibi, call.dalibi.offset(0, h, 0), dalibi);
  if (p.dsinks) store(call.dsinks, call.dsinks.offset(0, h, 0), dsink);
}

template <class Real>
__device__ void bias(const PortableBackward& a) {
  const BackwardProblem& p = a.problem;
  const std::int64_t items =
      p.dbias_batch * p.dbias_heads * p.dbias_queries * ((p.dbias_keys + kLanes - 1) / kLanes);
  constexpr int kWarps = kPortableThreads / kLanes;
  for (std::int64_t n = blockIdx.x * static_cast<std::int64_t>(kWarps) + warp(); n < items;
       n += static_cast<std::int64_t>(gridDim.x) * kWarps)
    bias_of_warp<Real>(a, n);
}

}  // namespace
}  // namespace attend::cuda

ATTEND_PORTABLE(bias, float)
ATTEND_PORTABLE(bias, double)

extern "C" __global__ void __launch_bounds__(attend::cuda::kPortableThreads)
    attend_backward_heads(const __grid_constant__ attend::cuda::PortableBackward a) {
  for (std::int64_t h = blockIdx.x; h < a.problem.heads; h += gridDim.x) attend::cuda::head(a, h);
}
