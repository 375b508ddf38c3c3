// LayerNorm and RMSNorm on any NVIDIA GPU, by the reference's formulas (reference/norm.cpp):
// statistics and gradients in f64, the variance in two passes. A block of threads has a row. A sum
// over a row is one for each thread, these added in a tree: its order depends on dim alone.
#include "features.cuh"
#include "portable_features.h"

#include <limits>

namespace attend::cuda {
namespace {

constexpr int kWarp = 32, kWarps = kFeatureThreads / kWarp;

// The sum over the block's threads, to all of them.
__device__ double sum_of_threads(double x) {
  __shared__ double of_warp[kWarps];
  for (int apart = kWarp / 2; apart > 0; apart /= 2) x += __shfl_xor_sync(~0U, x, apart);
  __syncthreads();  // the last sum has been read
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = x;
  __syncthreads();
  double total = 0;
  for (const double part : of_warp) total += part;
  return total;
}

template <class Of>
__device__ double sum_over(std::int64_t dim, Of of) {
  double sum = 0;
  for (std::int64_t c = threadIdx.x; c < dim; c += kFeatureThreads) sum += of(c);
  return sum_of_threads(sum);
}

__device__ double normalised(const NormStatistics& s, double x) {
  return (x * s.unit - s.mean) * s.factor;
}

template <class T>
__device__ NormStatistics statistics(const T* x, NormKind kind, std::int64_t dim, double epsilon,
                                     double unit) {
  const auto count = static_cast<double>(dim);
  double mean = 0;
  if (kind == NormKind::layer_norm)
    mean = sum_over(dim, [&](std::int64_t c) { return number(x[c]) * unit; }) / count;
  const double squares = sum_over(dim, [&](std::int64_t c) {
    const double d = number(x[c]) * unit - mean;
    return d * d;
  });
  if (unit != 1) epsilon = std::numeric_limits<double>::min();
  return {unit, mean, isfinite(squares) ? 1 / sqrt(squares / count + epsilon) : squares};
}

// Numbers above 1e153 are taken in units of 2^600.
template <class T>
__device__ NormStatistics statistics(const T* x, NormKind kind, std::int64_t dim, double epsilon) {
  const NormStatistics first = statistics(x, kind, dim, epsilon, 1.0);
  if (isfinite(first.factor)) return first;
  NormStatistics s = statistics(x, kind, dim, epsilon, 0x1p-600);
  if (isinf(s.factor)) s.factor = 0;  // 1 / sqrt(infinity)
  return s;
}

template <class T>
__device__ void norm(const PortableNorm& a) {
  const NormCall& call = a.call;
  const T* const weight = static_cast<const T*>(call.weight);
  const T* const bias = static_cast<const T*>(call.bias);
  for (std::int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
    const T* const x = static_cast<const T*>(call.x.data) + r * call.x.row;
    T* const y = static_cast<T*>(call.y) + r * call.y_row;
    const NormStatistics s = statistics(x, a.problem.kind, call.dim, call.epsilon);
    for (std::int64_t c = threadIdx.x; c < call.dim; c += kFeatureThreads) {
      const double scaled = normalised(s, number(x[c])) * number(weight[c]);
      y[c] = rounded<T>(bias == nullptr ? scaled : scaled + number(bias[c]));
    }
  }
}

// With n = normalised(x) and g = dy * weight:
//   dx = unit * factor * (g - mean(g) - n * mean(g * n))        mean(g) for LayerNorm only
template <class T>
__device__ void norm_backward(const PortableNormBackward& a) {
  const NormBackwardCall& call = a.call;
  const T* const weight = static_cast<const T*>(call.weight);
  const auto dim = static_cast<double>(call.dim);
  for (std::int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
    const T* const x = static_cast<const T*>(call.x.data) + r * call.x.row;
    const T* const dy = static_cast<const T*>(call.dy.data) + r * call.dy.row;
    T* const dx = static_cast<T*>(call.dx) + r * call.dim;
    const NormStatistics s = statistics(x, a.problem.kind, call.dim, call.epsilon);
    const auto g = [&](std::int64_t c) {
      return static_cast<double>(number(dy[c])) * number(weight[c]);
    };
    const auto n = [&](std::int64_t c) { return normalised(s, number(x[c])); };
    double mean_g = 0;
    if (a.problem.kind == NormKind::layer_norm) mean_g = sum_over(call.dim, g) / dim;
    const double mean_gn = sum_over(call.dim, [&](std::int64_t c) { return g(c) * n(c); }) / dim;
    for (std::int64_t c = threadIdx.x; c < call.dim; c += kFeatureThreads)
      dx[c] = rounded<T>(s.factor * (g(c) - mean_g - n(c) * mean_gn) * s.unit);
    if (threadIdx.x == 0) a.statistics[r] = s;
  }
}

// Of a block of rows: dweight = the sum of dy * n, dbias that of dy, row by row.
template <class T>
__device__ void norm_columns(const PortableNormBackward& a) {
  const NormBackwardCall& call = a.call;
  for (std::int64_t item = blockIdx.x; item < a.blocks * a.columns; item += gridDim.x) {
    const std::int64_t block = item / a.columns;
    const std::int64_t c = item % a.columns * kFeatureThreads + threadIdx.x;
    if (c >= call.dim) continue;
    const std::int64_t begin = block * kBlockRows;
    const std::int64_t end = begin + kBlockRows < a.rows ? begin + kBlockRows : a.rows;
    double dweight = 0, dbias = 0;
    for (std::int64_t r = begin; r < end; ++r) {
      const double x = number((static_cast<const T*>(call.x.data) + r * call.x.row)[c]);
      const double dy = number((static_cast<const T*>(call.dy.data) + r * call.dy.row)[c]);
      dweight += dy * normalised(a.statistics[r], x);
      dbias += dy;
    }
    double* const to = a.sums + block * 2 * call.dim + c;
    to[0] = dweight;
    to[call.dim] = dbias;
  }
}

template <class T>
__device__ void norm_totals(const PortableNormBackward& a) {
  const std::int64_t dim = a.call.dim;
  for (std::int64_t c = blockIdx.x * std::int64_t{kFeatureThreads} + threadIdx.x; c < dim;
       c += gridDim.x * std::int64_t{kFeatureThreads}) {
    double dweight = 0, dbias = 0;
    for (std::int64_t block = 0; block < a.blocks; ++block) {
      dweight += a.sums[block * 2 * dim + c];
      dbias += a.sums[block * 2 * dim + dim + c];
    }
    static_cast<T*>(a.call.dweight)[c] = rounded<T>(dweight);
    if (a.call.dbias != nullptr) static_cast<T*>(a.call.dbias)[c] = rounded<T>(dbias);
  }
}

}  // namespace
}  // namespace attend::cuda

#define ATTEND_NORM_KERNELS(name, T)                                                              \
  extern "C" __global__ void __launch_bounds__(128)                                               \
      attend_norm_##name(const __grid_constant__ attend::cuda::PortableNorm a) {                  \
    attend::cuda::norm<T>(a);                                                                     \
  }                                                                                               \
  extern "C" __global__ void __launch_bounds__(128)                                               \
      attend_norm_backward_##name(const __grid_constant__ attend::cuda::PortableNormBackward a) { \
    attend::cuda::norm_backward<T>(a);                                                            \
  }                                                                                               \
  extern "C" __global__ void __launch_bounds__(128)                                               \
      attend_norm_columns_##name(const __grid_constant__ attend::cuda::PortableNormBackward a) {  \
    attend::cuda::norm_columns<T>(a);                                                             \
  }                                                                                               \
  extern "C" __global__ void __launch_bounds__(128)                                               \
      attend_norm_totals_##name(const __grid_constant__ attend::cuda::PortableNormBackward a) {   \
    attend::cuda::norm_totals<T>(a);                                                              \
  }
ATTEND_EACH_TYPE(ATTEND_NORM_KERNELS)
