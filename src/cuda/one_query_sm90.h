// What the host hands to the kernels of one query a head (one_query_sm90.cu).
#pragma once

#include "forward_sm90.h"

namespace attend::cuda {

inline constexpr int kOneQueryRows = 64;                        // heads of a group, at most
inline constexpr int kOneQueryTiles = 8;                        // whose weights a warp makes
inline constexpr int kOneQueryWarps = 4;                        // of a block that makes weights
constexpr int score_stages(int d) { return d == 128 ? 2 : 4; }  // tiles of keys
constexpr int score_query_stages(int d) { return d == 256 ? 1 : 2; }
constexpr int score_blocks_each(int d) { return d == 256 ? 1 : 2; }  // of threads, an SM
// Of 8 bits: steps of 64 keys on their way to each of two warpgroups, 16 to each warp.
inline constexpr int kScoreBoxRows = 16;
constexpr int score_steps(int d) { return d == 64 ? 8 : 4; }
constexpr int score_shared_bytes(int d, bool bytes) {
  return bytes ? 2 * 64 * d * (2 + score_steps(d)) + (d == 64 ? 22 : 14) * 1024
               : (score_query_stages(d) * kOneQueryRows + score_stages(d) * forward_tiles(d).keys) *
                         d * 2 +
                     2 * 1024;
}

// Of a row and a tile, as the threads of a row take them: their pairs of weights, in the order of
// an Operand [4, keys / 8]; the sum of each one's [4]; and what was summed before the tile is
// multiplied by. A multiple of 16 bytes.
constexpr int weight_words(int keys) { return keys / 2 + 8; }

// Features of v that a block of threads sums: fewer, where blocks are few.
inline constexpr int kSlice = 64, kNarrowSlice = 32;
// A warpgroup computes, a thread of another warp copies; of 8 bits, two warpgroups bring values.
constexpr int value_threads(bool bytes) { return bytes ? 384 : 160; }
constexpr int value_stages(int slice) { return slice == kSlice ? 6 : 12; }  // tiles of values
constexpr int value_ring_bytes(int d, int slice) {
  return value_stages(slice) * forward_tiles(d).keys * slice * 2 + 1024;
}
constexpr int value_shared_bytes(int d, int slice, int group) {
  return value_ring_bytes(d, slice) +
         value_stages(slice) * group * weight_words(forward_tiles(d).keys) * 4;
}

struct OneQueryParameters {
  // q: in boxes of 64 x 1 x group; k as in ForwardParameters, v in boxes of a slice.
  TensorMap q, k, v;
  // Of each row, which is a head of the batch, and each tile of keys:
  float* scores;                     // [rows, tiles, keys], hidden ones -inf
  float* largest;                    // [rows, tiles]
  unsigned* weights;                 // [key heads of the batch, tiles, group, weight_words]
  float* references;                 // [rows]: the last
  Rows out, lse;                     // lse: float, or data is null
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
