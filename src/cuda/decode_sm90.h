// What the host hands to the decode kernels of Hopper (decode_sm90.cu).
#pragma once

#include "tensor_map.h"

namespace attend::cuda {

inline constexpr int kDecodeRows = 64;    // queries of all heads of a group, at most
inline constexpr int kDecodeChunk = 256;  // keys of one partial result, at multiples of 256
inline constexpr int kDecodeRun = 4;      // chunks that are joined first
inline constexpr int kDecodeRuns = 4;     // of them in a section, joined next
constexpr int decode_tile(int d) { return d == 256 ? 32 : 64; }  // keys

// Two blocks of threads share an SM.
constexpr int decode_stages(int d) { return d == 64 ? 4 : 2; }
constexpr int decode_query_stages(int d) { return d == 256 ? 1 : 2; }
constexpr int decode_shared_bytes(int d) {
  return (decode_query_stages(d) * kDecodeRows + 2 * decode_stages(d) * decode_tile(d)) * d * 2 +
         3 * 1024;
}
// Chunks that one block of threads takes at a time: a run, if there are enough of them for the
// machine, and registers to join them. No bit depends on it.
constexpr int decode_chunks_each(int d, long long runs, int processors) {
  return d < 256 && runs >= 2LL * processors * 9 / 10 ? kDecodeRun : 1;
}
// Pages of so many keys come in pieces of so many: at least 8, whose 16 bytes are permuted among
// themselves. Other sizes are declined.
constexpr int decode_piece(int d, int page_size) {
  int piece = decode_tile(d);
  while (page_size % piece != 0) piece /= 2;
  return piece;
}

struct DecodeParameters {
  // [d, length, heads, batch], the innermost first, in boxes of 64 x q_length x group and 64 x
  // tile. Fewer features than the kernel's d are padded with zeros. Paged keys and values are
  // [d, page_size, heads, pages], in boxes of 64 x piece.
  TensorMap q, k, v;
  float* partial_out;      // [batch, heads, q_length, parts, d], d: the kernel's
  float* partial;          // the same, 2 instead of d: reference score and sum of weights
  Rows out, lse;           // lse: float, or data is null
  const int* key_lengths;  // [batch], or null
  const int* block_table;  // [batch, table_width], of pages: key j is on page j / page_size
  int table_width, page_size, piece;
  int batch, heads, group;
  int q_length, k_length;
  int chunks_each, parts;                 // of k_length, the longest; a part: chunks_each chunks
  int left, right, offset, offset_given;  // as in ForwardParameters
  int value_d;                            // features of v
  float scale;
};

}  // namespace attend::cuda
