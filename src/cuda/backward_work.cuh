// What both halves of backward share: positions, the memory of a block of threads, results.
#pragma once

#include "backward_sm90.h"
#include "key_range.h"
#include "pipeline.cuh"
#include "softmax.cuh"

namespace attend::cuda {

constexpr int kBlock = kBackwardBlock, kConsumers = kBlock / kWarpgroupRows;
constexpr int kThreads = (1 + kConsumers) * kWarpgroup;

// Positions of one batch element: as Item, without rows.
struct Positions {
  int k_length, offset, left, right;

  __device__ __forceinline__ Positions(const BackwardParameters& p, int batch)
      : left(p.left), right(p.right) {
    k_length = p.key_lengths == nullptr ? p.k_length : p.key_lengths[batch];
    offset = p.offset_given != 0 ? p.offset : k_length - p.q_length;
  }
  // Keys that query i sees, and queries that see key j.
  __device__ __forceinline__ KeyRange seen_by(int i) const {
    return {i + offset - left, min(k_length, i + offset + right + 1)};
  }
  __device__ __forceinline__ KeyRange that_see(int j) const {
    return {j < k_length ? j - offset - right : 2 * kNoLimit, j - offset + left + 1};
  }
  __device__ __forceinline__ bool sees(int i, int j) const {
    return j >= seen_by(i).begin && j < seen_by(i).end;
  }
  // Whether each of so many queries sees each of so many keys.
  __device__ __forceinline__ bool all_see(int i, int queries, int j, int keys) const {
    return sees(i, j + keys - 1) && sees(i + queries - 1, j);
  }
  // Tiles of keys that queries [i, i + rows) see, and of queries that see keys [j, j + rows).
  __device__ __forceinline__ KeyRange key_tiles(int i, int rows, int q_length, int tile) const {
    const int last = min(i + rows, q_length) - 1;
    const int begin = max(0, seen_by(i).begin), end = seen_by(last).end;
    if (end <= begin) return {0, 0};
    return {begin / tile, (end + tile - 1) / tile};
  }
  __device__ __forceinline__ KeyRange query_tiles(int j, int rows, int q_length, int tile) const {
    const int last = min(j + rows, k_length) - 1;
    const int begin = max(0, that_see(j).begin), end = min(q_length, that_see(last).end);
    if (last < j || end <= begin) return {0, 0};
    return {begin / tile, (end + tile - 1) / tile};
  }
};

template <class T, int kD, int kTile>
struct alignas(1024) Pair {
  SharedTile<T, kTile, kD> a, b;        // q and dout, or k and v
  float lse_log2[kTile], delta[kTile];  // of q
};

template <class T, int kD, int kTile_>
struct Shared {
  static constexpr int kTile = kTile_;
  using Tiles = Pair<T, kD, kTile>;
  static constexpr int kFit = (kBackwardSharedBytes - 2 * kBlock * kD * 2 - 2048) / sizeof(Tiles);
  static constexpr int kStages = kFit < 4 ? kFit : 4;

  SharedTile<T, kBlock, kD> a, b;  // k and v, or q and dout; in the end the results
  Ring<Tiles, kStages> ring;
  Barrier full;
};
template <class T, int kD>
using SharedOfKeys = Shared<T, kD, backward_tiles(kD).queries>;
template <class T, int kD>
using SharedOfQueries = Shared<T, kD, backward_tiles(kD).keys>;

__device__ __forceinline__ int thread_of_warpgroup() { return threadIdx.x % kWarpgroup; }
__device__ __forceinline__ int own_row() {
  return thread_of_warpgroup() / 32 * 16 + threadIdx.x % 32 / 4;
}
__device__ __forceinline__ int own_column() { return threadIdx.x % 4 * 2; }

// Selects 0 for the columns of row kRow outside of a range, of a tile that begins at `origin`.
template <int kRow, int kColumns>
__device__ __forceinline__ void hide_others(RegisterTile<kColumns>& x, KeyRange seen, int origin,
                                            bool ends) {
  const int begin = seen.begin - origin - own_column(), end = seen.end - origin - own_column();
#pragma unroll
  for (int n = 0; n < x.kCount; ++n)
    if (x.row(n) == kRow && x.column(n) < begin) x.x[n] = 0;
  if (!ends) return;
#pragma unroll
  for (int n = 0; n < x.kCount; ++n)
    if (x.row(n) == kRow && x.column(n) >= end) x.x[n] = 0;
}

template <int kCount>
__device__ __forceinline__ void load_numbers(float* to, const float* from, Barrier& full) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "n"(kCount * 4), "r"(shared_address(&full))
      : "memory");
}

template <class S>
__device__ __forceinline__ S& begin_kernel() {
  extern __shared__ __align__(1024) unsigned char memory[];
  static_assert(sizeof(S) <= kBackwardSharedBytes);
  auto& shared = *reinterpret_cast<S*>(memory);
  if (threadIdx.x == 0) {
    shared.full.init(1);
    shared.ring.init(kConsumers * 4);
    publish_shared();
  }
  __syncthreads();
  return shared;
}

// Rounds 64 rows of results into the place of the warpgroup's own operand, and stores them.
template <class T, int kD>
__device__ __forceinline__ void store_result(RegisterTile<kD>& x, float factor,
                                             SharedTile<T, kBlock, kD>& place, int warpgroup,
                                             const TensorMap& map, int row, int length, int head,
                                             int batch) {
  const float both[2] = {factor, factor};
  x.multiply_rows(both);
  const int first = warpgroup * kWarpgroupRows;
  sync_threads(1 + warpgroup, kWarpgroup);  // its products with the operand are done
  store_rows(x, place, first + thread_of_warpgroup() / 32 * 16);
  publish_shared();
  sync_threads(1 + warpgroup, kWarpgroup);
  if (thread_of_warpgroup() == 0 && row + first < length)
    store_rows_of(place, first, map, row + first, head, batch);
}

}  // namespace attend::cuda
