// Who waits for whom: barriers in shared memory, rings of tiles between the warps that copy and
// those that compute, the copy engine (TMA), and turns of warpgroups.
#pragma once

#include "tensor_map.h"
#include "tile.cuh"

namespace attend::cuda {

// A barrier in shared memory (mbarrier). Its phases alternate between 0 and 1.
struct Barrier {
  std::uint64_t word;

  __device__ __forceinline__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&word)),
                 "r"(arrivals)
                 : "memory");
  }
  __device__ __forceinline__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&word))
                 : "memory");
  }
  // Arrives, and the phase lasts until so many bytes more have been copied.
  __device__ __forceinline__ void arrive_and_expect(std::uint32_t bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&word)),
        "r"(bytes)
        : "memory");
  }
  // Arrives when what this thread copies with copy_async() is there.
  __device__ __forceinline__ void arrive_when_copied() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&word))
                 : "memory");
  }
  // Until the phase of this parity is over.
  __device__ __forceinline__ void wait(std::uint32_t parity) {
    std::uint32_t over = 0;
    while (over == 0)
      asm volatile(
          "{\n.reg .pred p;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
          "selp.u32 %0, 1, 0, p;\n}"
          : "=r"(over)
          : "r"(shared_address(&word)), "r"(parity)
          : "memory");
  }
};

// Of a warp one lane arrives, after what the others did with the tile: all have been in step since
// (products and __syncwarp() are for whole warps), but compute-sanitizer's racecheck knows the
// order of accesses only by threads that arrive themselves. For it -DATTEND_ALL_ARRIVE makes all do
// so.
#ifdef ATTEND_ALL_ARRIVE
inline constexpr int kArriving = 32;
#else
inline constexpr int kArriving = 1;
#endif
__device__ __forceinline__ bool arrives() { return threadIdx.x % 32 < kArriving; }

// Makes what this thread wrote into shared memory visible to the copy engine and matrix units.
__device__ __forceinline__ void publish_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- The copy engine ---------------------------------------------------------------------------

// A box of a tensor [batch, heads, rows, d].
__device__ __forceinline__ void load_box(void* to, const TensorMap& map, int column, int row,
                                         int head, int batch, Barrier& full) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(&full)), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
}
// Bytes as they are: addresses and number are multiples of 16.
__device__ __forceinline__ void load_bytes(void* to, const void* from, int bytes, Barrier& full) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %3, [%2];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(shared_address(&full)), "r"(bytes)
      : "memory");
}

// Rows of a tile, from its row `first` on, a multiple of 8: as many as the map's boxes have, from
// `row` on of one head of [batch, heads, rows, d]. What is outside of the tensor is 0.
template <class T, int kRows, int kColumns>
__device__ __forceinline__ void load_rows(SharedTile<T, kRows, kColumns>& to, int first,
                                          const TensorMap& map, int row, int head, int batch,
                                          Barrier& full) {
#pragma unroll
  for (int column = 0; column < kColumns; column += kSwizzledColumns)
    load_box(to.data[column / kSwizzledColumns][first], map, column, row, head, batch, full);
}
template <class T, int kRows, int kColumns>
__device__ __forceinline__ void load_tile(SharedTile<T, kRows, kColumns>& to, const TensorMap& map,
                                          int row, int head, int batch, Barrier& full) {
  load_rows(to, 0, map, row, head, batch, full);
}

// A tile of fewer columns than the tensor has, those from `first` on.
template <class T, int kRows, int kColumns>
__device__ __forceinline__ void load_columns(SharedTile<T, kRows, kColumns>& to,
                                             const TensorMap& map, int first, int row, int head,
                                             int batch, Barrier& full) {
#pragma unroll
  for (int column = 0; column < kColumns; column += kSwizzledColumns)
    load_box(to.data[column / kSwizzledColumns], map, first + column, row, head, batch, full);
}

