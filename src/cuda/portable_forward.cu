// Attention forward on any NVIDIA GPU, every type and option: as the reference does it, a block of
// 16 queries and 128 columns of out at a time. Keys come in ascending order, 32 at a time at
// multiples of 32, and chunks of 256 are summed by themselves and joined in f64: the bits of a row
// do not depend on the rows beside it.
#include "portable.cuh"
#include "portable_forward.h"

#include "core/partial_state.h"

namespace attend::cuda {
namespace {

// The queries and columns that a block of threads has.
struct ForwardItem {
  Sequence sequence;
  std::int64_t h, first, column;
  bool writes_rows;  // lse and what else there is of a row once

  __device__ ForwardItem(const PortableForward& a, std::int64_t index) {
    const std::int64_t block = index / a.columns, head = block / a.row_blocks;
    sequence = sequence_of(a.problem, a.call, head / a.problem.heads);
    h = head % a.problem.heads;
    first = block % a.row_blocks * kRows;
    column = index % a.columns * kColumns + threadIdx.x;
    writes_rows = index % a.columns == 0;
  }
};

template <class Real>
struct ForwardShared {
  ProductTiles<Real> tiles;
  Factors<Real> weights;
  KeyRanges ranges;
  std::int64_t q_at[kRows], k_at[kLanes], v_at[kLanes];
  Real rescale[kRows];               // of a chunk's sums
  double mine[kRows], other[kRows];  // what the sums so far weigh, and the chunk's
  double l[kRows];
};

template <class Real>
struct ForwardTile {
  const PortableForward& a;
  const ForwardProblem& p;
  const ForwardCall& call;
  ForwardShared<Real>& shared;
  const ForwardItem item;
  SoftmaxState total[kWarpRows], part[kWarpRows];  // of this warp's rows
  bool sink[kWarpRows] = {};
  double out[kRows] = {};
  Real sum[kRows] = {};  // of the chunk

  __device__ ForwardTile(const PortableForward& arguments, ForwardShared<Real>& memory,
                         std::int64_t index)
      : a(arguments), p(a.problem), call(a.call), shared(memory), item(a, index) {}

  __device__ std::int64_t row(int n) const { return item.first + warp() * kWarpRows + n; }
  __device__ bool inside() const { return item.column < p.dv; }

  __device__ void run() {
    find_ranges(shared.ranges, p, item.sequence, item.first);
    if (threadIdx.x < kRows) {
      const std::int64_t i = item.first + threadIdx.x;
      shared.q_at[threadIdx.x] = i < item.sequence.q_length && call.q.given
                                     ? query_row(p, call.q, item.sequence, item.h, i)
                                     : kNone;
    }
    for (std::int64_t n = 0; n < p.parts; ++n) resume(call.parts[n].o);
    add_sinks();
    const KeyRange keys = shared.ranges.all();
    for (std::int64_t j = keys.begin / kLanes * kLanes; j < keys.end; j += kLanes) {
      add_keys(j);
      if ((j + kLanes) % kChunk == 0 || j + kLanes >= keys.end) close_chunk();
    }
    finish();
  }

  // A partial state, joined in the order given.
  __device__ void resume(const Strided& from) {
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kWarpRows; ++n) {
      const int r = warp() * kWarpRows + n;
      SoftmaxState::Join joined{1, 0};
      if (row(n) < item.sequence.q_length) {
        const std::int64_t at = query_row(p, from, item.sequence, item.h, row(n));
        const StateRow state = load_state(from, at, p.dv);
        sink[n] = sink[n] || state.sink;
        if (state.kind != StateKind::empty) {
          joined = join(total[n], {state.top, state.l * state.scale});
          joined.other *= state.scale;
        }
      }
      shared.mine[r] = joined.mine;
      shared.other[r] = joined.other;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (shared.other[r] == 0 || !inside()) continue;  // its row is there, and not empty
      const std::int64_t at = query_row(p, from, item.sequence, item.h, item.first + r);
      out[r] = out[r] * shared.mine[r] +
               element<double>(from, at + item.column * from.stride[3]) * shared.other[r];
    }
  }

  __device__ void add_sinks() {
    if (!p.sinks) return;
    __syncthreads();
    const double s = load(call.sinks, call.sinks.offset(0, item.h, 0));
#pragma unroll
    for (int n = 0; n < kWarpRows; ++n) {
      const bool counts = !sink[n] && s != kMinusInfinity;
      shared.mine[warp() * kWarpRows + n] = counts ? total[n].add(s).rescale : 1.0;
      sink[n] = true;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRows; ++r) out[r] *= p.parts > 0 ? shared.mine[r] : 1.0;
  }

