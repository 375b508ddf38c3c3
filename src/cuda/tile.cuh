// Tiles of 16-bit numbers in shared memory, tiles of sums in registers, and their products on
// Hopper's matrix units (wgmma, sm_90a). A kernel's step is written in these words:
//
//   SharedTile     [columns / 64][rows][64], as the copy engine writes it: 128 bytes of a row,
//   whose
//                  16-byte pieces are permuted by the row's last three bits (128-byte swizzle)
//   RegisterTile   64 rows of a warpgroup's f32 sums, two rows a thread
//   Operand        64 rows of 16-bit numbers in registers, in the order of a RegisterTile
//
// Thread t of a warpgroup has, of each 8 columns, the columns 2 (t % 4) and 2 (t % 4) + 1 of the
// rows t / 32 * 16 + t % 32 / 4 and that + 8. So four neighbours share a row, the statistics of a
// row need two shuffles, and weights are an operand where they are.
#pragma once

#include "wgmma.cuh"

namespace attend::cuda {

inline constexpr int kWarpgroup = 128;       // threads
inline constexpr int kWarpgroupRows = 64;    // of a product
inline constexpr int kDepth = 16;            // summed over by one instruction
inline constexpr int kSwizzledColumns = 64;  // of 16 bits: 128 bytes

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

template <class T, int kRows, int kColumns>
struct alignas(1024) SharedTile {
  static_assert(sizeof(T) == 2 && kRows % 8 == 0 && kColumns % kSwizzledColumns == 0);
  static constexpr int kBytes = kRows * kColumns * 2;
  static constexpr std::uint32_t kPanelBytes = kRows * 128;  // 64 columns of all rows

  T data[kColumns / kSwizzledColumns][kRows][kSwizzledColumns];

  // Row n of the first 64 columns, where a box of the copy engine may begin: n is a multiple of 8.
  __device__ __forceinline__ T* row(int n) { return data[0][n]; }
  __device__ __forceinline__ T* at(int row, int column) {
    const int piece = (column / 8 % 8) ^ (row % 8);
    return &data[column / kSwizzledColumns][row][piece * 8 + column % 8];
  }

  // What the matrix unit is told: the address, the distance of neighbouring panels and of groups of
  // eight rows, all in units of 16 bytes, and the swizzle. Shared memory ends below 2^18, so the
  // first 32 bits of two descriptors of a tile differ by a sum: one uniform add each.
  __device__ __forceinline__ std::uint64_t descriptor(std::uint32_t bytes) const {
    constexpr std::uint32_t kSwizzle128 = 1U << 30, kEightRows = 8 * 128 / 16;
    constexpr std::uint32_t kPanel = kPanelBytes / 16 << 16;
    return std::uint64_t{kSwizzle128 | kEightRows} << 32 |
           (shared_address(this) / 16 + (kPanel + bytes / 16));
  }
  // From `row` on, 16 columns, which are summed over: of Q K^T.
  __device__ __forceinline__ std::uint64_t rows_from(int row, int column) const {
    return descriptor(column / kSwizzledColumns * kPanelBytes + row * 128 +
                      column % kSwizzledColumns * 2);
  }
  // From `column` on, 16 rows, which are summed over: the second factor of P V.
  __device__ __forceinline__ std::uint64_t columns_from(int column, int row) const {
    return descriptor(column / kSwizzledColumns * kPanelBytes + row * 128);
  }
};

template <int kColumns>
struct RegisterTile {
  static constexpr int kCount = kColumns / 2;
  float x[kCount];

  // Where x[n] is: which of the thread's two rows, and the column less 2 (t % 4).
  __device__ __forceinline__ static constexpr int row(int n) { return n / 2 % 2; }
  __device__ __forceinline__ static constexpr int column(int n) { return n / 4 * 8 + n % 2; }

