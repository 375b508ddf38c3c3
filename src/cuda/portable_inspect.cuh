// What the kernels of inspect() and weights_of() share: the softmax of 16 rows over all their keys,
// and the weights of 16 queries on 32 keys once it is known. Scores and sums are those of
// portable_forward.cu, to the bit.
#pragma once

#include "portable.cuh"
#include "portable_inspect.h"

namespace attend::cuda {

// A head of a batch element, by the number of the head.
struct InspectedHead {
  Sequence sequence;
  std::int64_t h, kv_head;

  __device__ InspectedHead(const Problem& p, const Call& call, std::int64_t head)
      : sequence(sequence_of(p, call, head / p.heads)), h(head % p.heads), kv_head(h / p.group()) {}
};

// log2 of weight(s, top), which is not 0.
__device__ __forceinline__ double log2_weight(double s, double top) {
  return is_far(top) ? (s - top) * std::numbers::log2e : above(s, ceil(log2_units(top)));
}

// ---- The softmax of rows -----------------------------------------------------------------------

// The sum of the weights of keys, without the sink, and of w log2 w.
struct Turned {
  double seen, turn;
};
// Both in the unit of `to` instead of `from`.
__device__ __noinline__ Turned in_unit(Turned sums, double from, double to, double factor) {
  if (factor == 0) return {0, 0};
  return {sums.seen * factor, (sums.turn + octaves(from, to) * sums.seen) * factor};
}

template <class Real>
struct RowShared {
  ProductTiles<Real> tiles;
  KeyRanges ranges;
  std::int64_t q_at[kRows], k_at[kLanes];
  // Of each row, over the chunks so far:
  double top[kRows], l[kRows];      // with the sink
  double seen[kRows], turn[kRows];  // without
  double best[kRows];               // the largest score of a key
  double visible[kRows];            // how many keys it sees
  double bound[kRows];              // a score up to it does not enter the list of the largest
};

// The largest keys of a row, in descending order; -inf and -1 where there is none.
struct LargestKeys {
  double* scores;
  std::int64_t* keys;
  std::int64_t count;
};
// A warp lets key j in: what is smaller moves down one place, equal scores stay before it. Gives
// the last score of the list.
__device__ __noinline__ double insert(LargestKeys list, double s, std::int64_t j) {
  for (std::int64_t begin = (list.count - 1) / kLanes * kLanes;; begin -= kLanes) {
    const std::int64_t x = begin + lane();
    const bool there = x < list.count;
    const double score = there ? list.scores[x] : kMinusInfinity;
    const std::int64_t key = there ? list.keys[x] : -1;
    const bool moves = there && score < s;
    const unsigned smaller = __ballot_sync(kAll, moves);
    __syncwarp();  // all have read
    if (moves && x + 1 < list.count) list.scores[x + 1] = score, list.keys[x + 1] = key;
    const int first = smaller == 0 ? kLanes : __ffs(static_cast<int>(smaller)) - 1;
    __syncwarp();
    if (first == 0 && begin > 0) continue;
    if (lane() == 0) list.scores[begin + first] = s, list.keys[begin + first] = j;
    __syncwarp();
    return list.scores[list.count - 1];
  }
}

// 16 queries of a head from `first` on, over all keys that they see. kStatistics: with all that
// inspect() wants of a row; else the softmax alone.
template <class Real, bool kStatistics>
struct RowSums {
  const Problem& p;
  const Call& call;
  RowShared<Real>& shared;
  const InspectedHead& head;
  const std::int64_t first;
  const PortableInspect* const inspected;  // whose lists of the largest keys; null: none
  // Of the chunk at hand: the largest score, and sums over this lane's keys.
  double top[kWarpRows], l[kWarpRows] = {}, turn[kWarpRows] = {};
  int visible[kWarpRows] = {};

  __device__ __forceinline__ RowSums(const Problem& problem, const Call& tensors,
                                     RowShared<Real>& memory, const InspectedHead& own,
                                     std::int64_t from, const PortableInspect* lists)
      : p(problem), call(tensors), shared(memory), head(own), first(from), inspected(lists) {}

  __device__ __forceinline__ std::int64_t row(int n) const {
    return first + warp() * kWarpRows + n;
  }

