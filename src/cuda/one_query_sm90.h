// What the host hands to the kernels of one query a head (one_query_sm90.cu).
#pragma once

#include "forward_sm90.h"

namespace attend::cuda {

inline constexpr int kOneQueryRows = 64;                        // heads of a group, at most
inline constexpr int kOneQueryTiles = 8;                        // whose weights a warp makes
inline constexpr int kOneQueryWarps = 4;                        // of a block that makes weights
inline constexpr int kOneQuerySlice = 64;                       // features of v that a block sums
inline constexpr int kValueStages = 6;                          // tiles of values
constexpr int score_stages(int d) { return d == 128 ? 2 : 4; }  // tiles of keys
constexpr int score_query_stages(int d) { return d == 256 ? 1 : 2; }
constexpr int score_blocks_each(int d) { return d == 256 ? 1 : 2; }  // of threads, an SM
constexpr int score_shared_bytes(int d) {
  return (score_query_stages(d) * kOneQueryRows + score_stages(d) * forward_tiles(d).keys) * d * 2 +
         2 * 1024;
}
constexpr int value_shared_bytes(int d) {
  return kValueStages * forward_tiles(d).keys * kOneQuerySlice * 2 + 1024;
}

struct OneQueryParameters {
  // q: in boxes of 64 x 1 x group; k and v as in ForwardParameters.
  TensorMap q, k, v;
  // Of each row, which is a head of the batch, and each tile of keys:
  float* scores;      // [rows, tiles, keys], hidden ones -inf
  float* largest;     // [rows, tiles]
  unsigned* weights;  // [rows, tiles, 4, keys / 8]: pairs, in the order of an Operand
  float* sums;        // [rows, tiles, 4]: of the weights, as the threads of a row have them
  float* rescales;    // [rows, tiles]: what was summed before a tile is multiplied by
  float* references;  // [rows]: the last
  Rows out, lse;      // lse: float, or data is null
  const int *key_lengths, *offsets;  // as in ForwardParameters
  int batch, heads, group;
  int k_length, tiles;  // of the tensor
  int left, right, offset, offset_given;
  int value_d;
  float scale;
};

}  // namespace attend::cuda
