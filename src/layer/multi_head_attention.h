// What the files of multi-head attention share: one call's inputs, its projections, and the view of
// a projection by heads.
#pragma once

#include <attend/multi_head_attention.h>

namespace attend {

// A contiguous [batch, length, heads * d] (or [length, heads * d]) seen as [batch, heads, length,
// d].
ConstTensorView by_heads(const ConstTensorView& x, std::int64_t heads);
TensorView by_heads(const TensorView& x, std::int64_t heads);
inline TensorView by_heads(Tensor& x, std::int64_t heads) { return by_heads(x.view(), heads); }

// Every size that was left open; throws where they do not fit together.
MultiHeadAttentionOptions filled_in(MultiHeadAttentionOptions options);

// The inputs of a call. check() throws where one does not fit the layer.
struct AttentionCall {
  const ConstTensorView &query, &key, &value;
  const AttentionOptions& options;
  void check(const MultiHeadAttentionOptions& layer) const;
};

// Q, K and V, and room for the heads' results side by side: [batch, length, heads * d] each, or
// without a batch.
struct Projections {
  TensorView q, k, v, concat;
};

// Writes q, k and v, turned if the layer is rotary.
void project(const MultiHeadAttention& layer, const AttentionCall& call, const Projections& to,
             const Where& where);

// The same in tensors to keep.
struct ProjectedCall {
  ProjectedCall(const MultiHeadAttention& layer, const AttentionCall& call, const Where& where);
  Tensor q, k, v, concat;
};

}  // namespace attend
