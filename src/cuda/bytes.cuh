// Tiles of keys and values of 8 bits, with a scale for each row (docs/decisions/027). Whole numbers
// of 8 bits are exact in bf16: warps bring them from tensors or pages of any size, and write them
// as the copy engine would. Scales are for others to multiply scores and weights with.
#pragma once

#include "pipeline.cuh"

#include <type_traits>

namespace attend::cuda {

struct Nothing {};  // what kernels of 16 bits have instead

// Whether a row is multiplied by its scale itself, which is 1 from then on: one that is not finite,
// which means something else outside of the sum over features, and of a value one with which
// weights of bf16 would leave their range. (As cpu/scales.h has it, but weights may be up to 2^8
// here, while the reference score waits: |v| below 2^119 is what they are right for.)
__device__ __forceinline__ bool row_takes(float scale, bool of_value) {
  const std::uint32_t size = __float_as_uint(scale) & 0x7FFFFFFFU;
  const std::uint32_t least = of_value ? 0x0D800000U : 0U;  // 2^-100
  const std::uint32_t most = of_value ? 0x7F000000U : 0x7F7FFFFFU;
  return size != 0 && (size < least || size > most);
}
__device__ __forceinline__ float others_scale(float scale, bool of_value) {
  return row_takes(scale, of_value) ? 1 : scale;
}

// Four numbers of 8 bits as two pairs of bf16. A byte becomes the last bits of 128 + x % 128, and
// what is too much, 128 or, below 0, 256, is subtracted: both are exact.
__device__ __forceinline__ uint2 widened(std::uint32_t four) {
  const auto pair = [](std::uint32_t bytes) {
    const std::uint32_t sum = bytes & 0xFF7FFF7FU, less = bytes & 0xFF80FF80U;
    const __nv_bfloat162 x = __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&sum),
                                     *reinterpret_cast<const __nv_bfloat162*>(&less));
    return *reinterpret_cast<const std::uint32_t*>(&x);
  };
  return {pair(__byte_perm(four, 0x43434343U, 0x4140)),
          pair(__byte_perm(four, 0x43434343U, 0x4342))};
}
__device__ __forceinline__ uint2 times(std::uint32_t four, float scale) {
  const auto at = [&](int n) {
    return static_cast<float>(static_cast<signed char>(four >> (8 * n))) * scale;
  };
  return {pack(bf16{}, at(0), at(1)), pack(bf16{}, at(2), at(3))};
}

// What comes with a tile of rows of 8 bits.
template <int kRows>
struct RowScales {
  float of[kRows];
};

// The keys of one head: where they are in the tensors, and how many there are.
struct HeadKeys {
  int batch;  // or the row of the table of pages
  int begin;  // of packed ones
  int head, end;
};

// Where a warp's rows of a tile are: w, w + kWarps, ... of warp w, a row a lane, or two.
template <int kRows, int kWarps>
struct LaneRows {
  static constexpr int kEach = (kRows + 32 * kWarps - 1) / (32 * kWarps);
  const signed char* at[kEach];  // null: behind the last key
  float scale[kEach];

  __device__ __forceinline__ static int row(int warp, int n) {
    return warp + (static_cast<int>(threadIdx.x % 32) + 32 * n) * kWarps;
  }

