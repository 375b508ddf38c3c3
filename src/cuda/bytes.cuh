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

// Numbers of 8 bits as pairs of bf16. With its sign turned over, a byte is 128 + x, and by itself
// the bits of (128 + x) 2^-133: bf16 counts on evenly from its subnormal numbers to the next ones.
// Times 2^127 less 2, times 64: x. All of it is exact.
__device__ __forceinline__ std::uint32_t pair_of(std::uint32_t turned, int which) {
  const auto both = [](std::uint32_t bits) {
    return *reinterpret_cast<const __nv_bfloat162*>(&bits);
  };
  const __nv_bfloat162 x =
      __hmul2(__hfma2(both(__byte_perm(turned, 0, which)), both(0x7F007F00U), both(0xC000C000U)),
              both(0x42804280U));
  return *reinterpret_cast<const std::uint32_t*>(&x);
}
__device__ __forceinline__ std::uint32_t widened_pair(std::uint32_t two) {
  return pair_of(two ^ 0x8080U, 0x4140);
}
__device__ __forceinline__ uint2 widened(std::uint32_t four) {
  const std::uint32_t turned = four ^ 0x80808080U;
  return {pair_of(turned, 0x4140), pair_of(turned, 0x4342)};
}
__device__ __forceinline__ uint2 times(std::uint32_t four, float scale) {
  const auto at = [&](int n) {
    return static_cast<float>(static_cast<signed char>(four >> (8 * n))) * scale;
  };
  return {pack(bf16{}, at(0), at(1)), pack(bf16{}, at(2), at(3))};
}

// What comes with a tile that warps write: when its bytes are there, for all lanes of the warp that
// brings them and the copy engine. And the scales of its rows.
struct WrittenByWarps {
  static constexpr bool kWrittenByWarps = true;
  static constexpr int kArrivals = 33;
  Barrier bytes;
};
template <int kRows>
struct RowScales : WrittenByWarps {
  float of[kRows];
};

// The keys of one head: where they are in the tensors, and how many there are.
struct HeadKeys {
  int batch;  // or the row of the table of pages
  int begin;  // of packed ones
  int head, end;
};

// Where a key is in the tensors: their first index, and their third. Behind the last key nowhere.
struct KeyPlace {
  int batch, row;

  __device__ __forceinline__ KeyPlace(const KeyPages& pages, const HeadKeys& of, int key)
      : batch(of.batch), row(of.begin + key) {
    if (pages.table == nullptr) return;
    row = key % pages.size;
    batch = key < of.end
                ? pages.table[static_cast<long long>(of.batch) * pages.width + key / pages.size]
                : -1;
  }
};

// ---- Copies by threads that run on while these do other work (cp.async) ------------------------

// 4 or 8 bytes, which become zeros if they are not given.
template <int kBytes>
__device__ __forceinline__ void copy_async(std::uint32_t to, const void* from, bool given) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kBytes),
               "r"(given ? kBytes : 0)
               : "memory");
}
// Arrives when this thread's copies are there.
__device__ __forceinline__ void arrive_with_copies(Barrier& barrier) {
  asm volatile(
      "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&barrier.word))
      : "memory");
}

__device__ __forceinline__ std::uint32_t load_2(std::uint32_t from) {
  std::uint16_t x;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(from) : "memory");
  return x;
}
__device__ __forceinline__ uint2 load_8(std::uint32_t from) {
  uint2 x;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(from) : "memory");
  return x;
}
__device__ __forceinline__ void store_16(std::uint32_t to, uint2 low, uint2 high) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(low.x), "r"(low.y),
               "r"(high.x), "r"(high.y)
               : "memory");
}

// ---- Tiles that are widened in place -----------------------------------------------------------

// Where a group of rows of bf16 will be, its bytes wait. A group is 512 bytes: what a warp widens
// at a time, 128 columns of a row at most.
template <int kRows_, int kColumns_>
struct ByteTile {
  static constexpr int kRows = kRows_, kColumns = kColumns_;
  static constexpr int kStep = kColumns < 128 ? kColumns : 128, kSteps = kColumns / kStep;
  static constexpr int kLanes = kStep / 16, kGroup = 32 / kLanes;  // of a row, rows
  static constexpr int kGroups = kRows / kGroup;
  // From one row, group or kStep columns to the next.
  static constexpr int kRowBytes = 2 * (kColumns < kSwizzledColumns ? kColumns : kSwizzledColumns);
  static constexpr int kGroupBytes = kGroup * kRowBytes, kDistance = kRows * kStep * 2;
  static_assert(kRows % kGroup == 0 && kColumns % kStep == 0);

