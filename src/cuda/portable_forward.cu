// Attention forward on any NVIDIA GPU, every type and option: as the reference does it, a block of
// 16 queries and 128 columns of out at a time. Keys come in ascending order, 32 at a time at
// multiples of 32, and chunks of 256 are summed by themselves and joined in f64: the bits of a row
// do not depend on the rows beside it.
#include "portable_forward.cuh"

#include "core/partial_state.h"

namespace attend::cuda {
namespace {

// kJoins: the chunks have been summed by others.
template <class Real, bool kJoins>
struct ForwardTile {
  const PortableForward& a;
  const ForwardProblem& p;
  const ForwardCall& call;
  ForwardShared<Real>& shared;
  const ForwardItem& item;        // by reference: its own address is taken, that of the sums is not
  SoftmaxState total[kWarpRows];  // of this warp's rows
  SoftmaxState part[kWarpRows];   // of the chunk: the sum of this lane's keys
  bool sink[kWarpRows] = {};
  double out[kRows] = {};
  Real sum[kRows] = {};  // of the chunk

  __device__ __forceinline__ ForwardTile(const PortableForward& arguments,
                                         ForwardShared<Real>& memory, const ForwardItem& own)
      : a(arguments), p(a.problem), call(a.call), shared(memory), item(own) {}

  __device__ __forceinline__ std::int64_t row(int n) const {
    return item.first + warp() * kWarpRows + n;
  }
  __device__ __forceinline__ bool inside() const { return item.column < p.dv; }

  __device__ __forceinline__ void run() {
    find_ranges(shared.ranges, p, item.sequence, item.first);
    if (threadIdx.x < kRows) {
      const std::int64_t i = item.first + threadIdx.x;
      shared.q_at[threadIdx.x] = i < item.sequence.q_length && call.q.given
                                     ? query_row(p, call.q, item.sequence, item.h, i)
                                     : kNone;
    }
    const bool apart = a.apart;
    if constexpr (!kJoins)  // (nvcc 13.0 crashes over both in one kernel)
      for (std::int64_t n = 0; n < p.parts; ++n) resume(call.parts[n].o);
    if (!apart) add_sinks();
    const KeyRange keys = shared.ranges.all();
    const std::int64_t begin = keys.begin / kChunk, end = (keys.end + kChunk - 1) / kChunk;
    for (std::int64_t chunk = apart ? max(item.chunk, begin) : begin;
         chunk < (apart ? min(item.chunk + 1, end) : end); ++chunk) {
      if constexpr (kJoins) load_chunk(chunk);
      else add_chunk(keys, chunk);
      if (apart) store_chunk(chunk);
      else close_chunk();
    }
    if (!apart) finish();
  }

  // Keys of a chunk, 32 at a time at multiples of 32.
  __device__ __forceinline__ void add_chunk(const KeyRange& keys, std::int64_t chunk) {
    const std::int64_t end = min(keys.end, (chunk + 1) * kChunk);
    for (std::int64_t j = max(keys.begin / kLanes * kLanes, chunk * kChunk); j < end; j += kLanes)
      add_keys(j);
  }

  // For whoever joins the chunks.
  __device__ __forceinline__ void store_chunk(std::int64_t chunk) {
#pragma unroll
    for (int n = 0; n < kWarpRows; ++n) {
      const double l = warp_sum(part[n].l);
      if (lane() > 0 || !item.writes_rows || row(n) >= item.sequence.q_length) continue;
      double* const to = a.chunk_states + chunk_index(row(n), chunk) * 2;
      to[0] = part[n].top;
      to[1] = l;
    }
    if (!inside()) return;
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      if (item.first + r < item.sequence.q_length)
        a.chunk_sums[chunk_index(item.first + r, chunk) * p.dv + item.column] = sum[r];
  }
  __device__ __forceinline__ void load_chunk(std::int64_t chunk) {
    __syncthreads();  // all have read what close_chunk() wrote before
#pragma unroll
    for (int n = 0; n < kWarpRows; ++n) {
      if (row(n) >= item.sequence.q_length) continue;  // as it was: nothing
      const double* const from = a.chunk_states + chunk_index(row(n), chunk) * 2;
      part[n].top = from[0];
      part[n].l = lane() == 0 ? from[1] : 0;
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      if (inside() && item.first + r < item.sequence.q_length)
        sum[r] = static_cast<Real>(
            a.chunk_sums[chunk_index(item.first + r, chunk) * p.dv + item.column]);
  }
  __device__ __forceinline__ std::int64_t chunk_index(std::int64_t i, std::int64_t chunk) const {
    return ((item.sequence.b * p.heads + item.h) * p.q_length + i) * a.chunks + chunk;
  }

  // A partial state, joined in the order given.
  __device__ __forceinline__ void resume(const Strided& from) {
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kWarpRows; ++n) {
      const int r = warp() * kWarpRows + n;
      Joined joined{0, 0, 1, 0};
      if (row(n) < item.sequence.q_length) {
        const std::int64_t at = query_row(p, from, item.sequence, item.h, row(n));
        const StateRow state = load_state(from, at, p.dv);
        sink[n] = sink[n] || state.sink;
        if (state.kind != StateKind::empty) {
          joined = join(total[n], state.top, state.l * state.scale);
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

  __device__ __forceinline__ void add_sinks() {
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
  __device__ __forceinline__ void add_keys(std::int64_t j0) {
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
      const double w = score == kMinusInfinity ? 0 : weight_of<Real>(score, part[n].top);
      part[n].l = part[n].l * rescale + w;
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
    if (a.writes_out)
      add_columns(sum, shared.weights, call.v, shared.v_at, item.column, inside());  // 4 values
  }

  __device__ __forceinline__ void close_chunk() {
#pragma unroll
    for (int n = 0; n < kWarpRows; ++n) {
      Joined joined{0, 0, 1, 0};  // nothing of it counts
      part[n].l = warp_sum(part[n].l);
      const bool counts = part[n].l != 0;
      if (counts) joined = join(total[n], part[n].top, part[n].l);
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

  __device__ __forceinline__ void finish() {
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
    if (!inside() || !a.writes_out) return;
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

template <class Real, bool kJoins>
__device__ void forward(const PortableForward& a) {
  __shared__ ForwardShared<Real> shared;
  for (std::int64_t index = blockIdx.x; index < a.items; index += gridDim.x) {
    __syncthreads();
    const ForwardItem item(a, index);
    if (item.first < item.sequence.q_length) ForwardTile<Real, kJoins>(a, shared, item).run();
  }
}

}  // namespace
}  // namespace attend::cuda

using attend::cuda::PortableForward;

extern "C" __global__ void __launch_bounds__(attend::cuda::kPortableThreads)
    attend_forward_f32(const __grid_constant__ PortableForward a) {
  attend::cuda::forward<float, false>(a);
}
extern "C" __global__ void __launch_bounds__(attend::cuda::kPortableThreads)
    attend_forward_f64(const __grid_constant__ PortableForward a) {
  attend::cuda::forward<double, false>(a);
}
extern "C" __global__ void __launch_bounds__(attend::cuda::kPortableThreads)
    attend_forward_join_f32(const __grid_constant__ PortableForward a) {
  attend::cuda::forward<float, true>(a);
}
extern "C" __global__ void __launch_bounds__(attend::cuda::kPortableThreads)
    attend_forward_join_f64(const __grid_constant__ PortableForward a) {
  attend::cuda::forward<double, true>(a);
}
