// What prepares a call. Lengths, offsets, starts of sequences and pages that lie in memory of the
// device were not checked by the host: numbers out of range are brought into it, so that no kernel
// reads or writes outside of the tensors, whatever they say.
#include "clamp.h"

#include "core/sequence.h"

namespace attend::cuda {
namespace {

constexpr int kThreads = 256;

__device__ std::int64_t between(std::int64_t low, std::int64_t x, std::int64_t high) {
  return x < low ? low : x > high ? high : x;
}
__device__ std::int64_t number(const Strided& t, std::int64_t n) {
  return load_integer(t, t.offset(n, 0, 0));
}

// Ascending, none longer than `longest`, all within `total`.
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
      for (int x = 0; x < kThreads && begin + x < count; ++x) {
        const bool first = begin + x == 0;
        const std::int64_t most = first ? total : last + longest < total ? last + longest : total;
        some[x] = last = between(last, some[x], most);
      }
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
      const bool no_pages = p.keys == KeyAddressing::paged && p.pages == 0;
      const std::int64_t most = k_starts != nullptr ? k_starts[b + 1] - k_starts[b]
                                : no_pages          ? 0
                                                    : p.k_length;
      static_cast<Int*>(a.to.key_lengths)[b] =
          static_cast<Int>(between(0, number(call.key_lengths, b), most));
    }
    if (a.to.query_offset != nullptr) {
      constexpr std::int64_t kFarthest = std::int64_t{1} << 62;
      const std::int64_t given = between(-kFarthest, number(call.query_offset, b), kFarthest);
      static_cast<Int*>(a.to.query_offset)[b] =
          static_cast<Int>(between(-a.offset_limit, given, a.offset_limit));
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
    attend_put(const __grid_constant__ attend::cuda::PutArguments a) {
  for (int n = static_cast<int>(threadIdx.x); n < a.bytes; n += 256) a.to[n] = a.data[n];
}

extern "C" __global__ void __launch_bounds__(256)
    attend_copy_16(const __grid_constant__ attend::cuda::CopyArguments a) {
  const std::int64_t count = a.batch * a.heads * a.length * a.d;
  for (std::int64_t n = blockIdx.x * std::int64_t{256} + threadIdx.x; n < count;
       n += gridDim.x * std::int64_t{256}) {
    const std::int64_t x = n % a.d, i = n / a.d % a.length, h = n / a.d / a.length % a.heads;
    const std::int64_t b = n / a.d / a.length / a.heads;
    reinterpret_cast<std::uint16_t*>(a.to.data)[a.to.offset(b, h, i, x)] =
        reinterpret_cast<const std::uint16_t*>(a.from.data)[a.from.offset(b, h, i, x)];
  }
}
