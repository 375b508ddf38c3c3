// What the host hands to the kernels of inspect() and weights_of() (portable_inspect.cu,
// portable_inspect_keys.cu, portable_weights.cu).
#pragma once

#include "core/operation.h"

namespace attend::cuda {

// What the first kernel leaves of a row to the others.
struct InspectedRow {
  double top, l;  // the softmax's; a weight is weight(s, top) / l
  double maximum, entropy;
  double visible;  // how many keys it sees
};

struct PortableInspect {
  InspectProblem problem;
  InspectCall call;         // tokens, heads and tensors of results: in memory of the device
  InspectedRow* rows;       // [batch, heads, q_length]
  double* top_scores;       // the scores of top_keys, laid out as they are
  HeadSums* key_sums;       // what 32 keys add to the metrics of a head: [batch, heads, key_blocks]
  std::int64_t row_blocks;  // blocks of 16 queries in a head
  std::int64_t key_blocks;  // of 32 keys
  std::int64_t tall, wide;  // the part of the map that a block of threads has, in queries and keys
  std::int64_t region_rows, region_columns;  // how many there are in a head
  std::int64_t items;                        // of the kernel at hand
};

inline constexpr std::int64_t kWindowKeys = 512;  // of a block of threads

struct PortableWeights {
  WeightsProblem problem;
  WeightsCall call;
  std::int64_t row_blocks, items;
};

}  // namespace attend::cuda