  __device__ __forceinline__ void fill(float value) {
#pragma unroll
    for (int n = 0; n < kCount; ++n) x[n] = value;
  }
  __device__ __forceinline__ void multiply_rows(const float (&factor)[2]) {
#pragma unroll
    for (int n = 0; n < kCount; ++n) x[n] *= factor[row(n)];
  }
  // The same for results: 0 is +0, so that products with weights of 0 behind a sum change no bit.
  __device__ __forceinline__ void finish_rows(const float (&factor)[2]) {
#pragma unroll
    for (int n = 0; n < kCount; ++n) x[n] = fmaf(x[n], factor[row(n)], 0.F);
  }
  // The compiler must not move what reads or writes the sums across this place.
  __device__ __forceinline__ void pin() {
#pragma unroll
    for (int n = 0; n < kCount; ++n) asm volatile("" : "+f"(x[n])::"memory");
  }
};

__device__ __forceinline__ std::uint32_t pack(bf16, float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&both);
}
__device__ __forceinline__ std::uint32_t pack(f16, float low, float high) {
  const __half2 both = __floats2half2_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&both);
}

__device__ __forceinline__ float2 unpack(bf16, std::uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000U)};
}
__device__ __forceinline__ float2 unpack(f16, std::uint32_t pair) {
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

template <class T, int kColumns>
struct Operand {
  std::uint32_t x[kColumns / 4];

  // Two neighbouring groups of eight columns are the operand of one instruction.
  __device__ __forceinline__ void round(const RegisterTile<kColumns>& tile) {
#pragma unroll
    for (int n = 0; n < kColumns / 4; ++n) x[n] = pack(T{}, tile.x[2 * n], tile.x[2 * n + 1]);
  }
};

// ---- Products ----------------------------------------------------------------------------------
// They run on while the threads do other work: begin, products, commit, and later wait.

__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most kRunning of the committed ones run.
template <int kRunning>
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kRunning) : "memory");
}

// sums = a b^T: 64 rows of a from `row` on with as many of b, the first, as there are columns.
template <class T, int kRowsA, int kColumns, int kRowsB, int kD>
__device__ __forceinline__ void product_of_rows(RegisterTile<kColumns>& sums,
                                                const SharedTile<T, kRowsA, kD>& a, int row,
                                                const SharedTile<T, kRowsB, kD>& b) {
  static_assert(kColumns <= kRowsB);
#pragma unroll
  for (int k = 0; k < kD; k += kDepth)
    Wgmma<T, kColumns>::of_rows(sums.x, a.rows_from(row, k), b.rows_from(0, k), k != 0);
}

// sums += a b: of a in registers with the columns of b's first rows.
template <class T, int kRows, int kRowsB, int kD>
__device__ __forceinline__ void add_product(RegisterTile<kD>& sums, const Operand<T, kRows>& a,
                                            const SharedTile<T, kRowsB, kD>& b) {
  static_assert(kRows <= kRowsB);
#pragma unroll
  for (int k = 0; k < kRows; k += kDepth)
    Wgmma<T, kD>::add_of_columns(sums.x, a.x + k / 4, b.columns_from(0, k));
}

// The same where b has a part of the features: those from kFirst on of a, and of the sums.
template <int kFirst, class T, int kRowsA, int kRowsB, int kD, int kPart>
__device__ __forceinline__ void product_of_part(RegisterTile<kRowsB>& sums,
                                                const SharedTile<T, kRowsA, kD>& a, int row,
                                                const SharedTile<T, kRowsB, kPart>& b) {
#pragma unroll
  for (int k = 0; k < kPart; k += kDepth)
    Wgmma<T, kRowsB>::of_rows(sums.x, a.rows_from(row, kFirst + k), b.rows_from(0, k),
                              kFirst + k != 0);
}
template <int kFirst, class T, int kRowsB, int kD, int kPart>
__device__ __forceinline__ void add_product_of_part(RegisterTile<kD>& sums,
                                                    const Operand<T, kRowsB>& a,
                                                    const SharedTile<T, kRowsB, kPart>& b) {
#pragma unroll
  for (int k = 0; k < kRowsB; k += kDepth)
    Wgmma<T, kPart>::add_of_columns(sums.x + kFirst / 2, a.x + k / 4, b.columns_from(0, k));
}

