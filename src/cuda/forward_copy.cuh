// The memory of a block of threads, and the thread that copies: it chooses items, and loads their
// queries, keys and values. Keys and values of 8 bits are brought by other warps of its warpgroup.
#pragma once

#include "bytes.cuh"
#include "forward_work.cuh"
#include "pages.cuh"

namespace attend::cuda {

template <class T, int kD_, bool kBytes_, bool kGeneral_ = false>
struct Shape {
  static constexpr int kD = kD_;
  static constexpr bool kBytes = kBytes_;      // keys and values are of 8 bits
  static constexpr bool kGeneral = kGeneral_;  // with options at run time
  static constexpr ForwardTiles kTiles = kGeneral ? general_tiles(kD) : forward_tiles(kD);
  static constexpr int kQueries = kTiles.queries, kKeys = kTiles.keys;
  using Parameters = std::conditional_t<kGeneral, GeneralParameters, ForwardParameters>;
  static constexpr int kConsumers = kQueries / kWarpgroupRows;  // warpgroups
  static constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
  static constexpr int kStages = kD == 64 ? 4 : 2;  // tiles of keys, and of values
  // At d 256 there is one place for queries, which is free when the last scores are there: results
  // are stored from registers. Elsewhere results take the place of their queries, and there are
  // more: where items have one or two tiles, the next but one are on their way.
  static constexpr bool kLeaveEarly = kD == 256;
  static constexpr int kQueryStages = kLeaveEarly ? 1 : kD == 128 && kBytes ? 2 : 3;
  // When a place for queries is taken again, the item whose note is overwritten is finished.
  static constexpr int kNotes = kQueryStages + (kLeaveEarly ? 1 : 0);
  static constexpr int kBringing = kBytes ? 3 : 0;  // warps that bring keys and values
  static constexpr int kProducerRegisters = kConsumers == 3 ? 32 : kBytes ? 56 : 24;
  static constexpr int kConsumerRegisters = kConsumers == 3 ? 160 : kBytes ? 224 : 240;
  // A block has as many as it is launched with: who asks for more waits for ever.
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <=
                65536 / kThreads / 8 * 8 * (1 + kConsumers));

  using Queries = SharedTile<T, kQueries, kD>;
  using Keys = SharedTile<T, kKeys, kD>;

  struct Shared {
    Ring<Queries, kQueryStages, Work, kNotes> q;
    Ring<Keys, kStages, std::conditional_t<kBytes, RowScales<kKeys>, Nothing>> k, v;
  };
  static_assert(sizeof(Shared) <= kForwardSharedBytes);
};

template <class S>
struct Producer {
  const typename S::Parameters& p;
  typename S::Shared& shared;
  Place<S::kQueryStages> q{};
  Place<S::kNotes> note{};
  Place<S::kStages> k{}, v{};

  // Items are taken from a counter, the first by the block's number: which block does an item
  // changes no bit of it.
  __device__ __forceinline__ void run() {
    int next = static_cast<int>(blockIdx.x);
    while (true) {
      while (p.q_starts != nullptr && next < p.items && is_empty(next)) next = take();
      shared.q.wait_until_empty(q);
      Work& work = shared.q.notes[note.stage];
      const bool again = work.kind == Work::plain && work.not_finite != 0;
      if (again) {
        work.kind = Work::careful;
      } else if (next < p.items) {
        work.kind = Work::plain;
        work.not_finite = 0;
        work.item = Item(p, next, S::kQueries);
      } else {
        const bool others_may_fail = is_another_plain();
        work.kind = others_may_fail ? Work::none : Work::stop;
        shared.q.send_note_alone(q);
        if (!others_may_fail) return;
        note.advance();
        continue;
      }
      const Item item = work.item;
      note.advance();
      shared.q.load(q, p.q, item.q_begin + item.row, item.head, item.tensor_batch);
      if (!again) next = take();
      if (!S::kBytes) load_keys(item);
    }
  }

  __device__ __forceinline__ int take() {
    return static_cast<int>(gridDim.x + atomicInc(p.counter, p.items - 1));
  }

  __device__ __forceinline__ bool is_another_plain() const {
    bool found = false;
#pragma unroll
    for (int n = 0; n < S::kNotes; ++n)
      found = found || (n != note.stage && shared.q.notes[n].kind == Work::plain);
    return found;
  }

  // Packed: of a shorter sequence than the longest.
  __device__ __forceinline__ bool is_empty(int index) const {
    const Item item(p, index, S::kQueries);
    return item.row + S::kQueries <= 0;
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

// One of the warps that bring keys and values of 8 bits, for the items that the copying thread
// chooses.
template <class S>
struct Bringer {
  using Rows = LaneRows<S::kKeys, S::kBringing>;
  static constexpr int kMost = S::kConsumers == 2 ? 8 : 2;  // registers
  const ForwardParameters& p;
  typename S::Shared& shared;
  const int warp;
  Place<S::kQueryStages> q{};
  Place<S::kNotes> note{};
  Place<S::kStages> k{}, v{};
  Rows next_k, next_v;

  __device__ __forceinline__ void run() {
    while (true) {
      shared.q.wait(q);
      const Work::Kind kind = shared.q.notes[note.stage].kind;
      const Item item = shared.q.notes[note.stage].item;
      __syncwarp();
      shared.q.release(q);
      note.advance();
      if (kind == Work::stop) return;
      if (kind != Work::none) bring(item);
    }
  }

 private:
  __device__ __forceinline__ void bring(const Item& item) {
    const KeyRange tiles = item.tiles(p, item.row, S::kQueries, S::kKeys);
    const bool on_pages = p.pages.table != nullptr;
    const HeadKeys keys{on_pages ? item.k_begin : item.tensor_batch, on_pages ? 0 : item.k_begin,
                        item.head / p.group, item.k_length};
    if (tiles.begin < tiles.end) find(keys, tiles.begin);
    for (int j = tiles.begin; j < tiles.end; ++j) {
      const Rows k_rows = next_k, v_rows = next_v;
      const auto bring_tile = [&](auto& ring, auto& place, const Rows& rows, int d, bool of_value,
                                  const auto& meanwhile) {
        bring_rows<kMost, S::kD>(ring.tiles[place.stage], rows, 0, d, of_value, warp, [&] {
          meanwhile();
          ring.wait_until_empty(place);
        });
        rows.store_scales(ring.notes[place.stage].of, of_value, warp);
        rows_are_there(ring.full[place.stage]);
        place.advance();
      };
      bring_tile(shared.k, k, k_rows, p.k_bytes.d, false, [&] {
        if (j + 1 < tiles.end) find(keys, j + 1);
      });
      bring_tile(shared.v, v, v_rows, p.v_bytes.d, true, [] {});
    }
  }

  __device__ __forceinline__ void find(const HeadKeys& keys, int tile) {
    const auto scale_in = [&](const ByteKeys& from) {
      return [&](int batch, int in) {
        return from.scales +
               (batch * from.scale_batch + keys.head * from.scale_head + in * from.scale_row);
      };
    };
    next_k.find(p.k_bytes, p.pages, keys, tile * S::kKeys, warp, scale_in(p.k_bytes));
    next_v.find(p.v_bytes, p.pages, keys, tile * S::kKeys, warp, scale_in(p.v_bytes));
  }
};

}  // namespace attend::cuda
