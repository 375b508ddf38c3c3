// Statistics of the weights on any NVIDIA GPU, of rows and of heads:
//
//   rows     lse, maximum, entropy and the largest keys of 16 queries
//   heads    the sums over the rows of a head, and over its keys (portable_inspect_keys.cu)
//
// Beside the sum l of a row's weights w, rows keep that of w log2 w: entropy = (seen ln l - ln 2
// turn) / l, where l counts the sink and seen, the sum over the keys, does not.
#include "portable_inspect.cuh"

namespace attend::cuda {
namespace {

template <class Real>
__device__ __forceinline__ void write_row(const PortableInspect& a, const RowShared<Real>& shared,
                                          const InspectedHead& head, std::int64_t i, int r) {
  const InspectProblem& p = a.problem;
  const InspectCall& call = a.call;
  const SoftmaxState state{shared.top[r], shared.l[r]};
  const bool sees = shared.visible[r] > 0, number = state.l == state.l;
  double maximum = 0, entropy = 0;
  if (sees) {
    maximum = number ? weight_of<Real>(shared.best[r], state.top) / state.l : state.l;
    entropy = (shared.seen[r] * log(state.l) - std::numbers::ln2 * shared.turn[r]) / state.l;
    if (entropy < 0) entropy = 0;  // of one key, rounded
  }
  const auto at = [&](const Strided& t) { return query_row(p, t, head.sequence, head.h, i); };
  if (lane() == 0) {
    store(call.lse, at(call.lse), state.lse());
    store(call.maximum, at(call.maximum), maximum);
    store(call.entropy, at(call.entropy), entropy);
    a.rows[(head.sequence.b * p.heads + head.h) * p.q_length + i] = {state.top, state.l, maximum,
                                                                     entropy, shared.visible[r]};
  }
  if (p.top_k == 0) return;
  const std::int64_t from = at(call.top_keys), to = at(call.top_weights);
  for (std::int64_t x = lane(); x < p.top_k; x += kLanes) {
    const std::int64_t key = load_integer(call.top_keys, from + x);
    const double s = a.top_scores[from + x];
    if (!number) store_integer(call.top_keys, from + x, -1);
    store(call.top_weights, to + x,
          !number   ? state.l
          : key < 0 ? 0
                    : weight_of<Real>(s, state.top) / state.l);
  }
}

template <class Real>
__device__ void rows(const PortableInspect& a) {
  __shared__ RowShared<Real> shared;
  for (std::int64_t index = blockIdx.x; index < a.items; index += gridDim.x) {
    __syncthreads();
    const InspectedHead head(a.problem, a.call, index / a.row_blocks);
    const std::int64_t first = index % a.row_blocks * kRows;
    if (first >= head.sequence.q_length) continue;
    RowSums<Real, true>(a.problem, a.call, shared, head, first, &a).run();
    for (int n = 0; n < kWarpRows; ++n) {
      const int r = warp() * kWarpRows + n;
      if (first + r < head.sequence.q_length) write_row(a, shared, head, first + r, r);
    }
  }
}

// ---- Heads -------------------------------------------------------------------------------------

__device__ void add(HeadSums& sums, const HeadSums& other) {
  for (int n = 0; n < kSums; ++n)
    reinterpret_cast<double*>(&sums)[n] += reinterpret_cast<const double*>(&other)[n];
}

__device__ void add_row(HeadSums& sums, const InspectedRow& row) {
  if (row.visible == 0) return;
  sums.rows += 1;
  sums.lse += SoftmaxState{row.top, row.l}.lse();
  sums.entropy += row.entropy;
  sums.maximum += row.maximum;
  if (row.visible < 2) return;
  sums.even_rows += 1;
  sums.evenness += row.entropy / log(row.visible);
}

// Each thread some rows and some keys, and then the threads, in ascending order.
__device__ void head_sums(const PortableInspect& a, std::int64_t head) {
  __shared__ double all[kSums][kPortableThreads];
  const InspectProblem& p = a.problem;
  const Sequence s = sequence_of(p, a.call, head / p.heads);
  HeadSums sums;
  for (std::int64_t i = threadIdx.x; i < s.q_length; i += kPortableThreads)
    add_row(sums, a.rows[head * p.q_length + i]);
  for (std::int64_t n = threadIdx.x; p.metrics && n < a.key_blocks; n += kPortableThreads)
    add(sums, a.key_sums[head * a.key_blocks + n]);
  __syncthreads();
  for (int n = 0; n < kSums; ++n) all[n][threadIdx.x] = reinterpret_cast<double*>(&sums)[n];
  __syncthreads();
  if (threadIdx.x >= kSums) return;
  double sum = 0;
  for (const double one : all[threadIdx.x]) sum += one;
  reinterpret_cast<double*>(&a.call.heads[head])[threadIdx.x] = sum;
}

}  // namespace
}  // namespace attend::cuda

using attend::cuda::PortableInspect;

extern "C" __global__ void __launch_bounds__(attend::cuda::kPortableThreads)
    attend_inspect_rows_f32(const __grid_constant__ PortableInspect a) {
  attend::cuda::rows<float>(a);
}
extern "C" __global__ void __launch_bounds__(attend::cuda::kPortableThreads)
    attend_inspect_rows_f64(const __grid_constant__ PortableInspect a) {
  attend::cuda::rows<double>(a);
}
extern "C" __global__ void __launch_bounds__(attend::cuda::kPortableThreads)
    attend_inspect_heads(const __grid_constant__ PortableInspect a) {
  const std::int64_t heads = a.problem.batch * a.problem.heads;
  for (std::int64_t head = blockIdx.x; head < heads; head += gridDim.x) {
    __syncthreads();
    attend::cuda::head_sums(a, head);
  }
}
