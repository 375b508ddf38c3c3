// What the host hands to the backward kernels of Hopper (backward_sm90.cu).
#pragma once

#include "tensor_map.h"

namespace attend::cuda {

// A block of threads owns queries and goes through the keys in tiles, or the other way round.
inline constexpr int kBackwardQueryBlock = 128;
constexpr int backward_key_block(int d) { return d == 256 ? 64 : 128; }
struct BackwardTiles {
  int queries, keys;
};
constexpr BackwardTiles backward_tiles(int d) {
  return d == 64 ? BackwardTiles{96, 96} : d == 128 ? BackwardTiles{64, 96} : BackwardTiles{64, 64};
}

inline constexpr int kBackwardSharedBytes = 232448;  // all that a block can have

struct BackwardParameters {
  // [d, length, heads, batch], the innermost first, in boxes of 64 x rows: of a tile, of a block;
  // results 64. Fewer features than the kernel's d are padded with zeros.
  TensorMap q, k, v, dout;
  TensorMap q_block, k_block, v_block, dout_block;
  TensorMap dq, dk, dv;
  // Of each row, written by the kernels: [batch, heads, padded], padded: q_length up to a multiple
  // of 384, of blocks and tiles; or packed [heads, padded], padded: all queries + 4 batch + 384.
  float *lse_log2, *delta;         // lse in octaves: +inf for rows without keys, NaN far from 0
  float *reference, *rest;         // weight = 2^((score - reference) * scale log2(e) - rest)
  Rows out, dout_rows, lse;        // lse: float. Addresses and strides: multiples of 16 bytes
  Rows dq_rows, dk_rows, dv_rows;  // used if packed
  const int* key_lengths;          // [batch], or null
  // [batch + 1], or null. Packed: sequence b has queries [q_starts[b], q_starts[b + 1]) of tensors
  // whose batch is 1, and keys likewise; the lengths below are the longest.
  const int *q_starts, *k_starts;
  int batch, heads, group;
  int q_length, k_length, padded;
  int left, right, offset, offset_given;  // as in ForwardParameters
  int d, value_d;                         // features of q and k, of v; multiples of 8
  float scale;
};

}  // namespace attend::cuda
