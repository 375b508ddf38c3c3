// What prepares a call: lengths, offsets, starts of sequences and pages become copies that are in
// range (core/clamp.h).
#include "clamp.h"

#include "core/clamp.h"
#include "core/sequence.h"

namespace attend::cuda {
namespace {

constexpr int kThreads = 256;

__device__ std::int64_t number(const Strided& t, std::int64_t n) {
  return load_integer(t, t.offset(n, 0, 0));
}

template <class Int>
__device__ void clamp_starts(const Strided& from, Int* to, std::int64_t count, std::int64_t longest,
                             std::int64_t total) {
  __shared__ std::int64_t some[kThreads];
  std::int64_t last = 0;
  for (std::int64_t begin = 0; begin < count; begin += kThreads) {
    const std::int64_t n = begin + threadIdx.x;
    if (n < count) some[threadIdx.x] = number(from, n);
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int x = 0; x < kThreads && begin + x < count; ++x)
        some[x] = last = clamped_start(some[x], begin + x, last, longest, total);
    }
    __syncthreads();
    if (n < count) to[n] = static_cast<Int>(some[threadIdx.x]);
    __syncthreads();
  }
}

template <class Int>
__device__ void clamp(const ClampArguments& a) {
  const Problem& p = a.problem;
  const Call& call = a.call;
  auto* const q_starts = static_cast<Int*>(a.to.q_starts);
  auto* const k_starts = static_cast<Int*>(a.to.k_starts);
  if (q_starts != nullptr)
    clamp_starts(call.cu_seqlens_q, q_starts, p.batch + 1, p.q_length, call.packed_queries);
  if (k_starts != nullptr)
    clamp_starts(call.cu_seqlens_k, k_starts, p.batch + 1, p.k_length, call.packed_keys);
  __syncthreads();
  for (std::int64_t b = threadIdx.x; b < p.batch; b += kThreads) {
    if (a.to.key_lengths != nullptr) {
      const std::int64_t stored = k_starts != nullptr ? k_starts[b + 1] - k_starts[b] : 0;
      static_cast<Int*>(a.to.key_lengths)[b] =
          static_cast<Int>(clamped_length(p, number(call.key_lengths, b), stored));
    }
    if (a.to.query_offset != nullptr) {
      std::int64_t offset = clamped_offset(number(call.query_offset, b), kFarthestPosition - 1);
      if (sizeof(Int) == 4) offset -= call.key_offset;  // they count from the first key
      static_cast<Int*>(a.to.query_offset)[b] =
          static_cast<Int>(clamped_offset(offset, a.offset_limit));
    }
  }
}

template <class Int>
__device__ void clamp_table(const ClampArguments& a) {
  const Problem& p = a.problem;
  const Strided& from = a.call.block_table;
  const std::int64_t width = p.k_length / p.page_size;
  for (std::int64_t n = blockIdx.x * static_cast<std::int64_t>(kThreads) + threadIdx.x;
       n < p.batch * width; n += static_cast<std::int64_t>(gridDim.x) * kThreads)
    static_cast<Int*>(a.to.block_table)[n] = static_cast<Int>(
        between(0, load_integer(from, from.offset(n / width, 0, 0, n % width)), p.pages - 1));
}

template <class T>
__device__ void copy(const CopyArguments& a) {
  const std::int64_t count = a.batch * a.heads * a.length * a.d;
  for (std::int64_t n = blockIdx.x * std::int64_t{kThreads} + threadIdx.x; n < count;
       n += gridDim.x * std::int64_t{kThreads}) {
    const std::int64_t x = n % a.d, i = n / a.d % a.length, h = n / a.d / a.length % a.heads;
    const std::int64_t b = n / a.d / a.length / a.heads;
    reinterpret_cast<T*>(a.to.data)[a.to.offset(b, h, i, x)] =
        reinterpret_cast<const T*>(a.from.data)[a.from.offset(b, h, i, x)];
  }
}

}  // namespace
}  // namespace attend::cuda

using attend::cuda::ClampArguments;

extern "C" __global__ void __launch_bounds__(256)
    attend_clamp_i64(const __grid_constant__ ClampArguments a) {
  attend::cuda::clamp<std::int64_t>(a);
}
extern "C" __global__ void __launch_bounds__(256)
    attend_clamp_i32(const __grid_constant__ ClampArguments a) {
  attend::cuda::clamp<std::int32_t>(a);
}
extern "C" __global__ void __launch_bounds__(256)
    attend_clamp_table_i64(const __grid_constant__ ClampArguments a) {
  attend::cuda::clamp_table<std::int64_t>(a);
}
extern "C" __global__ void __launch_bounds__(256)
    attend_clamp_table_i32(const __grid_constant__ ClampArguments a) {
  attend::cuda::clamp_table<std::int32_t>(a);
}

extern "C" __global__ void __launch_bounds__(256)
    attend_put(const __grid_constant__ attend::cuda::PutArguments a) {
  for (int n = static_cast<int>(threadIdx.x); n < a.bytes; n += 256) a.to[n] = a.data[n];
}

extern "C" __global__ void __launch_bounds__(256)
    attend_copy_16(const __grid_constant__ attend::cuda::CopyArguments a) {
  attend::cuda::copy<std::uint16_t>(a);
}
extern "C" __global__ void __launch_bounds__(256)
    attend_copy_8(const __grid_constant__ attend::cuda::CopyArguments a) {
  attend::cuda::copy<std::uint8_t>(a);
}
