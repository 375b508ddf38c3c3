// What both halves of backward share: positions, the memory of a block of threads, results.
#pragma once

#include "backward_sm90.h"
#include "careful.cuh"
#include "key_range.h"

namespace attend::cuda {

constexpr int kConsumers = 2;  // warpgroups
constexpr int kConsumerThreads = kConsumers * kWarpgroup;
constexpr int kThreads = kConsumerThreads + kWarpgroup;
enum NamedBarrier { kOwnWarpgroup = 1, kTurn = 4, kConsumersMeet = 7 };

// Positions of one sequence, and where it is in the tensors.
struct Positions {
  int q_length, k_length;  // k_length: of those that are seen
  int q_begin = 0, k_begin = 0, k_rows, tensor_batch;
  int q_limit = kNoLimit;  // packed: queries from here on are others'
  int offset, left, right;

  __device__ __forceinline__ Positions(const BackwardParameters& p, int batch)
      : q_length(p.q_length), k_length(p.k_length), k_rows(p.k_length), tensor_batch(batch),
        left(p.left), right(p.right) {
    if (p.q_starts != nullptr) {
      q_begin = p.q_starts[batch];
      k_begin = p.k_starts[batch];
      q_limit = q_length = p.q_starts[batch + 1] - q_begin;
      k_rows = k_length = p.k_starts[batch + 1] - k_begin;
      tensor_batch = 0;
    }
    if (p.key_lengths != nullptr) k_length = p.key_lengths[batch];
    offset = p.offset_given != 0 ? p.offset : k_length - q_length;
  }
  // The first row of a head in the workspace, a multiple of 4: the copy engine's 16 bytes.
  __device__ __forceinline__ static long long workspace_row(const BackwardParameters& p, int batch,
                                                            int head) {
    if (p.q_starts == nullptr) return (static_cast<long long>(batch) * p.heads + head) * p.padded;
    return static_cast<long long>(head) * p.padded + (p.q_starts[batch] + 3) / 4 * 4 + 4 * batch;
  }
  // Keys that query i sees, and queries that see key j.
  __device__ __forceinline__ KeyRange seen_by(int i) const {
    return {i + offset - left, min(k_length, i + offset + right + 1)};
  }
  __device__ __forceinline__ KeyRange that_see(int j) const {
    return {j < k_length ? j - offset - right : 2 * kNoLimit, min(q_limit, j - offset + left + 1)};
  }
  __device__ __forceinline__ bool sees(int i, int j) const {
    return i < q_limit && j >= seen_by(i).begin && j < seen_by(i).end;
  }
  // First queries i, and first keys j, of tiles in which each of so many queries sees each of so
  // many keys.
  __device__ __forceinline__ KeyRange whole_from_queries(int queries, int j, int keys) const {
    const KeyRange first = that_see(j), last = that_see(j + keys - 1);
    return {last.begin, first.end - queries + 1};
  }
  __device__ __forceinline__ KeyRange whole_from_keys(int keys, int i, int queries) const {
    const KeyRange first = seen_by(i), last = seen_by(i + queries - 1);
    return {last.begin, min(first.end, i + queries <= q_limit ? kNoLimit : 0) - keys + 1};
  }
  // Tiles of keys that queries [i, i + rows) see, and of queries that see keys [j, j + rows).
  __device__ __forceinline__ KeyRange key_tiles(int i, int rows, int tile) const {
    const int last = min(i + rows, q_length) - 1;
    const int begin = max(0, seen_by(i).begin), end = seen_by(last).end;
    if (end <= begin) return {0, 0};
    return {begin / tile, (end + tile - 1) / tile};
  }
  __device__ __forceinline__ KeyRange query_tiles(int j, int rows, int tile) const {
    const int last = min(j + rows, k_length) - 1;
    const int begin = max(0, that_see(j).begin), end = min(q_length, that_see(last).end);
    if (last < j || end <= begin) return {0, 0};
    return {begin / tile, (end + tile - 1) / tile};
  }
};

// What a block of threads does. It is in shared memory; a kernel whose loop has registers left
// holds a copy.
struct Block {
  Positions positions;
  int batch, head, row;  // the first of its queries or keys; the head of these
};

// Selects `value` for the columns of row kRow outside of a range, of a tile that begins at
// `origin`.
template <int kRow, int kColumns>
__device__ __forceinline__ void hide_others(RegisterTile<kColumns>& x, KeyRange seen, int origin,
                                            bool ends, float value = 0) {
  const int begin = seen.begin - origin - own_column(), end = seen.end - origin - own_column();
#pragma unroll
  for (int n = 0; n < x.kCount; ++n)
    if (x.row(n) == kRow && x.column(n) < begin) x.x[n] = value;
  if (!ends) return;
#pragma unroll
  for (int n = 0; n < x.kCount; ++n)
    if (x.row(n) == kRow && x.column(n) >= end) x.x[n] = value;
}

template <int kCount>
__device__ __forceinline__ void load_numbers(float* to, const float* from, Barrier& full) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "n"(kCount * 4), "r"(shared_address(&full))
      : "memory");
}

// What every kernel does first.
template <class S>
__device__ __forceinline__ S& begin_kernel(const Block& block) {
  extern __shared__ __align__(1024) unsigned char memory[];
  static_assert(sizeof(S) <= kBackwardSharedBytes);
  auto& shared = *reinterpret_cast<S*>(memory);
  if (threadIdx.x == 0) {
    shared.init();
    shared.block = block;
    publish_shared();
  }
  __syncthreads();
  return shared;
}

// 0, 1: computes; -1: copies.
__device__ __forceinline__ int own_warpgroup() {
  return uniform(static_cast<int>(threadIdx.x) / kWarpgroup) - 1;
}

// Where results go.
struct Destination {
  const TensorMap& map;
  const Rows& rows;
  int columns, length, begin;  // rows [begin, begin + length) of the tensor are the sequence's
  bool packed;
};

// Rounds 64 rows of results into a place that no product reads any more, and stores them. In packed
// tensors the copy engine would write past the end of the sequence.
template <class T, int kRows, int kD>
__device__ __forceinline__ void store_result(RegisterTile<kD>& x, float factor,
                                             SharedTile<T, kRows, kD>& place, int first,
                                             const Block& block, const Destination& to) {
  const int barrier = kOwnWarpgroup + own_warpgroup(), row = block.row + first;
  const float both[2] = {factor, factor};
  x.multiply_rows(both);
  sync_threads(barrier, kWarpgroup);  // its products with the operand are done
  store_rows(x, place, first + thread_of_warpgroup() / 32 * 16);
  publish_shared();
  sync_threads(barrier, kWarpgroup);
  if (to.packed && row + kWarpgroupRows > to.length) {
    copy_rows(
        place, first, min(kWarpgroupRows, to.length - row),
        static_cast<T*>(to.rows.data) + block.head * to.rows.head + (to.begin + row) * to.rows.row,
        to.rows.row, to.columns);
  } else if (thread_of_warpgroup() == 0 && row < to.length) {
    store_rows_of(place, first, to.map, to.begin + row, block.head, block.positions.tensor_batch);
  }
}

}  // namespace attend::cuda