  // Those of the tile from key `first` on. found(n, index in the tensors' first dimension, in their
  // third): the lane's row n is there.
  template <class Found>
  __device__ __forceinline__ void find_rows(const ByteKeys& keys, const KeyPages& pages,
                                            const HeadKeys& of, int first, int warp,
                                            const Found& found) {
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int r = row(warp, n), key = first + r;
      at[n] = nullptr;
      if (r >= kRows || key >= of.end) continue;
      int batch = of.batch, in = of.begin + key;
      if (pages.table != nullptr) {
        batch = pages.table[static_cast<long long>(of.batch) * pages.width + key / pages.size];
        in = key % pages.size;
      }
      at[n] = keys.data + batch * keys.batch + of.head * keys.head + in * keys.row;
      found(n, batch, in);
    }
  }
  // With their scales. scale_of(index in the first dimension, in the third): the address of one.
  template <class ScaleOf>
  __device__ __forceinline__ void find(const ByteKeys& keys, const KeyPages& pages,
                                       const HeadKeys& of, int first, int warp,
                                       const ScaleOf& scale_of) {
#pragma unroll
    for (int n = 0; n < kEach; ++n) scale[n] = 0;
    find_rows(keys, pages, of, first, warp,
              [&](int n, int batch, int in) { scale[n] = *scale_of(batch, in); });
  }

  // Of the warp's row n, which each lane may have another of; all lanes ask.
  __device__ __forceinline__ const signed char* at_of(int n) const {
    return reinterpret_cast<const signed char*>(of_lane(n, [&](int m) {
      return static_cast<unsigned long long>(reinterpret_cast<std::uintptr_t>(at[m]));
    }));
  }
  __device__ __forceinline__ float scale_of(int n) const {
    return of_lane(n, [&](int m) { return scale[m]; });
  }
  // Writes the scales that others multiply by.
  __device__ __forceinline__ void store_scales(float* to, bool of_value, int warp) const {
#pragma unroll
    for (int n = 0; n < kEach; ++n)
      if (const int r = row(warp, n); r < kRows) to[r] = others_scale(scale[n], of_value);
  }

 private:
  template <class Own>
  __device__ __forceinline__ static auto of_lane(int n, const Own& own) {
    auto x = __shfl_sync(~0U, own(0), n % 32);
#pragma unroll
    for (int m = 1; m < kEach; ++m)
      if (const auto other = __shfl_sync(~0U, own(m), n % 32); n >= 32 * m) x = other;
    return x;
  }
};

// A warp's rows of a tile, kColumns features from `column` on; those from d on are zeros. Up to
// kMost times 8 bytes of a thread are on their way at once. While the first are, meanwhile() is
// called: when it returns, the tile may be written.
template <int kMost, int kColumns, class Tile, int kRows, int kWarps, class Meanwhile>
__device__ __forceinline__ void bring_rows(Tile& tile, const LaneRows<kRows, kWarps> rows,
                                           int column, int d, bool of_value, int warp,
                                           const Meanwhile& meanwhile) {
  constexpr int kPieces = kColumns / 8;  // of 8 bytes, in a row
  constexpr int kLane = ((kRows + kWarps - 1) / kWarps * kPieces + 31) / 32;
  constexpr int kBatch = kLane < kMost ? kLane : kMost;
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
  for (int done = 0; done < kLane; done += kBatch) {
    uint2 raw[kBatch];
#pragma unroll
    for (int n = 0; n < kBatch; ++n) {
      const int piece = 32 * (done + n) + lane, x = column + piece % kPieces * 8;
      const signed char* const at = rows.at_of(piece / kPieces);
      const bool given = warp + piece / kPieces * kWarps < kRows && x < d && at != nullptr;
      raw[n] = given ? __ldg(reinterpret_cast<const uint2*>(at + x)) : uint2{0, 0};
    }
    if (done == 0) meanwhile();
#pragma unroll
    for (int n = 0; n < kBatch; ++n) {
      const int piece = 32 * (done + n) + lane, row = warp + piece / kPieces * kWarps;
      const float scale = rows.scale_of(piece / kPieces);
      const bool takes = row_takes(scale, of_value);
      const uint2 low = takes ? times(raw[n].x, scale) : widened(raw[n].x);
      const uint2 high = takes ? times(raw[n].y, scale) : widened(raw[n].y);
      if (row < kRows)
        *reinterpret_cast<uint4*>(tile.at(row, piece % kPieces * 8)) =
            uint4{low.x, low.y, high.x, high.y};
    }
  }
}

// Then, and after whatever else the warp has written: the tile is whole when all warps say so.
__device__ __forceinline__ void rows_are_there(Barrier& full) {
  publish_shared();
  __syncwarp();
  if (arrives()) full.arrive();
}

}  // namespace attend::cuda
