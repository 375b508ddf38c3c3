// Attention backward on Hopper (sm_90a), bf16 and f16, d 64, 128 and 256: deterministic, without
// atomics, with four numbers a row as workspace.
//
//   attend_backward_rows      delta = dout . out of each row
//   attend_backward_queries   a block of threads owns queries: dq stays in registers
//   attend_backward_keys      a block of threads owns keys: dk and dv stay in registers
//
// Scores and dp are thus made twice: seven products instead of five, but no sum is shared between
// blocks of threads, and nothing depends on their order. In the second kernel dS is an operand
// where it is; in the third scores are transposed (rows are keys), so that P^T and dS^T are.
//
//   one thread copies; two warpgroups compute, 64 rows each (d 256, keys: backward_wide.cuh):
//     matrix units   S_j | dP_j | dK += dS_j-1^T Q_j-1 | dV += P_j^T dO_j |  S_j+1 ...
//     threads            |  P_j                        |  dS_j
//
// Hidden weights and their gradients are selected to 0, but 0 * NaN is NaN: a block whose results
// are not all finite does its work again, carefully. So it does if scores are far from 0, where lse
// has too few digits: lse_log2 of such rows is NaN, and the careful pass takes reference and rest.
#include "backward_queries.cuh"
#include "backward_wide.cuh"

namespace attend::cuda {
namespace {

// 16 bytes a thread.
template <class T, int kD>
__device__ __forceinline__ void backward_rows(const BackwardParameters& p) {
  constexpr int kEach = 8, kRowThreads = kD / kEach;
  const long long index =
      (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) / kRowThreads;
  const int part = threadIdx.x % kRowThreads;
  const int rows = p.q_starts != nullptr ? p.q_length : p.padded;  // of a head
  const long long count = static_cast<long long>(p.batch) * p.heads * rows;
  const int any_head = static_cast<int>(min(index, count - 1) / rows);
  const int i = static_cast<int>(min(index, count - 1) % rows);
  const int batch = any_head / p.heads, head = any_head % p.heads;
  const Positions positions(p, batch);
  const auto of = [&](const Rows& x) {
    return positions.tensor_batch * x.batch + head * x.head + (positions.q_begin + i) * x.row;
  };
  float delta = 0, lse = kMinusInfinity;
  if (i < positions.q_length && part * kEach < p.value_d) {
    const uint4 out = *reinterpret_cast<const uint4*>(static_cast<const T*>(p.out.data) +
                                                      of(p.out) + part * kEach);
    const uint4 dout = *reinterpret_cast<const uint4*>(static_cast<const T*>(p.dout_rows.data) +
                                                       of(p.dout_rows) + part * kEach);
#pragma unroll
    for (int n = 0; n < kEach; ++n)
      delta = fmaf(static_cast<float>(reinterpret_cast<const T*>(&out)[n]),
                   static_cast<float>(reinterpret_cast<const T*>(&dout)[n]), delta);
    if (part == 0) lse = static_cast<const float*>(p.lse.data)[of(p.lse)];
  }
#pragma unroll
  for (int other = kRowThreads / 2; other > 0; other /= 2)
    delta += __shfl_xor_sync(~0U, delta, other);
  if (part != 0 || index >= count || (p.q_starts != nullptr && i >= positions.q_length)) return;
  const long long at = Positions::workspace_row(p, batch, head) + i;
  const float octaves = lse == kMinusInfinity ? -kMinusInfinity : lse * kLog2E;
  const bool far = lse > kMinusInfinity && fabsf(octaves) >= kFar;
  p.delta[at] = delta;
  p.lse_log2[at] = far ? __int_as_float(0x7FC00000) : octaves;
  p.reference[at] = far ? __int_as_float(0x7FC00000) : 0;
  p.rest[at] = octaves;
}

template <class T, int kD>
__device__ __forceinline__ void backward_keys(const BackwardParameters& p) {
  using S = SharedOfKeys<T, kD>;
  const int blocks = (p.k_length + S::kBlock - 1) / S::kBlock, any_head = blockIdx.x / blocks;
  const int kv_heads = p.heads / p.group, batch = any_head / kv_heads;
  const int kv_head = any_head % kv_heads;
  const int row = blockIdx.x % blocks * S::kBlock;  // causal: the first are seen by the most
  const Positions positions(p, batch);
  if (row >= positions.k_rows) return;
  S& shared = begin_kernel<S>({positions, batch, kv_head, row});
  const KeyRange tiles = positions.query_tiles(row, S::kBlock, S::kTile);
  const int warpgroup = own_warpgroup();
  if (warpgroup < 0) {
    give_registers<24>();
    if constexpr (kD == 256) {
      if (threadIdx.x == 0) KeysProducer<T, kD>{p, shared}.template run<true>(tiles);
      if (threadIdx.x == 32) KeysProducer<T, kD>{p, shared}.template run<false>(tiles);
    } else {
      if (threadIdx.x == 0) KeysProducer<T, kD>{p, shared}.run(tiles);
    }
    return;
  }
  take_registers<240>();
  const int first = kD == 256 ? 0 : warpgroup * kWarpgroupRows;
  const KeyRange whole = positions.whole_from_queries(S::kTile, row + first, kWarpgroupRows);
  const KeysStep<T, kD> step{p, shared, first, whole, shared.block};
  if constexpr (kD == 256) {
    if (warpgroup == 0) {
      ValuesConsumer<T, kD> consumer{step};
      consumer.run(tiles);
      store_result(consumer.dv, 1, shared.k, 0, shared.block, step.to(p.dv, p.dv_rows, p.value_d));
    } else {
      GradientsConsumer<T, kD> consumer{step};
      consumer.run(tiles);
      store_result(consumer.dk, p.scale, shared.v, 0, shared.block, step.to(p.dk, p.dk_rows, p.d));
    }
  } else {
    KeysConsumer<T, kD> consumer{step};
    consumer.run(tiles);
    store_result(consumer.dk, p.scale, shared.k, first, shared.block,
                 step.to(p.dk, p.dk_rows, p.d));
    store_result(consumer.dv, 1, shared.v, first, shared.block,
                 step.to(p.dv, p.dv_rows, p.value_d));
  }
  if (thread_of_warpgroup() == 0) wait_for_stores();
}

}  // namespace
}  // namespace attend::cuda

// Compiled once for each type and d, into a module of its own: -DATTEND_TYPE=bf16 -DATTEND_D=128.
extern "C" __global__ void __launch_bounds__(256)
    attend_backward_rows(const __grid_constant__ attend::cuda::BackwardParameters p) {
  attend::cuda::backward_rows<attend::cuda::ATTEND_TYPE, ATTEND_D>(p);
}
extern "C" __global__ void __launch_bounds__(attend::cuda::kThreads, 1)
    attend_backward_queries(const __grid_constant__ attend::cuda::BackwardParameters p) {
  attend::cuda::backward_queries<attend::cuda::ATTEND_TYPE, ATTEND_D>(p);
}
extern "C" __global__ void __launch_bounds__(attend::cuda::kThreads, 1)
    attend_backward_keys(const __grid_constant__ attend::cuda::BackwardParameters p) {
  attend::cuda::backward_keys<attend::cuda::ATTEND_TYPE, ATTEND_D>(p);
}
