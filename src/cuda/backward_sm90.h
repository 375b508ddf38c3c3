// What the host hands to the backward kernels of Hopper (backward_sm90.cu).
#pragma once

#include <cuda.h>

namespace attend::cuda {

// One block of threads owns kBackwardBlock keys (or queries) and goes through the queries (or keys)
// in tiles of kBackwardTile.
inline constexpr int kBackwardBlock = 128, kBackwardTile = 64;

struct BackwardParameters {
  // [d, length, heads, batch], the innermost first, in boxes of 64 x rows: of a tile, of a block;
  // results 64.
  CUtensorMap q, k, v, dout;
  CUtensorMap q_block, k_block, v_block, dout_block;
  CUtensorMap dq, dk, dv;
  // Of each row, written by the first kernel: lse in octaves, +inf for rows without keys, and
  // delta. [batch, heads, padded], padded: q_length up to a multiple of the block.
  float *lse_log2, *delta;
  const void *out, *dout_rows;  // innermost stride 1, rows of 16 bytes
  const float* lse;
  const int* key_lengths;                        // [batch], or null
  long long out_batch, out_head, out_row;        // strides in elements
  long long dout_batch, dout_head, dout_row;
  long long lse_batch, lse_head, lse_row;
  int batch, heads, group;
  int q_length, k_length, padded;
  int left, right, offset, offset_given;  // as in ForwardParameters
  float scale;
};

}  // namespace attend::cuda
