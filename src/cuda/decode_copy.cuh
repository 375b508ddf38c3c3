// The memory of a block of threads that decodes, what it does at a time, and the warp that copies:
// queries, then keys and values tile by tile, from tensors or from pages.
#pragma once

#include "decode_sm90.h"
#include "key_range.h"
#include "pipeline.cuh"

namespace attend::cuda {

template <class T, int kD>
struct DecodeShared {
  static constexpr int kTile = decode_tile(kD), kStages = decode_stages(kD);
  static constexpr int kQueryStages = decode_query_stages(kD);
  Ring<SharedTile<T, kDecodeRows, kD>, kQueryStages> q;
  Ring<SharedTile<T, kTile, kD>, kStages> k, v;
};

template <class T, int kD>
inline constexpr bool kFits = sizeof(DecodeShared<T, kD>) <= decode_shared_bytes(kD);

// Some chunks of one key head.
template <int kTile>
struct DecodeItem {
  int batch, kv_head, part;
  int k_length, offset;
  KeyRange seen;  // of its keys, by some query

  __device__ __forceinline__ DecodeItem(const DecodeParameters& p, int item) {
    part = item % p.parts;
    kv_head = item / p.parts % (p.heads / p.group);
    batch = item / p.parts / (p.heads / p.group);
    k_length = p.key_lengths == nullptr ? p.k_length : p.key_lengths[batch];
    offset = p.offset_given != 0 ? p.offset : k_length - p.q_length;
    const int keys = kDecodeChunk * p.chunks_each;
    seen = {max(part * keys, seen_by(p, 0).begin),
            min((part + 1) * keys, seen_by(p, p.q_length - 1).end)};
  }
  __device__ __forceinline__ KeyRange seen_by(const DecodeParameters& p, int i) const {
    return {max(0, i + offset - p.left), min(k_length, i + offset + p.right + 1)};
  }
  __device__ __forceinline__ bool is_empty() const { return seen.begin >= seen.end; }
  // Of a tile, from some query.
  __device__ __forceinline__ bool hides_some(const DecodeParameters& p, int tile) const {
    return seen_by(p, p.q_length - 1).begin > tile * kTile ||
           seen_by(p, 0).end < (tile + 1) * kTile;
  }
  __device__ __forceinline__ KeyRange tiles() const {
    return {seen.begin / kTile, (seen.end + kTile - 1) / kTile};
  }
};

__device__ __forceinline__ int items_of(const DecodeParameters& p) {
  return p.batch * (p.heads / p.group) * p.parts;
}

// After an item's first keys: while a place for queries is waited for, keys are on their way.
template <class T, int kD, int kStages>
__device__ __forceinline__ void load_queries(const DecodeParameters& p, DecodeShared<T, kD>& shared,
                                             Place<kStages>& q, int kv_head, int batch) {
  shared.q.wait_until_empty(q);
  shared.q.full[q.stage].arrive_and_expect(p.q_length * p.group * kD * 2);
  load_tile(shared.q.tiles[q.stage], p.q, 0, kv_head * p.group, batch, shared.q.full[q.stage]);
  q.advance();
}

// By one thread.
template <class T, int kD>
__device__ __forceinline__ void load_items(const DecodeParameters& p, DecodeShared<T, kD>& shared) {
  using S = DecodeShared<T, kD>;
  Place<S::kQueryStages> q;
  Place<S::kStages> k, v;
  for (int index = blockIdx.x; index < items_of(p); index += gridDim.x) {
    const DecodeItem<S::kTile> item(p, index);
    if (item.is_empty()) continue;
    for (int j = item.tiles().begin; j < item.tiles().end; ++j) {
      shared.k.wait_until_empty(k);
      shared.k.load(k, p.k, j * S::kTile, item.kv_head, item.batch);
      if (j == item.tiles().begin) load_queries(p, shared, q, item.kv_head, item.batch);
      shared.v.wait_until_empty(v);
      shared.v.load(v, p.v, j * S::kTile, item.kv_head, item.batch);
    }
  }
}

// ---- Pages -------------------------------------------------------------------------------------

// One tile after the other of all items that a block of threads does.
template <int kTile>
struct TileCursor {
  int index = static_cast<int>(blockIdx.x) - static_cast<int>(gridDim.x), batch = 0, kv_head = 0;
  int k_length = 0, j = 0, end = 0;
  bool begins = true;  // an item

  __device__ __forceinline__ bool is_over(const DecodeParameters& p) const {
    return index >= items_of(p);
  }
  __device__ __forceinline__ void advance(const DecodeParameters& p) {
    begins = ++j >= end;
    while (j >= end && !is_over(p)) {
      index += gridDim.x;
      if (is_over(p)) return;
      const DecodeItem<kTile> item(p, index);
      batch = item.batch;
      kv_head = item.kv_head;
      k_length = item.k_length;
      j = item.tiles().begin;
      end = item.is_empty() ? j : item.tiles().end;
    }
  }
  // Where this lane's piece of the tile begins.
  __device__ __forceinline__ int key(const DecodeParameters& p) const {
    return j * kTile + own_piece() * p.piece;
  }
  __device__ __forceinline__ static int own_piece() { return static_cast<int>(threadIdx.x % 32); }
  // The page that it is on. Behind the last key there is none: the copy engine writes zeros.
  __device__ __forceinline__ int page(const DecodeParameters& p) const {
    if (is_over(p) || own_piece() * p.piece >= kTile || key(p) >= k_length) return -1;
    const int in_row = key(p) / p.page_size;
    return in_row < p.table_width ? p.block_table[batch * p.table_width + in_row] : -1;
  }
};

// By a warp, each lane a piece of a tile. The pages of the next tile are looked up before there is
// room for this one.
template <class T, int kD>
__device__ __forceinline__ void load_pages(const DecodeParameters& p, DecodeShared<T, kD>& shared) {
  using S = DecodeShared<T, kD>;
  Place<S::kQueryStages> q;
  Place<S::kStages> place;  // of k and of v
  TileCursor<S::kTile> now;
  now.advance(p);
  int page = now.page(p);
  const bool is_first = threadIdx.x % 32 == 0;
  const auto load = [&](auto& ring, const TensorMap& map) {
    ring.wait_until_empty(place);
    Barrier& full = ring.full[place.stage];
    if (is_first) full.arrive_and_expect(SharedTile<T, S::kTile, kD>::kBytes);
    __syncwarp();
    const int first = now.own_piece() * p.piece;
    if (first < S::kTile)
      load_rows(ring.tiles[place.stage], first, map, now.key(p) % p.page_size, now.kv_head, page,
                full);
  };
  while (!now.is_over(p)) {
    TileCursor<S::kTile> next = now;
    next.advance(p);
    const int next_page = next.page(p);
    load(shared.k, p.k);
    if (now.begins && is_first) load_queries(p, shared, q, now.kv_head, now.batch);
    load(shared.v, p.v);
    place.advance();
    now = next;
    page = next_page;
  }
}

}  // namespace attend::cuda
