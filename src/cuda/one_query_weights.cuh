// One query a head: from scores to weights. The reference score of a tile follows from the largest
// scores of the tiles before it.
#pragma once

#include "bytes.cuh"
#include "one_query_scores.cuh"

namespace attend::cuda {

// By a warp: the reference score of a row before tile `end`, from `begin` on.
template <class T>
__device__ __forceinline__ float reference_before(const Softmax<T>& softmax, const float* largest,
                                                  int begin, int end) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  Softmax<T> now = softmax;
  for (int base = begin; base < end; base += 32) {
    const float mine = base + lane < end ? largest[base + lane] : kMinusInfinity;
    for (int from = 0; from < 32;) {  // to the next tile that changes it
      const unsigned changed =
          __ballot_sync(~0U, lane >= from && now.next_reference(0, mine) != now.reference[0]);
      if (changed == 0) break;
      from = __ffs(static_cast<int>(changed));
      now.reference[0] = __shfl_sync(~0U, mine, from - 1);
    }
  }
  return now.reference[0];
}

// Where the weights of a row and a tile are.
template <int kKeys>
__device__ __forceinline__ long long weights_at(const OneQueryParameters& p, long long row,
                                                int tile) {
  constexpr int kWords = kKeys / 2 + 8;
  return ((row / p.group * p.tiles + tile) * p.group + row % p.group) * kWords;
}

// A warp makes the weights of some tiles of a row, four threads each: pairs of keys of every eight.
template <class T, int kD, bool kBytes>
__device__ __forceinline__ void weights(const OneQueryParameters& p) {
  constexpr int kKeys = ScoreShared<T, kD>::kKeys, kPairs = kKeys / 8;
  const int lane = static_cast<int>(threadIdx.x % 32), t = lane % 4;
  const int groups = (p.tiles + kOneQueryTiles - 1) / kOneQueryTiles;
  const long long index = static_cast<long long>(blockIdx.x) * kOneQueryWarps + threadIdx.x / 32;
  const long long row = index / groups;
  if (row >= static_cast<long long>(p.batch) * p.heads) return;
  const Seen<kKeys> seen(p, static_cast<int>(row / p.heads));
  const int first = static_cast<int>(index % groups) * kOneQueryTiles, tile = first + lane / 4;
  if (first + kOneQueryTiles <= seen.tiles.begin || first >= seen.tiles.end) return;
  float2 s[kPairs];  // all on their way at once
  const float* const from = p.scores + (row * p.tiles + min(tile, p.tiles - 1)) * kKeys + 2 * t;
#pragma unroll
  for (int n = 0; n < kPairs; ++n) s[n] = *reinterpret_cast<const float2*>(from + 8 * n);

  float2 v[kBytes ? kPairs : 1];
  if constexpr (kBytes) {
    const long long head = row / p.group, at = min(max(tile, seen.tiles.begin), seen.tiles.end - 1);
    const float* const scales = p.value_scales + (head * p.tiles + at) * kKeys + 2 * t;
#pragma unroll
    for (int n = 0; n < kPairs; ++n) v[n] = *reinterpret_cast<const float2*>(scales + 8 * n);
  }
  const float* const largest = p.largest + row * p.tiles;
  const float mine =
      lane < kOneQueryTiles && seen.has(first + lane) ? largest[first + lane] : kMinusInfinity;
  Softmax<T> softmax{p.scale * kLog2E};
  softmax.reference[0] = reference_before(softmax, largest, seen.tiles.begin, first);
  float rescale = 1, below = 0, shift = 0;
  for (int n = 0; n < kOneQueryTiles; ++n) {
    const float most = __shfl_sync(~0U, mine, n);
    if (first + n <= tile && seen.has(first + n))
      softmax.move_reference(0, most, below, rescale, shift);
  }
  if (!seen.has(tile)) return;

  unsigned* const to = p.weights + weights_at<kKeys>(p, row, tile);
  float part[2] = {0, 0};
#pragma unroll
  for (int n = 0; n < kPairs; n += 2) {
    unsigned both[2];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const float low = exp2_fast(fmaf(s[n + m].x - shift, softmax.scale_log2, -below));
      const float high = exp2_fast(fmaf(s[n + m].y - shift, softmax.scale_log2, -below));
      part[0] += low;
      part[1] += high;
      if constexpr (kBytes)
        both[m] = pack(T{}, __fmul_rn(low, others_scale(v[n + m].x, true)),
                       __fmul_rn(high, others_scale(v[n + m].y, true)));
      else both[m] = pack(T{}, low, high);
    }
    *reinterpret_cast<uint2*>(to + t * kPairs + n) = uint2{both[0], both[1]};
  }
  to[4 * kPairs + t] = __float_as_uint(part[0] + part[1]);
  if (t != 0) return;
  to[4 * kPairs + 4] = __float_as_uint(rescale);
  if (tile + 1 == seen.tiles.end) p.references[row] = softmax.reference[0];
}

}  // namespace attend::cuda
