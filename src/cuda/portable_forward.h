// What the host hands to the portable forward kernels (portable_forward.cu).
#pragma once

#include "core/operation.h"

namespace attend::cuda {

struct PortableForward {
  ForwardProblem problem;
  ForwardCall call;         // parts and weight_heads: in memory of the device
  bool writes_out;          // else only what there is of rows and pairs
  double* states;           // of each row, the softmax's, if weights are asked for: [rows, 2]
  std::int64_t items;       // blocks of 16 queries, of 128 columns, and of chunks
  std::int64_t row_blocks;  // blocks of queries in a head
  std::int64_t columns;     // blocks of columns
  // Where there are too few rows for the GPU, blocks of threads take one chunk of 256 keys each,
  // and others join them. No bit depends on it.
  bool apart;
  std::int64_t chunks;   // of the longest sequence
  double* chunk_sums;    // [rows, chunks, dv]
  double* chunk_states;  // [rows, chunks, 2]
};

}  // namespace attend::cuda