// A number that is the same in all threads of a warp, and now the compiler knows it: addresses of
// operands are then made by the uniform units instead of being moved there one by one.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(~0U, x, 0); }

// ---- Rows --------------------------------------------------------------------------------------

// Of a RegisterTile: the first of the thread's two rows in its warpgroup (the other is 8 below),
// and what is to be added to RegisterTile::column.
__device__ __forceinline__ int thread_of_warpgroup() { return threadIdx.x % kWarpgroup; }
__device__ __forceinline__ int own_row() {
  return thread_of_warpgroup() / 32 * 16 + threadIdx.x % 32 / 4;
}
__device__ __forceinline__ int own_column() { return threadIdx.x % 4 * 2; }

// Over the four threads of a row.
__device__ __forceinline__ float row_maximum(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0U, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0U, x, 2));
}
__device__ __forceinline__ float row_sum(float x) {
  x += __shfl_xor_sync(~0U, x, 1);
  return x + __shfl_xor_sync(~0U, x, 2);
}

// Each column by its own number. Rounded by itself: no compiler makes a multiply-add of it with
// what follows, which another kernel for the same numbers would not have.
template <int kColumns>
__device__ __forceinline__ void multiply_columns(RegisterTile<kColumns>& tile, const float* by) {
#pragma unroll
  for (int n = 0; n < tile.kCount; n += 4) {
    const float2 two = *reinterpret_cast<const float2*>(by + tile.column(n) + own_column());
#pragma unroll
    for (int m = 0; m < 4; ++m)
      tile.x[n + m] = __fmul_rn(tile.x[n + m], m % 2 == 0 ? two.x : two.y);
  }
}

// Rounds a warp's 16 rows of sums into a tile, from `row` on.
template <class T, int kRows, int kColumns>
__device__ __forceinline__ void store_rows(const RegisterTile<kColumns>& sums,
                                           SharedTile<T, kRows, kColumns>& to, int row) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < kColumns / 16; ++n) {
    const float* x = sums.x + 8 * n;
    const std::uint32_t address = shared_address(to.at(row + lane % 16, 16 * n + lane / 16 * 8));
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                 "r"(pack(T{}, x[0], x[1])), "r"(pack(T{}, x[2], x[3])), "r"(pack(T{}, x[4], x[5])),
                 "r"(pack(T{}, x[6], x[7]))
                 : "memory");
  }
}

// Of four neighbours, each with a row of four words: thread t gets column t.
__device__ __forceinline__ void transpose_of_four(std::uint32_t (&x)[4]) {
#pragma unroll
  for (int bit = 1; bit < 4; bit *= 2) {
    const bool odd = (threadIdx.x & bit) != 0;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if ((n & bit) != 0) continue;
      const std::uint32_t other = __shfl_xor_sync(~0U, odd ? x[n] : x[n + bit], bit);
      (odd ? x[n] : x[n + bit]) = other;
    }
  }
}

// Rounds the thread's row kRow of sums into memory, the first `columns`, a multiple of 8: 64 bytes
// of a row at a time. All threads of a warp ask; null: not this row.
template <int kRow, class T, int kColumns>
__device__ __forceinline__ void write_row(const RegisterTile<kColumns>& sums, T* to, int columns) {
#pragma unroll
  for (int n = 0; n < kColumns; n += 32) {
    std::uint32_t x[4];
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const float* const two = sums.x + n / 2 + 4 * m + 2 * kRow;
      x[m] = pack(T{}, two[0], two[1]);
    }
    transpose_of_four(x);
    const int column = n + static_cast<int>(threadIdx.x % 4) * 8;
    if (to != nullptr && column < columns)
      *reinterpret_cast<uint4*>(to + column) = uint4{x[0], x[1], x[2], x[3]};
  }
}

}  // namespace attend::cuda
