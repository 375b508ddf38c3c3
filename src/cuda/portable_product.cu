// c = a b + bias with its ends, of every type and any strides, on any NVIDIA GPU. Sums are those of
// core/product.h: chains of 256 multiply-adds in ascending order, in f32 (of f64 tensors f64),
// added in order; a row's bits depend on its row of a alone.
//
//   a block of threads   64 x 64 of c, 16 steps of the depth at a time in shared memory
//   a thread             4 rows and 4 columns, 16 apart
#include "features.cuh"
#include "portable_product.h"

namespace attend::cuda {
namespace {

constexpr int kTile = kProductTile, kDepth = 16, kEach = 4, kSide = kTile / kEach;
static_assert(kSide * kSide == kProductThreads);

__device__ __forceinline__ float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
__device__ __forceinline__ double multiply_add(double a, double b, double c) {
  return fma(a, b, c);
}

// A part of a matrix [rows, depth] in shared memory, depth first; zeros where there is nothing.
template <class E, class R>
__device__ __forceinline__ void load_part(const void* data, std::int64_t row_stride,
                                          std::int64_t depth_stride, std::int64_t row,
                                          std::int64_t rows, std::int64_t depth,
                                          std::int64_t depths, R (&to)[kDepth][kTile + 1]) {
  // Neighbouring threads read along the dimension whose elements lie side by side.
  const bool along_depth = depth_stride == 1;
  for (int n = static_cast<int>(threadIdx.x); n < kTile * kDepth; n += kProductThreads) {
    const int r = along_depth ? n / kDepth : n % kTile, d = along_depth ? n % kDepth : n / kTile;
    R x = 0;
    if (row + r < rows && depth + d < depths)
      x = static_cast<R>(
          number(static_cast<const E*>(data)[(row + r) * row_stride + (depth + d) * depth_stride]));
    to[d][r] = x;
  }
}

template <class T, class B>
__device__ void product(const PortableProduct& a) {
  using R = Real<T>;
  __shared__ R of_a[kDepth][kTile + 1], of_b[kDepth][kTile + 1];
  const ProductProblem& p = a.problem;
  const ProductCall& call = a.call;
  const int y = static_cast<int>(threadIdx.x) / kSide, x = static_cast<int>(threadIdx.x) % kSide;
  for (std::int64_t tile = blockIdx.x; tile < a.tiles; tile += gridDim.x) {
    const std::int64_t row = tile / a.across * kTile, column = tile % a.across * kTile;
    R sums[kEach][kEach] = {}, total[kEach][kEach] = {};
    for (std::int64_t depth = 0; depth < call.k; depth += kDepth) {
      __syncthreads();
      load_part<T>(call.a.data, call.a.row, call.a.column, row, call.m, depth, call.k, of_a);
      load_part<B>(call.b.data, call.b.column, call.b.row, column, call.n, depth, call.k, of_b);
      __syncthreads();
      const int steps = static_cast<int>(call.k - depth < kDepth ? call.k - depth : kDepth);
      for (int d = 0; d < steps; ++d) {
        R left[kEach], right[kEach];
#pragma unroll
        for (int n = 0; n < kEach; ++n) {
          left[n] = of_a[d][y + n * kSide];
          right[n] = of_b[d][x + n * kSide];
        }
#pragma unroll
        for (int i = 0; i < kEach; ++i)
#pragma unroll
          for (int j = 0; j < kEach; ++j) sums[i][j] = multiply_add(left[i], right[j], sums[i][j]);
      }
      if ((depth + kDepth) % kSumBlock == 0 || depth + kDepth >= call.k) {
#pragma unroll
        for (int i = 0; i < kEach; ++i)
#pragma unroll
          for (int j = 0; j < kEach; ++j) {
            total[i][j] += sums[i][j];
            sums[i][j] = 0;
          }
      }
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i)
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const std::int64_t r = row + y + i * kSide, c = column + x + j * kSide;
        if (r >= call.m || c >= call.n) continue;
        R made = total[i][j];
        if constexpr (std::is_same_v<B, std::int8_t>)
          made *= static_cast<R>(static_cast<const float*>(call.scales)[c * call.scales_stride]);
        if (p.bias) made += number(static_cast<const T*>(call.bias)[c * call.bias_stride]);
        T value = rounded<T>(made);
        if (p.activation) {
          const T* const gate = call.gate.data == nullptr
                                    ? nullptr
                                    : static_cast<const T*>(call.gate.data) + r * call.gate.row +
                                          c * call.gate.column;
          value = activated(p.kind, value, gate);
        }
        if (p.residual)
          value =
              sum(value, static_cast<const T*>(
                             call.residual.data)[r * call.residual.row + c * call.residual.column]);
        static_cast<T*>(call.c)[r * call.c_row + c * call.c_column] = value;
      }
  }
}

// a is ones, one row of them: c [1, n] is the sum of b's rows, in f64, block by block.
template <class T>
__device__ void sum_blocks(const PortableProduct& a) {
  const ProductCall& call = a.call;
  for (std::int64_t item = blockIdx.x; item < a.blocks * a.across; item += gridDim.x) {
    const std::int64_t block = item / a.across, begin = block * kSumBlock;
    const std::int64_t c = item % a.across * kSumThreads + threadIdx.x;
    if (c >= call.n) continue;
    const std::int64_t end = begin + kSumBlock < call.k ? begin + kSumBlock : call.k;
    double sum = 0;
    for (std::int64_t r = begin; r < end; ++r)
      sum += number(static_cast<const T*>(call.b.data)[r * call.b.row + c * call.b.column]);
    a.sums[block * call.n + c] = sum;
  }
}
template <class T>
__device__ void sum_totals(const PortableProduct& a) {
  const ProductCall& call = a.call;
  for (std::int64_t c = blockIdx.x * std::int64_t{kSumThreads} + threadIdx.x; c < call.n;
       c += gridDim.x * std::int64_t{kSumThreads}) {
    double total = 0;
    for (std::int64_t block = 0; block < a.blocks; ++block) total += a.sums[block * call.n + c];
    static_cast<T*>(call.c)[c * call.c_column] = rounded<T>(total);
  }
}

}  // namespace
}  // namespace attend::cuda

#define ATTEND_PRODUCT_KERNELS(name, T)                                                      \
  extern "C" __global__ void __launch_bounds__(256)                                          \
      attend_product_##name(const __grid_constant__ attend::cuda::PortableProduct a) {       \
    attend::cuda::product<T, T>(a);                                                          \
  }                                                                                          \
  extern "C" __global__ void __launch_bounds__(256)                                          \
      attend_product_bytes_##name(const __grid_constant__ attend::cuda::PortableProduct a) { \
    attend::cuda::product<T, std::int8_t>(a);                                                \
  }                                                                                          \
  extern "C" __global__ void __launch_bounds__(128)                                          \
      attend_sum_blocks_##name(const __grid_constant__ attend::cuda::PortableProduct a) {    \
    attend::cuda::sum_blocks<T>(a);                                                          \
  }                                                                                          \
  extern "C" __global__ void __launch_bounds__(128)                                          \
      attend_sum_totals_##name(const __grid_constant__ attend::cuda::PortableProduct a) {    \
    attend::cuda::sum_totals<T>(a);                                                          \
  }
ATTEND_EACH_TYPE(ATTEND_PRODUCT_KERNELS)
