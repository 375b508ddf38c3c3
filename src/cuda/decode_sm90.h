// What the host hands to the decode kernels of Hopper (decode_sm90.cu).
#pragma once

#include "tensor_map.h"

namespace attend::cuda {

inline constexpr int kDecodeRows = 64;    // queries of all heads of a group, at most
inline constexpr int kDecodeChunk = 256;  // keys of one partial result, at multiples of 256
inline constexpr int kDecodeTile = 64;    // keys

// Two blocks of threads share an SM.
constexpr int decode_stages(int d) { return d == 64 ? 4 : 2; }
constexpr int decode_shared_bytes(int d) {
  return (2 * kDecodeRows + 2 * decode_stages(d) * kDecodeTile) * d * 2 + 3 * 1024;
}

struct DecodeParameters {
  // [d, length, heads, batch], the innermost first, in boxes of 64 x q_length x group and 64 x
  // tile.
  TensorMap q, k, v;
  float* partial_out;      // [batch, heads, q_length, chunks, d]
  float* partial;          // the same, 2 instead of d: reference score and sum of weights
  void* out;               // strides in elements, innermost 1
  float* lse;              // or null
  const int* key_lengths;  // [batch], or null
  long long out_batch, out_head, out_row;
  long long lse_batch, lse_head, lse_row;
  int batch, heads, group;
  int q_length, k_length, chunks;         // of k_length
  int left, right, offset, offset_given;  // as in ForwardParameters
  float scale;
};

}  // namespace attend::cuda
