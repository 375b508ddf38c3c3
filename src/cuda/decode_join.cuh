// Joining partial results of one row in a fixed order: chunks of 256 keys into runs of 1024, these
// into sections of 4096, these into the row, each in ascending order. Which of them a block of
// threads has joined already, in registers, changes no bit.
#pragma once

#include "decode_sm90.h"
#include "softmax.cuh"

namespace attend::cuda {

// What two partial results are multiplied by: reference scores, as Softmax has them.
struct JoinFactors {
  float reference, mine, theirs;

  __device__ __forceinline__ JoinFactors(float before, float other, float scale_log2)
      : reference(fmaxf(before, other)),
        mine(before == reference ? 1 : exp2_fast((before - reference) * scale_log2)),
        theirs(other == reference ? 1 : exp2_fast((other - reference) * scale_log2)) {}
  // A part with nothing in it was not stored. Its sum is 0; that of a row of NaN is NaN.
  __device__ __forceinline__ float join(float x, float other, bool empty) const {
    return fmaf(x, mine, empty ? 0 : other * theirs);
  }
};

// The sums of some chunks of one row, every 32nd feature a lane.
template <int kD>
struct Joined {
  float reference = kMinusInfinity, sum = 0, o[kD / 32] = {};

  __device__ __forceinline__ void add(const Joined& other, float scale_log2) {
    const bool empty = other.sum == 0;
    const JoinFactors factors(reference, other.reference, scale_log2);
    reference = factors.reference;
    sum = factors.join(sum, other.sum, empty);
#pragma unroll
    for (int n = 0; n < kD / 32; ++n) o[n] = factors.join(o[n], other.o[n], empty);
  }
};

constexpr int kJoinWarps = 16;

// Partial results of one row.
template <int kD>
struct Parts {
  const float2* references;  // and sums
  const float* outs;
  int count;
  float scale_log2;

  __device__ __forceinline__ Joined<kD> load(int part) const {
    Joined<kD> x;
    const int at = min(part, count - 1);
    const float2 numbers = references[at];
    x.reference = part < count ? numbers.x : kMinusInfinity;
    x.sum = part < count ? numbers.y : 0;
#pragma unroll
    for (int n = 0; n < kD / 32; ++n)
      x.o[n] = outs[static_cast<long long>(at) * kD + n * 32 + threadIdx.x % 32];
    return x;
  }
  // Unrolled, so that all loads are on their way at once.
  template <int kInRun>
  __device__ __forceinline__ Joined<kD> section(int index) const {
    Joined<kD> section, runs[kDecodeRuns];
#pragma unroll
    for (int n = 0; n < kDecodeRuns * kInRun; ++n)
      runs[n / kInRun].add(load(index * kDecodeRuns * kInRun + n), scale_log2);
#pragma unroll
    for (const Joined<kD>& run : runs) section.add(run, scale_log2);
    return section;
  }
};

template <class T, int kD>
__device__ __forceinline__ void decode_join(const DecodeParameters& p) {
  __shared__ Joined<kD> sections[kJoinWarps][32];
  const long long row = blockIdx.x;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Parts<kD> parts{reinterpret_cast<const float2*>(p.partial) + row * p.parts,
                        p.partial_out + row * p.parts * kD, p.parts, p.scale * kLog2E};
  const int in_section = kDecodeRuns * kDecodeRun / p.chunks_each;
  const int count = (p.parts + in_section - 1) / in_section;
  asm volatile("griddepcontrol.wait;" ::: "memory");
  Joined<kD> joined;
  for (int first = 0; first < count; first += kJoinWarps) {
    if (first + warp < count)
      sections[warp][lane] = p.chunks_each == 1 ? parts.template section<kDecodeRun>(first + warp)
                                                : parts.template section<1>(first + warp);
    __syncthreads();
    if (warp == 0)
      for (int w = 0; w < min(kJoinWarps, count - first); ++w)
        joined.add(sections[w][lane], parts.scale_log2);
    __syncthreads();
  }
  if (warp != 0) return;
  const int i = static_cast<int>(row % p.q_length);
  const long long head = row / p.q_length % p.heads, batch = row / p.q_length / p.heads;
  T* out = static_cast<T*>(p.out.data) + batch * p.out.batch + head * p.out.head + i * p.out.row;
  const float factor = joined.sum == 0 ? 0 : 1 / joined.sum;
#pragma unroll
  for (int n = 0; n < kD / 32; ++n)
    if (n * 32 + lane < p.value_d) out[n * 32 + lane] = T(joined.o[n] * factor);
  if (lane == 0 && p.lse.data != nullptr)
    static_cast<float*>(p.lse.data)[batch * p.lse.batch + head * p.lse.head + i * p.lse.row] =
        joined.sum == 0 ? kMinusInfinity
                        : fmaf(joined.reference, p.scale, logf(joined.sum) - kLift<T> * kLn2);
}

}  // namespace attend::cuda