  // Steps 1 to 4 of 32 keys.
  __device__ void add_keys(std::int64_t j0) {
    const Sequence& s = item.sequence;
    const std::int64_t kv_head = item.h / p.group(), j = j0 + lane();
    find_keys(shared, p, call, s, kv_head, j0);
    Real product[kWarpRows];
    multiply(shared.tiles, p.d, call.q, shared.q_at, call.k, shared.k_at, product);  // 1 scores
    const double k_scale = key_scale(p, call, call.k_scales, s, kv_head, j);
    const double v_scale = key_scale(p, call, call.v_scales, s, kv_head, j);
#pragma unroll
    for (int n = 0; n < kWarpRows; ++n) {
      const int r = warp() * kWarpRows + n;
      bool counts = is_visible(p, call, s, shared.ranges.of(r), item.h, row(n), j);  // 2 mask
      double score = kMinusInfinity;
      if (counts) {
        const Score found = score_of(p, call, s, item.h, row(n), j, k_scale * product[n]);
        score = found.masked;
        counts = !(score == kMinusInfinity && found.added == kMinusInfinity);
      }
      const double largest = warp_maximum(score), before = part[n].top;  // 3 softmax
      if (largest > before) part[n].top = largest;
      const double rescale = rescale_of(before, part[n].top);
      const double w = score == kMinusInfinity ? 0 : weight_of(score, part[n].top);
      part[n].l = part[n].l * rescale + warp_sum(w);
      const double kept = counts ? w * drop(p, call, s.b, item.h, row(n), j) * v_scale : 0;
      shared.weights.of[lane()][r] = static_cast<Real>(kept);
      const unsigned seen = __ballot_sync(kAll, counts);
      if (lane() == 0) {
        shared.weights.seen[r] = seen;
        shared.rescale[r] = static_cast<Real>(rescale);
      }
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      if (shared.rescale[r] != 1) sum[r] *= shared.rescale[r];
    add_columns(sum, shared.weights, call.v, shared.v_at, item.column, inside());  // 4 values
  }

  __device__ void close_chunk() {
#pragma unroll
    for (int n = 0; n < kWarpRows; ++n) {
      SoftmaxState::Join joined{1, 0};  // nothing of it counts
      const bool counts = part[n].l != 0;
      if (counts) joined = join(total[n], part[n]);
      part[n] = {};
      if (lane() > 0) continue;
      shared.mine[warp() * kWarpRows + n] = joined.mine;
      shared.other[warp() * kWarpRows + n] = counts ? joined.other : -1.0;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (!(shared.other[r] < 0)) out[r] = out[r] * shared.mine[r] + sum[r] * shared.other[r];
      sum[r] = 0;
    }
  }

  __device__ void finish() {
    const Sequence& s = item.sequence;
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kWarpRows; ++n) {
      shared.l[warp() * kWarpRows + n] = total[n].l;
      if (lane() > 0 || !item.writes_rows || row(n) >= s.q_length) continue;
      if (p.state) {
        const StateKind kind = total[n].l == 0 ? StateKind::empty : StateKind::joined;
        store_state(call.state, query_row(p, call.state, s, item.h, row(n)), p.dv,
                    {total[n].top, total[n].l, 1, kind, sink[n]});
      }
      if (p.lse) store(call.lse, query_row(p, call.lse, s, item.h, row(n)), total[n].lse());
      if (a.states == nullptr) continue;
      double* const to = a.states + ((s.b * p.heads + item.h) * p.q_length + row(n)) * 2;
      to[0] = total[n].top;
      to[1] = total[n].l;
    }
    __syncthreads();
    if (!inside()) return;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t i = item.first + r;
      if (i >= s.q_length) continue;
      const Strided& to = p.state ? call.state : call.out;
      const double divided = shared.l[r] == 0 ? 0 : out[r] / shared.l[r];
      store(to, query_row(p, to, s, item.h, i) + item.column * to.stride[3],
            p.state ? out[r] : divided);
    }
  }
};

template <class Real>
__device__ void forward(const PortableForward& a) {
  __shared__ ForwardShared<Real> shared;
  for (std::int64_t index = blockIdx.x; index < a.items; index += gridDim.x) {
    __syncthreads();
    const ForwardItem item(a, index);
    if (item.first < item.sequence.q_length) ForwardTile<Real>(a, shared, index).run();
  }
}

// ---- Weights and scores ------------------------------------------------------------------------

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
            visible && score.masked != kMinusInfinity ? weight_of(score.masked, state[0]) / state[1]
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
    attend_forward_f32(const __grid_constant__ PortableForward a) {
  attend::cuda::forward<float>(a);
}
extern "C" __global__ void __launch_bounds__(attend::cuda::kPortableThreads)
    attend_forward_f64(const __grid_constant__ PortableForward a) {
  attend::cuda::forward<double>(a);
}
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
