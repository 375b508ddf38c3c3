// What the portable kernels share: products of 16 rows with 32, and steps 1 and 2 of a pair.
//
//   a block of threads    16 rows: queries, or in the keys' half of backward keys
//   a warp                4 of them
//   a lane                one of the 32 rows that they meet: keys, or queries
//   a thread              afterwards one column of the result, 16 rows of it
//
// Everything but the products and the sums of values is f64, as in the reference, and what a key
// is, where it lies and what hides it is asked of src/core: any type, any strides, every option.
// Real is f32, for f64 tensors f64.
#pragma once

#include "core/philox.h"
#include "core/softmax_state.h"

#include <cuda_fp16.h>

#include <bit>
#include <type_traits>

namespace attend::cuda {

inline constexpr int kRows = 16, kLanes = 32, kPortableThreads = 128, kColumns = kPortableThreads;
inline constexpr int kWarpRows = kRows / (kPortableThreads / kLanes);
inline constexpr int kBlock = 32;   // features that are multiplied at a time
inline constexpr int kChain = 256;  // and summed in one chain
inline constexpr unsigned kAll = ~0U;

__device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % kLanes; }
__device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x) / kLanes; }

// An element as it lies, and what it means: apart, so that many can be on their way at once. All
// zeros mean 0 in every type.
template <class Real>
using Raw = std::conditional_t<sizeof(Real) == 8, std::uint64_t, std::uint32_t>;

template <class Real>
__device__ __forceinline__ Raw<Real> load_raw(const Strided& t, std::int64_t at) {
  switch (t.type) {
    case DType::f64: {
      const double x = reinterpret_cast<const double*>(t.data)[at];
      return std::bit_cast<Raw<Real>>(static_cast<Real>(x));
    }
    case DType::f32: return reinterpret_cast<const std::uint32_t*>(t.data)[at];
    case DType::bf16:
    case DType::f16: return reinterpret_cast<const std::uint16_t*>(t.data)[at];
    default: return reinterpret_cast<const std::uint8_t*>(t.data)[at];
  }
}
template <class Real>
__device__ __forceinline__ Real meaning(DType type, Raw<Real> raw) {
  const auto low = static_cast<std::uint32_t>(raw);
  switch (type) {
    case DType::f64: return std::bit_cast<Real>(raw);
    case DType::f32: return static_cast<Real>(__uint_as_float(low));
    case DType::bf16: return static_cast<Real>(__uint_as_float(low << 16));
    case DType::f16:
      return static_cast<Real>(__half2float(__ushort_as_half(static_cast<unsigned short>(low))));
    default: return static_cast<Real>(static_cast<std::int8_t>(low));
  }
}
template <class Real>
__device__ __forceinline__ Real element(const Strided& t, std::int64_t at) {
  return meaning<Real>(t.type, load_raw<Real>(t, at));
}

__device__ __forceinline__ float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
__device__ __forceinline__ double multiply_add(double a, double b, double c) {
  return fma(a, b, c);
}

template <class Real>
struct ProductTiles {
  Real rows[kBlock][kRows], lanes[kLanes][kBlock + 1];
};

// Where a row begins in its tensor, if there is none: zeros stand for it.
inline constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::min();

// A thread's share of 32 features of so many rows, on their way to a tile.
template <class Real, int kCount>
struct OwnRows {
  static constexpr int kWarps = kPortableThreads / kLanes;
  Raw<Real> own[kCount / kWarps];

  __device__ __forceinline__ void load(const Strided& t, const std::int64_t* rows, std::int64_t x,
                                       std::int64_t features) {
#pragma unroll
    for (int n = 0; n < kCount / kWarps; ++n) {
      const std::int64_t at = rows[warp() + n * kWarps];
      own[n] = x < features && at != kNone ? load_raw<Real>(t, at + x * t.stride[3]) : 0;
    }
  }
};

