// What the host hands to the kernels of one query a head (one_query_sm90.cu).
#pragma once

#include "forward_sm90.h"

namespace attend::cuda {

inline constexpr int kOneQueryRows = 64;  // heads of a group, at most
constexpr int score_query_stages(int d) { return d == 256 ? 1 : 2; }
constexpr int score_blocks_each(int d) { return d == 256 ? 1 : 2; }  // of threads, an SM
constexpr int score_stages(int d, bool bytes) {                      // tiles of keys
  return bytes ? (d == 128 ? 4 : 8) : (d == 128 ? 2 : 4);
}
// Keys of 8 bits come with the scales of both.
constexpr int score_shared_bytes(int d, bool bytes) {
  return score_query_stages(d) * kOneQueryRows * d * 2 +
         score_stages(d, bytes) * forward_tiles(d).keys * (bytes ? d + 8 : d * 2) + 2 * 1024;
}

// Floats of a row of scores of a tile: the largest of them is behind them.
constexpr int score_row(int d) { return forward_tiles(d).keys + 8; }

// Heads of a group and features of v that a block of threads sums: fewer features, where blocks are
// few.
inline constexpr int kHeadsAtOnce = 8;
inline constexpr int kSlice = 64, kNarrowSlice = 32;
// Two warpgroups make weights and values, threads of two warps copy; of 8 bits, a warpgroup.
constexpr int value_threads(bool bytes) { return bytes ? 384 : 320; }
inline constexpr int kWeightStages = 4;  // tiles of weights: one for each warp that makes them
inline constexpr int kScoreTiles = 2 * kWeightStages;       // tiles of scores on their way
constexpr int value_stages(int d, int slice, bool bytes) {  // tiles of values
  return (slice == kSlice ? 64 : 96) * 1024 / (forward_tiles(d).keys * slice * (bytes ? 1 : 2));
}
constexpr int value_shared_bytes(int d, int slice, bool bytes) {
  const int keys = forward_tiles(d).keys;
  return value_stages(d, slice, bytes) * keys * (bytes ? slice + 4 : slice * 2) +
         kHeadsAtOnce * (kScoreTiles * score_row(d) * 4 + kWeightStages * keys * 2) + 3 * 1024;
}

struct OneQueryParameters {
  // q: in boxes of 64 x 1 x group; k as in ForwardParameters, v in boxes of a slice.
  TensorMap q, k, v;
  float* scores;  // [key heads of the batch, tiles, group, score_row], hidden ones -inf
  Rows out, lse;  // lse: float, or data is null
  const int *key_lengths, *offsets;  // as in ForwardParameters
  KeyPages pages;                    // as well
  ByteKeys k_bytes, v_bytes;         // as well
  float* value_scales;               // of 8 bits: [key heads of the batch, tiles, keys]
  int batch, heads, group;
  int k_length, tiles;  // of the tensor
  int left, right, offset, offset_given;
  int value_d;
  float scale;
};

}  // namespace attend::cuda