// And back, 64 rows of a tile; rows past the end of the tensor are not written.
template <class T, int kRows, int kColumns>
__device__ __forceinline__ void store_rows_of(const SharedTile<T, kRows, kColumns>& from, int first,
                                              const TensorMap& map, int row, int head, int batch) {
#pragma unroll
  for (int column = 0; column < kColumns; column += kSwizzledColumns)
    asm volatile(
        "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group"
        " [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
        "r"(shared_address(from.data[column / kSwizzledColumns][first])), "r"(column), "r"(row),
        "r"(head), "r"(batch)
        : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// The same by a warpgroup's own threads, so many rows and columns of a tile, to `to`.
template <class T, int kRows, int kColumns>
__device__ __forceinline__ void copy_rows(SharedTile<T, kRows, kColumns>& from, int first, int rows,
                                          T* to, long long stride, int columns) {
  constexpr int kPieces = kColumns / 8;
  for (int n = thread_of_warpgroup(); n < rows * kPieces; n += kWarpgroup)
    if (n % kPieces * 8 < columns)
      *reinterpret_cast<uint4*>(to + n / kPieces * stride + n % kPieces * 8) =
          *reinterpret_cast<const uint4*>(from.at(first + n / kPieces, n % kPieces * 8));
}
// Until this thread's stores have read their tiles, or have written all.
__device__ __forceinline__ void wait_for_reading_stores() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void wait_for_stores() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// ---- Rings -------------------------------------------------------------------------------------

// Where a thread stands in a ring of stages.
template <int kStages>
struct Place {
  int stage = 0;
  std::uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

// Tiles on their way from the copying thread to the computing warps, which release each of them,
// and a note with each. There may be more places for notes than for tiles.
template <class Tile, int kStages, class Note = char, int kNotes = kStages>
struct Ring {
  Tile tiles[kStages];
  Barrier full[kStages], empty[kStages];
  Note notes[kNotes];

  // fills: arrivals that make a tile full, one unless warps bring it.
  __device__ __forceinline__ void init(int releases, int fills = 1) {
    for (int s = 0; s < kStages; ++s) {
      full[s].init(fills);
      empty[s].init(releases * kArriving);
    }
  }
  // The copying thread's side.
  __device__ __forceinline__ void wait_until_empty(const Place<kStages>& place) {
    empty[place.stage].wait(place.parity ^ 1);
  }
  __device__ __forceinline__ void load(Place<kStages>& place, const TensorMap& map, int row,
                                       int head, int batch) {
    full[place.stage].arrive_and_expect(Tile::kBytes);
    load_tile(tiles[place.stage], map, row, head, batch, full[place.stage]);
    place.advance();
  }
  __device__ __forceinline__ void send_note_alone(Place<kStages>& place) {
    full[place.stage].arrive();
    place.advance();
  }
  // The computing warps' side.
  __device__ __forceinline__ Tile& wait(const Place<kStages>& place) {
    full[place.stage].wait(place.parity);
    return tiles[place.stage];
  }
  __device__ __forceinline__ void release(Place<kStages>& place) {
    if (arrives()) empty[place.stage].arrive();
    place.advance();
  }
};

// ---- Warpgroups --------------------------------------------------------------------------------

__device__ __forceinline__ void sync_threads(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// The same for warps that come from different places of the code.
__device__ __forceinline__ void meet_threads(int barrier, int threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Warpgroups take turns at the matrix units, in a ring: while one computes weights, the products of
// the others run. Or they do not, whichever is faster. `first` is the first one's named barrier.
template <int kWarpgroups>
struct Turns {
  bool taken;
  int first, mine;

  __device__ __forceinline__ void begin() const {  // the last one lets the first one begin
    if (mine == kWarpgroups - 1) pass();
  }
  __device__ __forceinline__ void wait() const {
    if (taken) sync_threads(first + mine, 2 * kWarpgroup);
  }
  __device__ __forceinline__ void pass() const {
    const int next = mine + 1 == kWarpgroups ? 0 : mine + 1;
    if (taken)
      asm volatile("bar.arrive %0, %1;" ::"r"(first + next), "n"(2 * kWarpgroup) : "memory");
  }
};

template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace attend::cuda
