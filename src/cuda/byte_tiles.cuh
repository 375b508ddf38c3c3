// Tiles of rows of 8 bits as they are in memory, for one query: many are on their way at once,
// since no thread waits for what it copies. Threads that compute widen them on their way into
// registers, where they are the first factor of a product.
#pragma once

#include "bytes.cuh"

namespace attend::cuda {

// The pieces of 16 bytes of a row are permuted by the row, as the copy engine would: of the rows
// and columns that a warp reads at a time, no two are in the same bank.
template <int kRows, int kColumns>
struct alignas(128) ByteTile {
  static constexpr int kPieces = kColumns / 16;
  static constexpr int kRepeat = kColumns < 128 ? 128 / kColumns : 1;  // rows of one permutation
  static constexpr int kTurns = kPieces < 8 ? kPieces : 8;
  signed char data[kRows][kColumns];

  __device__ __forceinline__ signed char* at(int row, int column) {
    return &data[row][(column / 16 ^ row / kRepeat % kTurns) * 16 + column % 16];
  }
  template <class Word>
  __device__ __forceinline__ Word word(int row, int column) {
    return *reinterpret_cast<const Word*>(at(row, column));
  }
};

// kSize bytes, which are there when a barrier says so (Barrier::arrive_when_copied), or zeros.
template <int kSize>
__device__ __forceinline__ void copy_async(void* to, const void* from, bool given) {
  const int bytes = given ? kSize : 0;
  if constexpr (kSize == 16)
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %3, %2;" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes), "n"(kSize)
                 : "memory");
}

// Starts the copies of a warp's rows of a tile, those features from `column` on; from d on they are
// zeros.
template <int kPiece, int kRows, int kColumns, int kWarps>
__device__ __forceinline__ void start_pieces(ByteTile<kRows, kColumns>& tile,
                                             const LaneRows<kRows, kWarps>& rows,
                                             const ByteKeys& keys, int column, int warp) {
  constexpr int kPieces = kColumns / kPiece;
  constexpr int kLane = ((kRows + kWarps - 1) / kWarps * kPieces + 31) / 32;
#pragma unroll
  for (int n = 0; n < kLane; ++n) {
    const int piece = 32 * n + static_cast<int>(threadIdx.x % 32), x = piece % kPieces * kPiece;
    const int row = warp + piece / kPieces * kWarps;
    const signed char* const at = rows.at_of(piece / kPieces);
    const bool given = at != nullptr && column + x < keys.d;
    if (row < kRows)
      copy_async<kPiece>(tile.at(row, x), given ? at + column + x : keys.data, given);
  }
}
template <int kRows, int kColumns, int kWarps>
__device__ __forceinline__ void start_rows(ByteTile<kRows, kColumns>& tile,
                                           const LaneRows<kRows, kWarps>& rows,
                                           const ByteKeys& keys, int column, int warp) {
  const auto at = static_cast<long long>(reinterpret_cast<std::uintptr_t>(keys.data));
  if ((at | keys.batch | keys.head | keys.row | keys.d) % 16 == 0)
    start_pieces<16>(tile, rows, keys, column, warp);
  else start_pieces<8>(tile, rows, keys, column, warp);
}

// ---- Operands ----------------------------------------------------------------------------------

// What a row that takes its scale is multiplied by before the product.
__device__ __forceinline__ float own_scale(float scale, bool of_value) {
  return row_takes(scale, of_value) ? scale : 1;
}

// 64 rows of a tile from `row` on, 16 columns: the first factor of K Q^T. Of the 16 columns a
// thread has four neighbours, where the instruction's order has two and two, 8 apart. What it is
// multiplied with has the same order (order_as_bytes), and the instruction's sum has none.
template <bool kTakes, int kRows, int kColumns>
__device__ __forceinline__ void load_rows_operand(std::uint32_t* a, ByteTile<kRows, kColumns>& tile,
                                                  int row, int column, const float (&scale)[2]) {
  if (kRows % kWarpgroupRows != 0 && row + own_row() / 16 * 16 >= kRows) {
    for (int n = 0; n < 4; ++n) a[n] = 0;
    return;
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const auto four =
        tile.template word<std::uint32_t>(row + own_row() + 8 * r, column + 2 * own_column());
    const uint2 wide = kTakes ? times(four, own_scale(scale[r], false)) : widened(four);
    a[r] = wide.x;
    a[2 + r] = wide.y;
  }
}
template <class T, int kRows, int kColumns>
__device__ __forceinline__ void order_as_bytes(SharedTile<T, kRows, kColumns>& tile, int rows) {
  constexpr int kSteps = kColumns / kDepth;
  for (int n = thread_of_warpgroup(); n < rows * kSteps; n += kWarpgroup) {
    auto* const low = reinterpret_cast<uint4*>(tile.at(n / kSteps, n % kSteps * kDepth));
    auto* const high = reinterpret_cast<uint4*>(tile.at(n / kSteps, n % kSteps * kDepth + 8));
    const uint4 a = *low, b = *high;
    *low = uint4{a.x, a.z, b.x, b.z};
    *high = uint4{a.y, a.w, b.y, b.w};
  }
  publish_shared();
}

// All columns of a tile, 64 or twice the same 32, and 16 rows from `row` on: the first factor of
// V^T P^T. A thread has two neighbouring columns, which are the operand's rows 8 apart
// (column_of_row). scale_of(row), if rows take theirs.
template <int kColumns>
__device__ __forceinline__ int column_of_row(int row) {
  return (row / 16 * 16 + row % 8 * 2 + row / 8 % 2) % kColumns;
}
template <bool kTakes, int kRows, int kColumns, class ScaleOf>
__device__ __forceinline__ void load_turned_operand(std::uint32_t* a,
                                                    ByteTile<kRows, kColumns>& tile, int row,
                                                    const ScaleOf& scale_of) {
  const int column = column_of_row<kColumns>(own_row());
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int at = row + 8 * half + own_column();
    const std::uint32_t first = tile.template word<std::uint16_t>(at, column);
    const std::uint32_t second = tile.template word<std::uint16_t>(at + 1, column);
    if constexpr (kTakes) {
      const uint2 x = times(first, scale_of(at)), y = times(second, scale_of(at + 1));
      a[2 * half] = __byte_perm(x.x, y.x, 0x5410);
      a[2 * half + 1] = __byte_perm(x.x, y.x, 0x7632);
    } else {
      const uint2 wide = widened(__byte_perm(first, second, 0x5140));
      a[2 * half] = wide.x;
      a[2 * half + 1] = wide.y;
    }
  }
}

}  // namespace attend::cuda