  // By a warp: starts copying kColumns features from `column` on of the keys from `first` on; those
  // from d on are zeros, and rows behind the last key any numbers.
  template <class Tile>
  __device__ __forceinline__ static void start(Tile& tile, Barrier& there, const TensorMap& map,
                                               const ByteKeys& keys, const KeyPages& pages,
                                               const HeadKeys& of, int first, int column) {
    static_assert(Tile::kBytes == kSteps * kDistance);
    const int lane = static_cast<int>(threadIdx.x % 32);
    unsigned char* const to = reinterpret_cast<unsigned char*>(tile.row(0));
    if (keys.boxes != 0) {
      if (lane == 0) there.arrive_and_expect(kRows * kColumns);
      const int rows = kStep == 128 ? pages.piece : kGroup;
      for (int box = lane; box < kRows / rows * kSteps; box += 32) {
        const int row = box / kSteps * rows, step = box % kSteps;
        const KeyPlace at(pages, of, first + row);
        load_box(to + row * kRowBytes + step * kDistance, map, column + step * kStep, at.row,
                 of.head, at.batch, there);
      }
      return;
    }
    if (lane == 0) there.arrive();
#pragma unroll 1
    for (int group = 0; group < kGroups; ++group) {
      const int key = first + group * kGroup + lane / kLanes;
      const KeyPlace at(pages, of, key);
      const signed char* const from =
          keys.data + at.batch * keys.batch + of.head * keys.head + at.row * keys.row;
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
#pragma unroll
        for (int n = 0; n < 16; n += 8) {
          const int x = column + step * kStep + lane % kLanes * 16 + n;
          copy_async<8>(shared_address(to) + group * kGroupBytes + step * kDistance + 16 * lane + n,
                        from + x, key < of.end && x < keys.d);
        }
    }
  }
  // Their scales, and that all of it is on its way.
  __device__ __forceinline__ static void start_scales(float* to, const ByteKeys& keys,
                                                      const KeyPages& pages, const HeadKeys& of,
                                                      int first) {
    for (int row = static_cast<int>(threadIdx.x % 32); row < kRows; row += 32) {
      const KeyPlace at(pages, of, first + row);
      copy_async<4>(shared_address(to + row),
                    keys.scales + (at.batch * keys.scale_batch + of.head * keys.scale_head +
                                   at.row * keys.scale_row),
                    first + row < of.end);
    }
  }
};

// One of the warps that widen a tile: it has groups w, w + kWarps, ... . It reads all of a group
// before it writes there, so that no warp waits for another one.
template <class Bytes, int kWarps>
struct Widening {
  static constexpr int kRows = Bytes::kRows, kGroup = Bytes::kGroup, kGroups = Bytes::kGroups;
  static constexpr int kSteps = Bytes::kSteps, kOwn = (kGroups + kWarps - 1) / kWarps;
  static constexpr int kEach = (kOwn * kGroup + 31) / 32;  // rows that a lane knows the scales of
  static_assert(kEach <= 2);

  __device__ __forceinline__ static int row(int warp, int n) {
    const int own = lane() + 32 * n;
    return (warp + own / kGroup * kWarps) * kGroup + own % kGroup;
  }

  // Whether one of the rows was multiplied by its scale: their scales are then 1 for others.
  template <class Tile>
  __device__ __forceinline__ static bool widen(Tile& tile, const float (&scale)[kEach],
                                               bool of_value, int warp) {
    bool any = false;
#pragma unroll
    for (int n = 0; n < kEach; ++n) any = any || row_takes(scale[n], of_value);
    any = __any_sync(~0U, any);
    if (any) widen<true>(tile, scale, of_value, warp);
    else widen<false>(tile, scale, of_value, warp);
    return any;
  }

 private:
  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x % 32); }

  // 8 bytes become 16. Lanes side by side write a row, or two: all banks.
  template <bool kTakes, class Tile>
  __device__ __forceinline__ static void widen(Tile& tile, const float (&scale)[kEach],
                                               bool of_value, int warp) {
    constexpr int kPieces = Bytes::kStep / 8, kNext = kWarps * Bytes::kGroupBytes;
    constexpr int kAtOnce = kTakes || kOwn == 1 ? 1 : 2;  // groups
    // Where the bytes are, and where a lane's two numbers of eight go. With the 128-byte swizzle
    // rows of every other group of four are the last four of eight: there pieces are 64 bytes away.
    const std::uint32_t first = shared_address(tile.row(0)) + warp * Bytes::kGroupBytes;
    std::uint32_t to[2][2];  // of a group, and the warp's next
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const int piece = lane() + 32 * m;
      const std::uint32_t here =
          shared_address(tile.at(piece / kPieces, piece % kPieces * 8)) + warp * Bytes::kGroupBytes;
#pragma unroll
      for (int n = 0; n < 2; ++n)
        to[n][m] = kGroup == 4 && (warp + n * kWarps) % 2 != 0 ? here ^ 64 : here;
    }
#pragma unroll 1
    for (int done = 0; done < kOwn; done += kAtOnce) {
      uint2 raw[kAtOnce][kSteps][2];
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        if (warp + (done + n) * kWarps >= kGroups) continue;
#pragma unroll
        for (int step = 0; step < kSteps; ++step)
#pragma unroll
          for (int m = 0; m < 2; ++m)
            raw[n][step][m] = load_8(first + done * kNext + 8 * lane() +
                                     (n * kNext + step * Bytes::kDistance + 256 * m));
      }
      __syncwarp();
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const bool given = warp + (done + n) * kWarps < kGroups;
        const int turn = kAtOnce == 1 ? done % 2 : n % 2;
#pragma unroll
        for (int step = 0; step < kSteps; ++step)
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            const uint2 own = raw[n][step][m];
            uint2 low = widened(own.x), high = widened(own.y);
            if constexpr (kTakes) {
              const int row = (done + n) * kGroup + (lane() + 32 * m) / kPieces;
              const float by = __shfl_sync(~0U, row >= 32 ? scale[kEach - 1] : scale[0], row % 32);
              if (row_takes(by, of_value)) {
                low = times(own.x, by);
                high = times(own.y, by);
              }
            }
            if (given)
              store_16((turn == 0 ? to[0][m] : to[1][m]) + done * kNext +
                           (n * kNext + step * Bytes::kDistance),
                       low, high);
          }
      }
    }
  }
};

// Then: the tile is whole when all warps say so. Who waits for it makes it visible to the matrix
// units (Ring::wait).
__device__ __forceinline__ void rows_are_there(Barrier& full) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) full.arrive();
}

}  // namespace attend::cuda
