// What the host hands to the portable forward kernels (portable_forward.cu).
#pragma once

#include "core/operation.h"

namespace attend::cuda {

struct PortableForward {
  ForwardProblem problem;
  ForwardCall call;         // parts and weight_heads: in memory of the device
  double* states;           // of each row, the softmax's, if weights are asked for: [rows, 2]
  std::int64_t items;       // blocks of 16 queries, times blocks of 128 columns
  std::int64_t row_blocks;  // blocks of queries in a head
  std::int64_t columns;     // blocks of columns
};

}  // namespace attend::cuda
