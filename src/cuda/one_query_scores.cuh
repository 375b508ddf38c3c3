// One query a head: scores of all keys that are seen, tile by tile, all at the same time.
#pragma once

#include "one_query_sm90.h"
#include "pages.cuh"
#include "softmax.cuh"

namespace attend::cuda {

// One warpgroup computes, a thread of the other copies; of 8 bits, all of it (one_query_bytes.cuh).
inline constexpr int kScoreThreads = 256;

// Keys that the query of a sequence sees, and the tiles that they are in.
template <int kKeys>
struct Seen {
  KeyRange keys, tiles;

  __device__ __forceinline__ Seen(const OneQueryParameters& p, int batch) {
    const int length = p.key_lengths != nullptr ? p.key_lengths[batch] : p.k_length;
    const int offset = p.offset_given         ? p.offset
                       : p.offsets != nullptr ? p.offsets[batch]
                                              : length - 1;
    keys = {max(0, offset - p.left), min(length, offset + p.right + 1)};
    tiles = keys.begin < keys.end ? KeyRange{keys.begin / kKeys, (keys.end + kKeys - 1) / kKeys}
                                  : KeyRange{0, 0};
  }
  __device__ __forceinline__ bool has(int tile) const {
    return tile >= tiles.begin && tile < tiles.end;
  }
  __device__ __forceinline__ bool hides_some(int tile) const {
    return keys.begin > tile * kKeys || keys.end < (tile + 1) * kKeys;
  }
};

// The tiles of all key heads, divided evenly among the blocks of threads.
struct TileRange {
  long long begin, end;