// sum[n] = a[row] . b[lane], for this thread's rows and lane: ascending chains of 256, added. All
// threads call it; what it reads of shared memory was written before a __syncthreads(). The next
// features are on their way while these are multiplied.
template <class Real>
__device__ __forceinline__ void multiply(ProductTiles<Real>& tiles, std::int64_t features,
                                         const Strided& a, const std::int64_t* a_rows,
                                         const Strided& b, const std::int64_t* b_rows,
                                         Real (&sum)[kWarpRows]) {
  constexpr int kWarps = kPortableThreads / kLanes;
  Real chain[kWarpRows] = {};
  OwnRows<Real, kRows> next_a;
  OwnRows<Real, kLanes> next_b;
  next_a.load(a, a_rows, lane(), features);
  next_b.load(b, b_rows, lane(), features);
#pragma unroll
  for (int n = 0; n < kWarpRows; ++n) sum[n] = 0;
  for (std::int64_t begin = 0; begin < features; begin += kBlock) {
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kRows / kWarps; ++n)
      tiles.rows[lane()][warp() + n * kWarps] = meaning<Real>(a.type, next_a.own[n]);
#pragma unroll
    for (int n = 0; n < kLanes / kWarps; ++n)
      tiles.lanes[warp() + n * kWarps][lane()] = meaning<Real>(b.type, next_b.own[n]);
    __syncthreads();
    next_a.load(a, a_rows, begin + kBlock + lane(), features);
    next_b.load(b, b_rows, begin + kBlock + lane(), features);
    if (begin % kChain == 0) {
#pragma unroll
      for (int n = 0; n < kWarpRows; ++n) sum[n] += chain[n], chain[n] = 0;
    }
#pragma unroll 8
    for (int y = 0; y < kBlock; ++y) {
      const Real other = tiles.lanes[lane()][y];
#pragma unroll
      for (int n = 0; n < kWarpRows; ++n)
        chain[n] = multiply_add(tiles.rows[y][warp() * kWarpRows + n], other, chain[n]);
    }
  }
#pragma unroll
  for (int n = 0; n < kWarpRows; ++n) sum[n] += chain[n];
}

// Steps 1 and 2 of the pair (i, j), which is visible: its score after each stage. (Not inlined,
// like others below: a kernel would hold it four times, and take four times as long to compile.)
struct Score {
  double raw, capped, masked, added;
};
__device__ __noinline__ Score score_of(const Problem& p, const Call& call, const Sequence& s,
                                       std::int64_t h, std::int64_t i, std::int64_t j,
                                       double product) {
  Score score;
  score.added = added(p, call, s, h, i, j);
  score.raw = p.scale * product;                                               // 1 scores
  score.capped = p.bias_before_softcap ? score.raw + score.added : score.raw;  // 2 mask
  if (p.softcap != 0) score.capped = p.softcap * tanh(score.capped / p.softcap);
  score.masked = p.bias_before_softcap ? score.capped : score.capped + score.added;
  return score;
}

__device__ __noinline__ bool is_visible(const Problem& p, const Call& call, const Sequence& s,
                                        const KeyRange& keys, std::int64_t h, std::int64_t i,
                                        std::int64_t j) {
  return j >= keys.begin && j < keys.end && block_visible(p, call, s.b, h, i, j) &&
         !masked_out(p, call, s.b, h, i, j);
}

__device__ __forceinline__ double scale_of(const Strided& scales, std::int64_t at) {
  return scales.given && at != kNone ? static_cast<double>(element<float>(scales, at)) : 1.0;
}

// weight() of core/softmax_state.h, with 2^fraction in f32 where the sums are.
template <class Real>
__device__ __noinline__ double weight_of(double score, double top) {
  if (is_far(top)) return exp(score - top);
  if (score < -0x1p30) return 0;
  const double whole = floor(score * std::numbers::log2e), fraction = above(score, whole);
  const double power = sizeof(Real) == sizeof(float)
                           ? static_cast<double>(exp2f(static_cast<float>(fraction)))
                           : exp2(fraction);
  return power * power_of_two(whole - ceil(log2_units(top)));
}
__device__ __noinline__ double rescale_of(double from, double to) {
  return rescale_factor(from, to);
}
// By numbers: what a reference is made of is not kept in registers.
struct Joined {
  double top, l, mine, other;
};
__device__ __noinline__ Joined join(double top, double l, double part_top, double part_l) {
  SoftmaxState total{top, l};
  const SoftmaxState::Join weights = total.join({part_top, part_l});
  return {total.top, total.l, weights.mine, weights.other};
}
__device__ __forceinline__ Joined join(SoftmaxState& total, double part_top, double part_l) {
  const Joined joined = join(total.top, total.l, part_top, part_l);
  total = {joined.top, joined.l};
  return joined;
}
__device__ __noinline__ double drop(const Problem& p, const Call& call, std::int64_t b,
                                    std::int64_t h, std::int64_t i, std::int64_t j) {
  return dropout_factor(p, call, b, h, i, j);
}