  // Leaves what there is of each row in shared memory, for the warp that has it.
  __device__ __forceinline__ void run() {
    find_ranges(shared.ranges, p, head.sequence, first);
    open();
    const KeyRange keys = shared.ranges.all();
    for (std::int64_t chunk = keys.begin / kChunk; chunk * kChunk < keys.end; ++chunk) {
      const std::int64_t end = min(keys.end, (chunk + 1) * kChunk);
      for (std::int64_t j = max(keys.begin / kLanes * kLanes, chunk * kChunk); j < end; j += kLanes)
        add_keys(j);
      close_chunk();
    }
  }

  __device__ __forceinline__ void open() {
    const int r = static_cast<int>(threadIdx.x);
    if (r < kRows) {
      const std::int64_t i = first + r;
      const bool there = i < head.sequence.q_length;
      shared.q_at[r] = there ? query_row(p, call.q, head.sequence, head.h, i) : kNone;
      SoftmaxState state;
      const double sink =
          p.sinks ? load(call.sinks, call.sinks.offset(0, head.h, 0)) : kMinusInfinity;
      if (sink != kMinusInfinity) state.add(sink);
      shared.top[r] = state.top;
      shared.l[r] = state.l;
      shared.seen[r] = shared.turn[r] = 0;
      shared.best[r] = shared.bound[r] = kMinusInfinity;
      shared.visible[r] = 0;
    }
#pragma unroll
    for (int n = 0; n < kWarpRows; ++n) {
      top[n] = kMinusInfinity;
      if (!has_list(n)) continue;
      const LargestKeys list = list_of(n);
      for (std::int64_t x = lane(); x < list.count; x += kLanes)
        list.scores[x] = kMinusInfinity, list.keys[x] = -1;
    }
    __syncthreads();
  }

  __device__ __forceinline__ bool has_list(int n) const {
    return kStatistics && inspected->problem.top_k > 0 && row(n) < head.sequence.q_length;
  }
  __device__ __forceinline__ LargestKeys list_of(int n) const {
    const Strided& keys = inspected->call.top_keys;
    const std::int64_t at = query_row(p, keys, head.sequence, head.h, row(n));
    return {inspected->top_scores + at, reinterpret_cast<std::int64_t*>(keys.data) + at,
            inspected->problem.top_k};
  }

  // Steps 1 to 3 of 32 keys.
  __device__ __forceinline__ void add_keys(std::int64_t j0) {
    const Sequence& s = head.sequence;
    const std::int64_t j = j0 + lane();
    find_keys(shared, p, call, s, head.kv_head, j0);
    Real product[kWarpRows];
    multiply(shared.tiles, p.d, call.q, shared.q_at, call.k, shared.k_at, product);  // 1 scores
    const double k_scale = key_scale(p, call, call.k_scales, s, head.kv_head, j);
#pragma unroll
    for (int n = 0; n < kWarpRows; ++n) {
      const int r = warp() * kWarpRows + n;
      double score = kMinusInfinity;
      if (is_visible(p, call, s, shared.ranges.of(r), head.h, row(n), j))  // 2 mask
        score = score_of(p, call, s, head.h, row(n), j, k_scale * product[n]).masked;
      const double largest = warp_maximum(score), before = top[n];  // 3 softmax
      if (largest > before) {
        const double rescale = rescale_of(before, largest);
        if (kStatistics) turn[n] = in_unit({l[n], turn[n]}, before, largest, rescale).turn;
        l[n] *= rescale;
        top[n] = largest;
      }
      const double w = score == kMinusInfinity ? 0 : weight_of<Real>(score, top[n]);
      l[n] += w;
      if (!kStatistics) continue;
      if (w != 0) turn[n] += w * log2_weight(score, top[n]);
      visible[n] += __popc(__ballot_sync(kAll, score != kMinusInfinity));
      if (has_list(n)) enter(n, r, score, j0);
    }
  }

  // Of the 32 keys, in ascending order, those that beat the last of the list.
  __device__ __forceinline__ void enter(int n, int r, double score, std::int64_t j0) {
    double bound = shared.bound[r];
    unsigned candidates = __ballot_sync(kAll, score > bound);
    if (candidates == 0) return;
    const LargestKeys list = list_of(n);
    for (; candidates != 0; candidates &= candidates - 1) {
      const int from = __ffs(static_cast<int>(candidates)) - 1;
      const double s = __shfl_sync(kAll, score, from);
      if (s > bound) bound = insert(list, s, j0 + from);
    }
    __syncwarp();
    if (lane() == 0) shared.bound[r] = bound;
    __syncwarp();
  }

