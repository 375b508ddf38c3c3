// Step 3 of a tile of scores in registers: weights relative to a reference score of each row, and
// their sum. The reference is the largest score so far or up to 8 octaves below it, so that sums
// are rarely rescaled: a row decides that by its own scores alone, and a rescale by 1 is left out.
// The largest score of the first keys is the first reference: a key seen alone weighs exactly 1.
//
// Far from 0, from 2^20 octaves on, a fused multiply-add of scale and score no longer tells scores
// apart: there scores are subtracted from the reference before they are scaled (rows_far_from_0).
#pragma once

#include "tile.cuh"

namespace attend::cuda {

inline constexpr float kMinusInfinity = -__builtin_huge_valf();
inline constexpr float kFar = 0x1p20F;  // octaves
inline constexpr float kSlack = 8;      // octaves that a score may be above the reference
inline constexpr float kLn2 = 0.69314718F, kLog2E = 1.44269504F;

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Weights of f16 are moved up by so many octaves, into the middle of the type's range: what is
// below 2^-14 has fewer digits. 2^(8 + 6) is far from the largest f16.
template <class T>
inline constexpr float kLift = sizeof(T) == 2 && __is_same(T, f16) ? 6 : 0;

template <class T>
struct Softmax {
  float scale_log2;                                       // scale * log2(e), above 0
  float reference[2] = {kMinusInfinity, kMinusInfinity};  // raw scores
  float sum[2] = {0, 0};                                  // of this thread's columns

  __device__ __forceinline__ bool far(float score) const {
    return score > kMinusInfinity && fabsf(score * scale_log2) >= kFar;
  }
  // What the weights of a row are relative to, in octaves.
  __device__ __forceinline__ float unit(float score) const {
    return score == kMinusInfinity ? 0 : fmaf(score, scale_log2, -kLift<T>);
  }

  // Whether a score is so far above the reference that it becomes the next one.
  __device__ __forceinline__ bool rises_to(float most, float before) const {
    return most * scale_log2 > fmaf(before, scale_log2, kSlack);
  }

  // For kernels that have scores elsewhere than in a tile: the reference of row r after a tile
  // whose largest score is `most`, as step() moves it.
  __device__ __forceinline__ float next_reference(int r, float most) const {
    if (far(most) || far(reference[r])) return fmaxf(reference[r], most);
    return rises_to(most, reference[r]) ? most : reference[r];
  }
  // Moves it. A weight is then 2^((score - shift) * scale_log2 - below).
  __device__ __forceinline__ void move_reference(int r, float most, float& below, float& rescale,
                                                 float& shift) {
    const float before = reference[r];
    const bool is_far = far(most) || far(before);
    shift = 0;
    if (!is_far) return near_0(r, most, below, rescale);
    reference[r] = shift = fmaxf(before, most);
    rescale =
        before == shift || before == kMinusInfinity ? 1 : exp2_fast((before - shift) * scale_log2);
    below = -kLift<T>;
  }

  // Scores become weights. What was summed so far is to be multiplied by `rescale`.
  template <int kColumns>
  __device__ __forceinline__ void step(RegisterTile<kColumns>& s, float (&rescale)[2]) {
    using Tile = RegisterTile<kColumns>;
    float most[2] = {s.x[0], s.x[2]}, below[2];
#pragma unroll
    for (int n = 1; n < Tile::kCount; ++n) most[Tile::row(n)] = fmaxf(most[Tile::row(n)], s.x[n]);
    bool any_far = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      most[r] = row_maximum(most[r]);
      any_far = any_far || far(most[r]) || far(reference[r]);
    }
    if (__any_sync(~0U, any_far)) {
      rows_far_from_0(s, most, below, rescale);
    } else {
#pragma unroll
      for (int r = 0; r < 2; ++r) near_0(r, most[r], below[r], rescale[r]);
    }
    float part[4] = {0, 0, 0, 0};
#pragma unroll
    for (int n = 0; n < Tile::kCount; ++n) {
      s.x[n] = exp2_fast(fmaf(s.x[n], scale_log2, -below[Tile::row(n)]));
      part[n % 4] += s.x[n];
    }
    sum[0] = fmaf(sum[0], rescale[0], part[0] + part[1]);
    sum[1] = fmaf(sum[1], rescale[1], part[2] + part[3]);
  }

  // log(sum of exp(score)) of row r, whose whole sum is `all`.
  __device__ __forceinline__ float lse(int r, float all, float scale) const {
    if (all == 0) return kMinusInfinity;
    return fmaf(reference[r], scale, logf(all) - kLift<T> * kLn2);
  }

 private:
  __device__ __forceinline__ void near_0(int r, float most, float& below, float& rescale) {
    const float before = reference[r];
    if (rises_to(most, before)) reference[r] = most;
    below = unit(reference[r]);
    rescale = before == reference[r] || before == kMinusInfinity  // nothing was summed
                  ? 1
                  : exp2_fast(unit(before) - below);
  }

  template <int kColumns>
  __device__ __forceinline__ void rows_far_from_0(RegisterTile<kColumns>& s, const float (&most)[2],
                                                  float (&below)[2], float (&rescale)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float before = reference[r], now = fmaxf(before, most[r]);
      if (!far(most[r]) && !far(before)) {
        near_0(r, most[r], below[r], rescale[r]);
        continue;
      }
      reference[r] = now;
      rescale[r] =
          before == now || before == kMinusInfinity ? 1 : exp2_fast((before - now) * scale_log2);
      below[r] = -kLift<T>;
#pragma unroll
      for (int n = 0; n < s.kCount; ++n)
        if (s.row(n) == r) s.x[n] -= now;
    }
  }
};

}  // namespace attend::cuda
