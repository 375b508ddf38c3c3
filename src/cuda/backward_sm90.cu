// Attention backward on Hopper (sm_90a), bf16 and f16, d 64 and 128: deterministic, without
// atomics, with two numbers a row as workspace.
//
//   attend_backward_rows      delta = dout . out of each row
//   attend_backward_keys      a block of threads owns keys: dk and dv stay in registers
//   attend_backward_queries   a block of threads owns queries: dq stays in registers
//
// Scores and dp are thus made twice: seven products instead of five, but no sum is shared between
// blocks of threads, and nothing depends on their order. In the second kernel scores are transposed
// (rows are keys), so that P^T and dS^T are operands where they are; in the third dS is.
//
//   one thread copies; two warpgroups compute, 64 rows each:
//     matrix units   S_j | dP_j | dK += dS_j-1^T Q_j-1 | dV += P_j^T dO_j |  S_j+1 ...
//     threads            |  P_j                        |  dS_j
//
// Hidden weights and their gradients are selected to 0; NaN in a row of q or dout still reaches
// every key of its tile (0 * NaN).
#include "backward_keys.cuh"
#include "backward_queries.cuh"

namespace attend::cuda {
namespace {

// 16 bytes a thread.
template <class T, int kD>
__device__ __forceinline__ void backward_rows(const BackwardParameters& p) {
  constexpr int kEach = 8, kRowThreads = kD / kEach;
  const long long index =
      (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) / kRowThreads;
  const int part = threadIdx.x % kRowThreads;
  const long long rows = static_cast<long long>(p.batch) * p.heads * p.padded;
  const long long any_head = min(index, rows - 1) / p.padded;
  const int i = static_cast<int>(min(index, rows - 1) % p.padded);
  const long long batch = any_head / p.heads, head = any_head % p.heads;
  float delta = 0, lse = kMinusInfinity;
  if (i < p.q_length) {
    const uint4 out =
        *reinterpret_cast<const uint4*>(static_cast<const T*>(p.out) + batch * p.out_batch +
                                        head * p.out_head + i * p.out_row + part * kEach);
    const uint4 dout =
        *reinterpret_cast<const uint4*>(static_cast<const T*>(p.dout_rows) + batch * p.dout_batch +
                                        head * p.dout_head + i * p.dout_row + part * kEach);
#pragma unroll
    for (int n = 0; n < kEach; ++n)
      delta = fmaf(static_cast<float>(reinterpret_cast<const T*>(&out)[n]),
                   static_cast<float>(reinterpret_cast<const T*>(&dout)[n]), delta);
    if (part == 0) lse = p.lse[batch * p.lse_batch + head * p.lse_head + i * p.lse_row];
  }
#pragma unroll
  for (int other = kRowThreads / 2; other > 0; other /= 2)
    delta += __shfl_xor_sync(~0U, delta, other);
  if (part != 0 || index >= rows) return;
  p.delta[index] = delta;
  p.lse_log2[index] = lse == kMinusInfinity ? -kMinusInfinity : lse * kLog2E;
}

}  // namespace
}  // namespace attend::cuda

// Compiled once for each type and d, into a module of its own: -DATTEND_TYPE=bf16 -DATTEND_D=128.
extern "C" __global__ void __launch_bounds__(256)
    attend_backward_rows(const __grid_constant__ attend::cuda::BackwardParameters p) {
  attend::cuda::backward_rows<attend::cuda::ATTEND_TYPE, ATTEND_D>(p);
}
extern "C" __global__ void __launch_bounds__(attend::cuda::kThreads, 1)
    attend_backward_keys(const __grid_constant__ attend::cuda::BackwardParameters p) {
  attend::cuda::backward_keys<attend::cuda::ATTEND_TYPE, ATTEND_D>(p);
}
extern "C" __global__ void __launch_bounds__(attend::cuda::kThreads, 1)
    attend_backward_queries(const __grid_constant__ attend::cuda::BackwardParameters p) {
  attend::cuda::backward_queries<attend::cuda::ATTEND_TYPE, ATTEND_D>(p);
}