  __device__ __forceinline__ void close_chunk() {
#pragma unroll
    for (int n = 0; n < kWarpRows; ++n) {
      const int r = warp() * kWarpRows + n;
      const double sum = warp_sum(l[n]);
      const double before = shared.top[r];
      const Joined joined = join(before, shared.l[r], top[n], sum);
      Turned all{0, 0};
      if (kStatistics) {
        all = in_unit({shared.seen[r], shared.turn[r]}, before, joined.top, joined.mine);
        const Turned part = in_unit({sum, warp_sum(turn[n])}, top[n], joined.top, joined.other);
        all.seen += part.seen;
        all.turn += part.turn;
      }
      __syncwarp();
      if (lane() == 0 && sum != 0) {  // else nothing of it counts
        shared.top[r] = joined.top;
        shared.l[r] = joined.l;
        shared.seen[r] = all.seen;
        shared.turn[r] = all.turn;
        if (top[n] > shared.best[r]) shared.best[r] = top[n];
        shared.visible[r] += visible[n];
      }
      __syncwarp();
      top[n] = kMinusInfinity;
      l[n] = turn[n] = 0;
      visible[n] = 0;
    }
  }
};

// ---- Weights of pairs --------------------------------------------------------------------------

template <class Real>
struct WeightShared {
  ProductTiles<Real> tiles;
  std::int64_t q_at[kRows], k_at[kLanes];
  // Of each row:
  KeyRanges ranges;
  double top[kRows], share[kRows];  // share: 1 / l
  std::int64_t token[kRows];        // of the key at its position
};

inline constexpr std::int64_t kNoToken = -1;
inline constexpr int kSums = sizeof(HeadSums) / sizeof(double);

// The 32 keys from j0 on.
template <class Real>
__device__ __forceinline__ double take_keys(const PortableInspect& a, WeightShared<Real>& shared,
                                            const InspectedHead& head, std::int64_t j0) {
  find_keys(shared, a.problem, a.call, head.sequence, head.kv_head, j0);
  return key_scale(a.problem, a.call, a.call.k_scales, head.sequence, head.kv_head, j0 + lane());
}

// And 16 queries from i0 on: the weights of this warp's rows on this lane's key, and which it sees.
// False: by position, none sees any of them.
template <class Real>
__device__ __forceinline__ bool weigh(const PortableInspect& a, WeightShared<Real>& shared,
                                      const InspectedHead& head, std::int64_t i0, std::int64_t j0,
                                      double k_scale, double (&w)[kWarpRows],
                                      bool (&seen)[kWarpRows]) {
  const InspectProblem& p = a.problem;
  const InspectCall& call = a.call;
  const Sequence& s = head.sequence;
  // Ranges move forward with the rows: the first and the last say what the 16 may see.
  if (positions(p, s, i0).begin >= j0 + kLanes ||
      positions(p, s, min(i0 + kRows, s.q_length) - 1).end <= j0)
    return false;
  __syncthreads();
  if (threadIdx.x < kRows) {
    const int r = static_cast<int>(threadIdx.x);
    const std::int64_t i = i0 + r, position = i + s.offset;
    const bool there = i < s.q_length;
    shared.q_at[r] = there ? query_row(p, call.q, s, head.h, i) : kNone;
    const KeyRange keys = there ? positions(p, s, i) : KeyRange{};
    shared.ranges.begin[r] = keys.begin;
    shared.ranges.end[r] = keys.end;
    if (there) {
      const InspectedRow& row = a.rows[(s.b * p.heads + head.h) * p.q_length + i];
      shared.top[r] = row.top;
      shared.share[r] = 1 / row.l;
    }
    const bool has = there && p.tokens && position >= 0 && position < s.k_stored;
    shared.token[r] = has ? token_of(p, call, s, position) : kNoToken;
  }
  __syncthreads();
  Real product[kWarpRows];
  multiply(shared.tiles, p.d, call.q, shared.q_at, call.k, shared.k_at, product);  // 1 scores
#pragma unroll
  for (int n = 0; n < kWarpRows; ++n) {
    const int r = warp() * kWarpRows + n;
    const std::int64_t i = i0 + r, j = j0 + lane();
    double score = kMinusInfinity;
    if (is_visible(p, call, s, shared.ranges.of(r), head.h, i, j))  // 2 mask
      score = score_of(p, call, s, head.h, i, j, k_scale * product[n]).masked;
    seen[n] = score != kMinusInfinity;
    w[n] = seen[n] ? weight_of<Real>(score, shared.top[r]) * shared.share[r] : 0;  // 3 softmax
  }
  return true;
}

}  // namespace attend::cuda
