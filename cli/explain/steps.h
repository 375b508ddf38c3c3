// From a trace to an Explanation: the steps of attention, and of the layer around it if there is
// one, in the order in which they are computed.
#pragma once

#include "explanation.h"

#include <attend/multi_head_attention.h>

namespace attend::cli {

// What is told. Every number comes out of the library: of the trace, of q, k, v, or of the layer.
struct Subject {
  Trace trace{};
  Tensor q{}, k{}, v{};           // [batch, heads, length, d]; none, where a saved trace has none
  std::optional<double> scale{};  // the factor of the scores, if it is known
  double softcap = 0;
  bool sinks = false;                 // one more score in every sum
  MultiHeadAttention layer{};         // none: bare attention
  Tensor query{};                     // its input, [batch, length, width] or [length, width]
  std::int64_t sequence = 0;          // of the batch
  std::vector<std::int64_t> heads{};  // told with all numbers; the others are shaded only
};

void add_steps(Explanation& explanation, const Subject& subject);

}  // namespace attend::cli
