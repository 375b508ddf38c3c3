// What the files of multi-head attention and of blocks share: one call's inputs, its projections,
// the view of a projection by heads, and the layer's passes with a residual added to their output.
#pragma once

#include "core/text.h"

#include <attend/multi_head_attention.h>

#include <initializer_list>

namespace attend {

namespace multi_head {
template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw InvalidArgument(text("multi_head_attention: ", parts...));
}
}  // namespace multi_head

// [batch, length, heads * d] (or [length, heads * d]) seen as [batch, heads, length, d].
ConstTensorView by_heads(const ConstTensorView& x, std::int64_t heads);
TensorView by_heads(const TensorView& x, std::int64_t heads);
inline TensorView by_heads(Tensor& x, std::int64_t heads) { return by_heads(x.view(), heads); }

// Every size that was left open; throws where they do not fit together.
MultiHeadAttentionOptions filled_in(MultiHeadAttentionOptions options);

// The inputs of a call. check() throws where one does not fit the layer.
struct AttentionCall {
  const ConstTensorView &query, &key, &value;
  const AttentionOptions& options;
  void check(const MultiHeadAttention& layer) const;
};

// Q, K and V: [batch, length, heads * d] each, or without a batch.
struct Projections {
  TensorView q, k, v;
};

// Writes q, k and v, turned if the layer is rotary.
void project(const MultiHeadAttention& layer, const AttentionCall& call, const Projections& to,
             const Where& where);

// The same in tensors to keep, and room for the heads' results side by side.
struct ProjectedCall {
  ProjectedCall(const MultiHeadAttention& layer, const AttentionCall& call, const Where& where);
  Tensor q, k, v, concat;
};

// Where a pass leaves its result: y = output + residual, of one shape, with any strides. The
// residual may be none, and y must not overlap the inputs. The passes below check their other
// arguments, before y is written.
struct AddedTo {
  TensorView y;
  ConstTensorView residual{};
};
void attention_forward(const MultiHeadAttention& layer, const AttentionCall& call,
                       const AttentionOutputs& outputs, const AddedTo& to, const Where& where);
// Self-attention, if the key is none.
MultiHeadAttention::Saved attention_train(const MultiHeadAttention& layer,
                                          const ConstTensorView& query, const ConstTensorView& key,
                                          const ConstTensorView& value,
                                          const AttentionOptions& options, const AddedTo& to,
                                          const Where& where);
void attention_decode(const MultiHeadAttention& layer, const ConstTensorView& x, KvCache& cache,
                      const AttentionOptions& options, const ConstTensorView& lengths,
                      const AddedTo& to, const Where& where);
void attention_over_cache(const MultiHeadAttention& layer, const ConstTensorView& query,
                          const KvCache& cache, const AttentionOptions& options, const AddedTo& to,
                          const Where& where);

// The heads' attention() of q, k and v [batch, heads, length, d], and W^O.
void attend_and_project(const MultiHeadAttention& layer, const ConstTensorView& q,
                        const ConstTensorView& k, const ConstTensorView& v,
                        const AttentionOptions& options, const AttentionOutputs& outputs,
                        const AddedTo& to, const Where& where);

// y = concat W^O + b + residual; without W^O, concat + residual.
void project_output(const MultiHeadAttention& layer, const ConstTensorView& concat,
                    const AddedTo& to, const Where& where);

// The shape of the output.
Shape output_shape(const MultiHeadAttentionOptions& layer, const ConstTensorView& query);

// y can be the output, and overlaps neither the parameters, the tensors of the options nor the
// others.
struct NamedInput {
  const char* name;
  const ConstTensorView& tensor;
};
void check_output(const MultiHeadAttention& layer, const ConstTensorView& y, const Shape& shape,
                  const AttentionOptions& options, std::initializer_list<NamedInput> others);

}  // namespace attend