// The largest and the sum over a warp, the same in every lane, NaN counts in the sum alone.
__device__ __forceinline__ double warp_maximum(double x) {
  for (int other = kLanes / 2; other > 0; other /= 2) x = fmax(x, __shfl_xor_sync(kAll, x, other));
  return x;
}
__device__ __forceinline__ double warp_sum(double x) {
  for (int other = kLanes / 2; other > 0; other /= 2) x += __shfl_xor_sync(kAll, x, other);
  return x;
}

// The keys that some of up to 16 queries see by position: all threads get it, and each row's own.
struct KeyRanges {
  std::int64_t begin[kRows + 1], end[kRows + 1];
  __device__ __forceinline__ KeyRange of(int row) const { return {begin[row], end[row]}; }
  __device__ __forceinline__ KeyRange all() const { return of(kRows); }
};
__device__ __forceinline__ void find_ranges(KeyRanges& ranges, const Problem& p, const Sequence& s,
                                            std::int64_t first) {
  const int r = static_cast<int>(threadIdx.x);
  if (r < kRows) {
    const std::int64_t i = first + r;
    const KeyRange keys = i < s.q_length ? positions(p, s, i) : KeyRange{};
    ranges.begin[r] = keys.begin;
    ranges.end[r] = keys.end;
  }
  __syncthreads();
  if (r == 0) {
    KeyRange all{s.k_length, 0};
    for (int n = 0; n < kRows; ++n) {
      const KeyRange keys = ranges.of(n);
      if (keys.begin >= keys.end) continue;
      all.begin = keys.begin < all.begin ? keys.begin : all.begin;
      all.end = keys.end > all.end ? keys.end : all.end;
    }
    ranges.begin[kRows] = all.begin;
    ranges.end[kRows] = all.end;
  }
  __syncthreads();
}

// The addresses of 32 keys from j0 on, and of their values where there are any. All threads call
// it.
template <class Shared>
__device__ __forceinline__ void find_keys(Shared& shared, const Problem& p, const Call& call,
                                          const Sequence& s, std::int64_t kv_head,
                                          std::int64_t j0) {
  __syncthreads();
  const std::int64_t j = j0 + lane();
  const bool there = j < s.k_stored;
  if (warp() == 0) shared.k_at[lane()] = there ? key_row(p, call, call.k, s, kv_head, j) : kNone;
  if constexpr (requires { shared.v_at; })
    if (warp() == 1) shared.v_at[lane()] = there ? key_row(p, call, call.v, s, kv_head, j) : kNone;
  __syncthreads();
}

__device__ __forceinline__ double key_scale(const Problem& p, const Call& call,
                                            const Strided& scales, const Sequence& s,
                                            std::int64_t kv_head, std::int64_t j) {
  return scales.given && j < s.k_stored ? scale_of(scales, key_row(p, call, scales, s, kv_head, j))
                                        : 1.0;
}

// Adds factor[lane][row] * other[lane][column] to a thread's column of 16 rows. Rows to which a
// lane is hidden take nothing from it: 0 * NaN is NaN.
template <class Real>
struct Factors {
  Real of[kLanes][kRows];
  unsigned seen[kRows];  // a bit for each lane
};
template <class Real>
__device__ __forceinline__ void add_columns(Real (&sum)[kRows], const Factors<Real>& factors,
                                            const Strided& t, const std::int64_t* at,
                                            std::int64_t column, bool inside) {
  unsigned any = 0, all = kAll;
  for (const unsigned seen : factors.seen) any |= seen, all &= seen;
  constexpr int kAhead = 8;  // on their way at once
#pragma unroll 1
  for (int begin = 0; begin < kLanes; begin += kAhead) {
    Raw<Real> raw[kAhead];
#pragma unroll
    for (int n = 0; n < kAhead; ++n)
      raw[n] = inside && (any >> (begin + n) & 1) != 0
                   ? load_raw<Real>(t, at[begin + n] + column * t.stride[3])
                   : 0;
#pragma unroll
    for (int n = 0; n < kAhead; ++n) {
      const Real x = meaning<Real>(t.type, raw[n]);
      const Real* const factor = factors.of[begin + n];
      if ((all >> (begin + n) & 1) != 0) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) sum[r] = multiply_add(factor[r], x, sum[r]);
      } else if ((any >> (begin + n) & 1) != 0) {
#pragma unroll
        for (int r = 0; r < kRows; ++r)
          if ((factors.seen[r] >> (begin + n) & 1) != 0)
            sum[r] = multiply_add(factor[r], x, sum[r]);
      }
    }
  }
}

}  // namespace attend::cuda