  __device__ __forceinline__ explicit TileRange(const OneQueryParameters& p) {
    const long long all = static_cast<long long>(p.batch) * (p.heads / p.group) * p.tiles;
    begin = all * blockIdx.x / gridDim.x;
    end = all * (blockIdx.x + 1) / gridDim.x;
  }
};

template <class T, int kD>
struct ScoreShared {
  static constexpr int kKeys = forward_tiles(kD).keys;
  static constexpr int kStages = score_stages(kD, false), kQueryStages = score_query_stages(kD);
  Ring<SharedTile<T, kOneQueryRows, kD>, kQueryStages> q;
  Ring<SharedTile<T, kKeys, kD>, kStages> k;
};

// Where the scores of a group and a tile are.
template <int kD>
__device__ __forceinline__ float* scores_at(const OneQueryParameters& p, int batch, int kv_head,
                                            int tile) {
  const long long head = static_cast<long long>(batch) * (p.heads / p.group) + kv_head;
  return p.scores + (head * p.tiles + tile) * p.group * score_row(kD);
}

// body(batch, kv_head, tile, first of its head here, last of it) for the tiles that are seen.
template <int kKeys, class Body>
__device__ __forceinline__ void for_each_tile(const OneQueryParameters& p, const Body& body) {
  const TileRange range(p);
  for (long long head = range.begin / p.tiles; head * p.tiles < range.end; ++head) {
    const int kv_heads = p.heads / p.group, batch = static_cast<int>(head / kv_heads);
    const Seen<kKeys> seen(p, batch);
    const auto begin = static_cast<int>(max(range.begin - head * p.tiles, 0LL));
    const auto end =
        static_cast<int>(min(range.end - head * p.tiles, static_cast<long long>(p.tiles)));
    const int first = max(begin, seen.tiles.begin), last = min(end, seen.tiles.end) - 1;
    for (int j = first; j <= last; ++j)
      body(seen, batch, static_cast<int>(head % kv_heads), j, j == first, j == last);
  }
}

// After the first keys of a head: while there is no room for queries, keys are on their way.
template <class Shared, int kStages>
__device__ __forceinline__ void load_queries(const OneQueryParameters& p, Shared& shared,
                                             Place<kStages>& q, int kv_head, int batch) {
  constexpr int kBytes = sizeof(shared.q.tiles[0].data) / kOneQueryRows;  // of a row
  shared.q.wait_until_empty(q);
  shared.q.full[q.stage].arrive_and_expect(p.group * kBytes);
  load_tile(shared.q.tiles[q.stage], p.q, 0, kv_head * p.group, batch, shared.q.full[q.stage]);
  q.advance();
}

// By one thread.
template <class T, int kD>
__device__ __forceinline__ void load_scores(const OneQueryParameters& p,
                                            ScoreShared<T, kD>& shared) {
  using S = ScoreShared<T, kD>;
  Place<S::kQueryStages> q;
  Place<S::kStages> k;
  const auto load = [&](const auto& seen, int batch, int kv_head, int j, bool first, bool) {
    if (p.pages.table != nullptr) {
      load_from_pages(shared.k, k, p.k, p.pages, batch, j * S::kKeys, seen.keys.end, kv_head);
    } else {
      shared.k.wait_until_empty(k);
      shared.k.load(k, p.k, j * S::kKeys, kv_head, batch);
    }
    if (first) load_queries(p, shared, q, kv_head, batch);
  };
  for_each_tile<S::kKeys>(p, load);
}

template <class T, int kD>
__device__ __forceinline__ void compute_scores(const OneQueryParameters& p,
                                               ScoreShared<T, kD>& shared) {
  using S = ScoreShared<T, kD>;
  constexpr int kKeys = S::kKeys;
  Place<S::kQueryStages> q_place;
  Place<S::kStages> k_place;
  RegisterTile<kKeys> s;
  for_each_tile<kKeys>(p, [&](const auto& seen, int batch, int kv_head, int j, bool, bool last) {
    auto& q = shared.q.wait(q_place);
    auto& k = shared.k.wait(k_place);
    begin_products();
    product_of_rows(s, q, 0, k);  // 1 scores
    commit_products();
    wait_for_products<0>();
    s.pin();
    shared.k.release(k_place);
    if (last) shared.q.release(q_place);
    const int origin = j * kKeys + own_column();
    if (seen.hides_some(j)) {
#pragma unroll
      for (int n = 0; n < s.kCount; ++n)  // 2 mask
        if (s.column(n) < seen.keys.begin - origin || s.column(n) >= seen.keys.end - origin)
          s.x[n] = kMinusInfinity;
    }
    float most[2] = {s.x[0], s.x[2]};
#pragma unroll
    for (int n = 1; n < s.kCount; ++n) most[s.row(n)] = fmaxf(most[s.row(n)], s.x[n]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      most[r] = row_maximum(most[r]);
      const int row = own_row() + 8 * r;
      if (row >= p.group) continue;
      float* const to = scores_at<kD>(p, batch, kv_head, j) + row * score_row(kD) + own_column();
      if (threadIdx.x % 4 == 0) to[kKeys] = most[r];
#pragma unroll
      for (int n = 0; n < s.kCount; n += 4)
        *reinterpret_cast<float2*>(to + s.column(n)) = float2{s.x[n + 2 * r], s.x[n + 2 * r + 1]};
    }
  });
}

// Rows that no query is in: no numbers that are far from any.
template <class Queries>
__device__ __forceinline__ void clear_queries(Queries& q) {
  for (auto& tile : q.tiles)
    for (int n = threadIdx.x; n < tile.kBytes / 16; n += kScoreThreads)
      reinterpret_cast<uint4*>(tile.data)[n] = uint4{0, 0, 0, 0};
}

template <class T, int kD>
__device__ __forceinline__ void scores(const OneQueryParameters& p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  using S = ScoreShared<T, kD>;
  static_assert(sizeof(S) <= score_shared_bytes(kD, false));
  auto& shared = *reinterpret_cast<S*>(memory);
  if (threadIdx.x == 0) {
    shared.q.init(4);
    shared.k.init(4);
  }
  clear_queries(shared.q);
  publish_shared();
  __syncthreads();
  if (threadIdx.x < kWarpgroup) compute_scores<T, kD>(p, shared);
  else if (threadIdx.x == kWarpgroup) load_scores<T, kD>(p, shared);
}

}  // namespace attend::cuda
