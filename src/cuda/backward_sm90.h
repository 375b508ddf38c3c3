// What the host hands to the backward kernels of Hopper (backward_sm90.cu).
#pragma once

#include "tensor_map.h"

namespace attend::cuda {

// A block of threads owns kBackwardBlock keys and goes through the queries in tiles, or the other
// way round.
inline constexpr int kBackwardBlock = 128;
struct BackwardTiles {
  int queries, keys;
};
constexpr BackwardTiles backward_tiles(int d) {
  return d == 64 ? BackwardTiles{96, 96} : BackwardTiles{64, 96};
}

inline constexpr int kBackwardSharedBytes = 232448;  // all that a block can have

struct BackwardParameters {
  // [d, length, heads, batch], the innermost first, in boxes of 64 x rows: of a tile, of a block;
  // results 64.
  TensorMap q, k, v, dout;
  TensorMap q_block, k_block, v_block, dout_block;
  TensorMap dq, dk, dv;
  // Of each row, written by the first kernel: lse in octaves, +inf for rows without keys, and
  // delta. [batch, heads, padded], padded: q_length up to a multiple of 384,
  // of blocks and tiles.
  float *lse_log2, *delta;
  const void *out, *dout_rows;  // innermost stride 1; addresses and strides: multiples of 16 bytes
  const float* lse;
  const int* key_lengths;                  // [batch], or null
  long long out_batch, out_head, out_row;  // strides in elements
  long long dout_batch, dout_head, dout_row;
  long long lse_batch, lse_head, lse_row;
  int batch, heads, group;
  int q_length, k_length, padded;
  int left, right, offset, offset_given;  // as in ForwardParameters
  float scale;
};

}  // namespace attend::cuda
