// Products with values that are not finite. A hidden weight is 0, but 0 * NaN is NaN: where some
// rows see a value and others do not, what is not finite is added row by row to those that see it,
// and zeros take its place before the product. Kernels do so in a second pass, for results that are
// not finite, or in tiles that are rare: this is not fast.
#pragma once

#include "pipeline.cuh"
#include "softmax.cuh"

namespace attend::cuda {

template <class T>
__device__ __forceinline__ bool is_finite(T x) {
  return fabsf(static_cast<float>(x)) < -kMinusInfinity;
}

template <int kColumns>
__device__ __forceinline__ bool all_finite(const RegisterTile<kColumns>& tile) {
  float nothing = 0;
#pragma unroll
  for (int n = 0; n < tile.kCount; ++n) nothing = fmaf(tile.x[n], 0, nothing);
  return nothing == 0;
}

// The weight, and ds, of a score of -inf that no mask gave: the pair gives nothing, not even
// 0 * NaN. No other weight is -0.
inline constexpr float kNothing = -0.F;
__device__ __forceinline__ bool is_nothing(float x) { return __float_as_uint(x) == 0x80000000U; }

// The number in `column` of the thread's row kRow, as it is rounded. All threads of a warp ask for
// the same column.
template <int kRow, class T, int kColumns>
__device__ __forceinline__ float number_at(const Operand<T, kColumns>& a, int column) {
  std::uint32_t pair = 0;
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n)  // no register is found by a number that is not constant
    pair |= a.x[2 * n + kRow] & (n == column / 8 ? ~0U : 0U);
  pair = __shfl_sync(~0U, pair, column % 8 / 2, 4);
  const auto bits = static_cast<std::uint16_t>(column % 2 == 0 ? pair : pair >> 16);
  return static_cast<float>(*reinterpret_cast<const T*>(&bits));
}

// sums += a b for what is not finite in b, whose columns are those of the sums from kFirst on.
// sees(r, j): whether the thread's row r sees row j of b.
template <int kFirst = 0, class T, int kRowsB, int kColumns, int kD, class Sees>
__device__ __forceinline__ void add_not_finite(RegisterTile<kColumns>& sums,
                                               const Operand<T, kRowsB>& a,
                                               SharedTile<T, kRowsB, kD>& b, const Sees& sees) {
  for (int j = 0; j < kRowsB; ++j) {
    bool found = false;
    for (int column = threadIdx.x % 32; column < kD; column += 32)
      found = found || !is_finite(*b.at(j, column));
    if (!__any_sync(~0U, found)) continue;
    const float weight[2] = {number_at<0>(a, j), number_at<1>(a, j)};
    const bool seen[2] = {sees(0, j) && !is_nothing(weight[0]),
                          sees(1, j) && !is_nothing(weight[1])};
#pragma unroll
    for (int n = 0; n < kD / 2; ++n) {
      const T value = *b.at(j, sums.column(n) + own_column());
      float& sum = sums.x[kFirst / 2 + n];
      if (seen[sums.row(n)] && !is_finite(value))
        sum = fmaf(weight[sums.row(n)], static_cast<float>(value), sum);
    }
  }
}

// Then, when all warps have added theirs: by `threads` threads, of which this is number `thread`.
template <class T, int kRows, int kD>
__device__ __forceinline__ void clear_not_finite(SharedTile<T, kRows, kD>& b, int thread,
                                                 int threads) {
  for (int n = thread; n < kRows * kD; n += threads)
    if (T* at = b.at(n / kD, n % kD); !is_finite(*at)) *at = T(0.F);
  publish_shared();
}

// Whether computing warps and the copying thread do their work again: each warp says whether its
// results are finite, then all know.
struct Vote {
  Barrier over;
  int again;

  __device__ __forceinline__ void init(int warps) {
    over.init(warps * kArriving);
    again = 0;
  }
  __device__ __forceinline__ void say(bool finite) {
    const bool any = __any_sync(~0U, !finite);
    if (!arrives()) return;
    if (any) *static_cast<volatile int*>(&again) = 1;
    over.arrive();
  }
  __device__ __forceinline__ bool result() {
    over.wait(0);
    return *static_cast<volatile int*>(&again) != 0;
  }
};

}  // namespace attend::cuda
