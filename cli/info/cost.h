// What a layer of multi-head attention costs: parameters, floating-point operations, memory. The
// formulas, in one place.
#pragma once

#include <attend/dtype.h>

#include <cstdint>

namespace attend::cli {

struct LayerSizes {
  std::int64_t model_dim = 0, heads = 0, key_heads = 0, d_k = 0, d_v = 0;  // 0: as the layer's own
  std::int64_t key_dim = 0, value_dim = 0;
  bool bias = true, output_projection = true;
  std::int64_t layers = 1;
  std::int64_t batch = 1, queries = 0, keys = 0;
  bool causal = false;
  DType type = DType::f32;
};

// The same with every size filled in, by the rules of MultiHeadAttention; keys 0: as queries.
LayerSizes filled_in(LayerSizes sizes);

struct Cost {
  std::int64_t weights = 0, biases = 0;  // parameters

  // A multiplication with an addition counts as two. The softmax is not counted.
  std::int64_t projection_flops = 0;  // Q, K, V and output
  std::int64_t attention_flops = 0;   // Q K^T and P V, of visible pairs
  double equal_length = 0;            // queries = keys at which both would be equal

  std::int64_t parameter_bytes = 0;
  std::int64_t activation_bytes = 0;  // inputs, Q, K, V, concat and output of one layer
  std::int64_t cache_bytes = 0;       // keys and values of all layers
  std::int64_t matrix_bytes = 0;      // the weights softmax(Q K^T) of one layer, if they were kept
};

// Of filled-in sizes. Throws UsageError if a number does not fit into 64 bits.
Cost cost_of(const LayerSizes& sizes);

}  // namespace attend::cli
