// What the host hands to the portable backward kernels (portable_backward.cu).
#pragma once

#include "core/operation.h"

namespace attend::cuda {

// What the first kernel leaves of each row of queries, [batch, heads, q_length].
struct RowStatistics {
  double top, l;  // the softmax's state
  double delta;   // sum of p dp, less dlse
  double dalibi;  // of the row, by the second
};

struct PortableBackward {
  BackwardProblem problem;
  BackwardCall call;
  RowStatistics* rows;
  std::int64_t row_blocks;            // blocks of 16 queries in a head
  std::int64_t key_blocks;            // of 16 keys in a key head, or of them in a page
  std::int64_t d_columns, v_columns;  // blocks of 128 columns
};

}  // namespace attend::cuda
