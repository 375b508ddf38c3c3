// One query a head: from scores to weights, 3 softmax, tile by tile in four warps.
#pragma once

#include "one_query_bytes.cuh"

namespace attend::cuda {

// Weights of eight heads as the second factor of V^T P^T: of each eight keys, 16 bytes a head.
template <class T, int kKeys>
struct alignas(128) WeightTile {
  static constexpr int kPairs = kKeys / 8;
  std::uint32_t pairs[kPairs][kHeadsAtOnce * 4];

  __device__ __forceinline__ std::uint64_t rows_from(int key) const {
    constexpr std::uint32_t kEightKeys = sizeof(pairs[0]) / 16;
    return std::uint64_t{kEightKeys} << 32 |
           (shared_address(this) / 16 + (kEightKeys << 16) + key / 8 * kEightKeys);
  }
};

// What comes with it. Lane n has the head n / 4, and of each eight keys the pair n % 4.
struct WeightNote {
  float sum[32];                  // of each lane's weights
  float rescale[kHeadsAtOnce];    // what was summed before is to be multiplied by it
  float reference[kHeadsAtOnce];  // score of the tile
  int rescales, takes;            // whether any is not 1; whether a value takes its scale itself
};

template <class T, int kD>
using WeightRing = Ring<WeightTile<T, forward_tiles(kD).keys>, kWeightStages, WeightNote>;

// Scores of eight heads.
template <int kD>
struct alignas(128) ScoreTile {
  float of[kHeadsAtOnce][score_row(kD)];
};
template <int kD>
using ScoreRing = Ring<ScoreTile<kD>, kScoreTiles>;

// The reference score at a tile follows from the largest scores of those before it, so each warp
// goes through all tiles, and makes the weights of every fourth one.
template <class T, int kD, bool kBytes>
struct WeightMaker {
  static constexpr int kKeys = forward_tiles(kD).keys, kPairs = kKeys / 8;
  ScoreRing<kD>& scores;
  WeightRing<T, kD>& weights;
  const KeyRange tiles;
  const int heads;  // at most eight
  Softmax<T> softmax;
  Place<kScoreTiles> place{}, done{};

  // next_scales(): of 8 bits, the scales of the values of this warp's next tile.
  template <class NextScales>
  __device__ __forceinline__ void run(int warp, const NextScales& next_scales) {
    const int lane = static_cast<int>(threadIdx.x % 32), own = lane / 4;
    std::uint32_t parity = 0;
    for (int first = tiles.begin; first < tiles.end; first += kWeightStages) {
      float most[kWeightStages], below = 0, rescale = 1, shift = 0, reference = 0;
      const auto& mine = scores.tiles[place.stage + warp];
#pragma unroll
      for (int n = 0; n < kWeightStages; ++n) {
        const bool given = first + n < tiles.end;
        if (given) scores.wait(place);
        most[n] = given && own < heads ? scores.tiles[place.stage].of[own][kKeys] : kMinusInfinity;
        place.advance();
      }
      float2 s[kPairs];
#pragma unroll
      for (int n = 0; n < kPairs; ++n) {
        s[n] = *reinterpret_cast<const float2*>(mine.of[own] + 8 * n + 2 * (lane % 4));
        if (own >= heads) s[n] = float2{kMinusInfinity, kMinusInfinity};
      }
      __syncwarp();
      for (int n = 0; n < kWeightStages && first + n < tiles.end; ++n) scores.release(done);
#pragma unroll
      for (int n = 0; n < kWeightStages; ++n) {
        if (n != warp) {
          softmax.reference[0] = softmax.next_reference(0, most[n]);
        } else {
          softmax.move_reference(0, most[n], below, rescale, shift);
          reference = softmax.reference[0];
        }
      }
      if (first + warp >= tiles.end) return;
      const Made made = make(s, below, shift, next_scales());
      weights.wait_until_empty({warp, parity});
      write(made, weights.tiles[warp], weights.notes[warp], rescale, reference);
      rows_are_there(weights.full[warp]);
      parity ^= 1;
    }
  }

 private:
  struct Made {
    std::uint32_t pairs[kPairs];
    float sum;
    int takes;
  };

  // Before there is room for them.
  __device__ __forceinline__ Made make(const float2 (&s)[kPairs], float below, float shift,
                                       const float* scales) const {
    Made made;
    float part[2] = {0, 0};
    made.takes = 0;
#pragma unroll
    for (int n = 0; n < kPairs; ++n) {
      float low = exp2_fast(fmaf(s[n].x - shift, softmax.scale_log2, -below));
      float high = exp2_fast(fmaf(s[n].y - shift, softmax.scale_log2, -below));
      part[0] += low;
      part[1] += high;
      if constexpr (kBytes) {
        const float2 scale =
            *reinterpret_cast<const float2*>(scales + 8 * n + 2 * (threadIdx.x % 4));
        made.takes |= static_cast<int>(row_takes(scale.x, true)) | row_takes(scale.y, true);
        low = __fmul_rn(low, others_scale(scale.x, true));
        high = __fmul_rn(high, others_scale(scale.y, true));
      }
      made.pairs[n] = pack(T{}, low, high);
    }
    made.sum = part[0] + part[1];
    return made;
  }
  __device__ __forceinline__ static void write(const Made& made, WeightTile<T, kKeys>& to,
                                               WeightNote& note, float rescale, float reference) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int n = 0; n < kPairs; ++n) to.pairs[n][lane] = made.pairs[n];
    note.sum[lane] = made.sum;
    if (lane % 4 == 0) {
      note.rescale[lane / 4] = rescale;
      note.reference[lane / 4] = reference;
    }
    const bool rescales = __any_sync(~0U, rescale != 1);
    const bool takes = kBytes && __any_sync(~0U, made.takes);
    if (lane == 0) {
      note.rescales = rescales;
      note.takes = takes;
    }
  }
};

}  // namespace attend::cuda
