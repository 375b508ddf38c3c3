// The memory of a block of threads, and the thread that copies: it chooses items, and loads their
// queries, keys and values.
#pragma once

#include "forward_work.cuh"
#include "pages.cuh"

namespace attend::cuda {

template <class T, int kD_>
struct Shape {
  static constexpr int kD = kD_;
  static constexpr int kQueries = forward_tiles(kD).queries, kKeys = forward_tiles(kD).keys;
  static constexpr int kConsumers = kQueries / kWarpgroupRows;  // warpgroups
  static constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
  static constexpr int kStages = kD == 64 ? 4 : 2;  // tiles of keys, and of values
  static constexpr int kQueryStages = kD == 256 ? 1 : 2;
  static constexpr int kProducerRegisters = 32;
  static constexpr int kConsumerRegisters = kConsumers == 2 ? 240 : 160;

  using Queries = SharedTile<T, kQueries, kD>;
  using Keys = SharedTile<T, kKeys, kD>;

  struct Shared {
    // And results: a warpgroup's rows of out take the place of its q.
    Ring<Queries, kQueryStages, Work> q;
    Ring<Keys, kStages> k, v;
  };
  static_assert(sizeof(Shared) <= kForwardSharedBytes);
};

template <class S>
struct Producer {
  const ForwardParameters& p;
  typename S::Shared& shared;
  Place<S::kQueryStages> q{};
  Place<S::kStages> k{}, v{};

  // Items are taken from a counter, the first by the block's number: which block does an item
  // changes no bit of it. When a place for queries is free, the item that was there is finished.
  __device__ __forceinline__ void run() {
    int next = static_cast<int>(blockIdx.x);
    while (true) {
      while (p.q_starts != nullptr && next < p.items && is_empty(next)) next = take();
      shared.q.wait_until_empty(q);
      Work& work = shared.q.notes[q.stage];
      const bool again = work.kind == Work::plain && work.not_finite != 0;
      const bool last_may_fail =
          S::kQueryStages == 2 && shared.q.notes[q.stage ^ 1].kind == Work::plain;
      if (again) {
        work.kind = Work::careful;
      } else if (next < p.items) {
        work.kind = Work::plain;
        work.not_finite = 0;
        work.item = Item(p, next, S::kQueries);
      } else {
        work.kind = last_may_fail ? Work::none : Work::stop;
        shared.q.send_note_alone(q);
        if (last_may_fail) continue;
        return;
      }
      const Item item = work.item;
      shared.q.load(q, p.q, item.q_begin + item.row, item.head, item.tensor_batch);
      if (!again) next = take();
      load_keys(item);
    }
  }

  __device__ __forceinline__ int take() {
    return static_cast<int>(gridDim.x + atomicInc(p.counter, p.items - 1));
  }
  // Packed: past the end of its sequence.
  __device__ __forceinline__ bool is_empty(int index) const {
    const Item item(p, index, S::kQueries);
    return item.row >= item.q_length;
  }

  __device__ __forceinline__ void load_keys(const Item& item) {
    const KeyRange tiles = item.tiles(p, item.row, S::kQueries, S::kKeys);
    const int kv_head = item.head / p.group;
    if (p.pages.table != nullptr) return load_pages(item, tiles, kv_head);
    for (int j = tiles.begin; j < tiles.end; ++j) {
      shared.k.wait_until_empty(k);
      shared.k.load(k, p.k, item.k_begin + j * S::kKeys, kv_head, item.tensor_batch);
      shared.v.wait_until_empty(v);
      shared.v.load(v, p.v, item.k_begin + j * S::kKeys, kv_head, item.tensor_batch);
    }
  }

  __device__ __forceinline__ void load_pages(const Item& item, KeyRange tiles, int kv_head) {
    for (int j = tiles.begin; j < tiles.end; ++j) {
      const int first = j * S::kKeys, end = item.k_length;
      load_from_pages(shared.k, k, p.k, p.pages, item.k_begin, first, end, kv_head);
      load_from_pages(shared.v, v, p.v, p.pages, item.k_begin, first, end, kv_head);
    }
  }
};

}  // namespace attend::cuda
