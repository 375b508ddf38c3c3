// What the files of multi-head attention share: one call's inputs, its projections, and the view of
// a projection by heads.
#pragma once

#include <attend/multi_head_attention.h>

namespace attend {

// A contiguous [batch, length, heads * d] (or [length, heads * d]) seen as [batch, heads, length,
// d].
ConstTensorView by_heads(const ConstTensorView& x, std::int64_t heads);
TensorView by_heads(Tensor& x, std::int64_t heads);

// Every size that was left open; throws where they do not fit together.
MultiHeadAttentionOptions filled_in(MultiHeadAttentionOptions options);

// The inputs of a call. check() throws where one does not fit the layer.
struct AttentionCall {
  const ConstTensorView &query, &key, &value;
  const AttentionOptions& options;
  void check(const MultiHeadAttentionOptions& layer) const;
};

// Q, K and V, turned if the layer is rotary, and room for the heads' results side by side.
struct ProjectedCall {
  ProjectedCall(const MultiHeadAttention& layer, const AttentionCall& call, Context& context);
  Tensor q, k, v, concat;
};

}  // namespace attend
