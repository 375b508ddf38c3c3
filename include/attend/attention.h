// Attention, its gradient, and the joining of partial results.
//
//   q    [batch, heads, queries, d]          k [batch, key heads, keys, d]
//   out  [batch, heads, queries, dv]         v [batch, key heads, keys, dv]
//
// heads must be a multiple of key heads (GQA): query head h uses key head h / (heads / key heads).
// f64, f32, bf16 or f16, any strides; any of batch, heads, queries, keys may be zero. Single-head
// attention is the same call with one head. The rules: docs/contract.md; the formulas:
// docs/algorithm.md.
#pragma once

#include <attend/context.h>
#include <attend/options.h>

#include <vector>

namespace attend {

// out = softmax(scale * q . k^T + ...) . v
ATTEND_API void attention(const ConstTensorView& q, const ConstTensorView& k,
                          const ConstTensorView& v, const TensorView& out,
                          const AttentionOptions& options = {},
                          const AttentionOutputs& outputs = {},
                          Context& context = default_context());

// The same into a new tensor.
ATTEND_API Tensor attention(const ConstTensorView& q, const ConstTensorView& k,
                            const ConstTensorView& v, const AttentionOptions& options = {},
                            Context& context = default_context());

// The shape of this call's weights and scores: [batch, heads, queries, keys], for packed sequences
// [sequences, heads, queries of the longest, keys of the longest].
ATTEND_API Shape weights_shape(const ConstTensorView& q, const ConstTensorView& k,
                               const ConstTensorView& v, const AttentionOptions& options = {});

// Gradients of a loss, given its gradient dout at `out` (and dlse [batch, heads, queries] at lse).
// out and lse are what attention() wrote for the same q, k, v and options: all the keys, not a part
// of them. Kernels may use them to save work, or compute them again as the reference does.
ATTEND_API void attention_backward(const ConstTensorView& q, const ConstTensorView& k,
                                   const ConstTensorView& v, const ConstTensorView& out,
                                   const ConstTensorView& lse, const ConstTensorView& dout,
                                   const AttentionGradients& gradients,
                                   const AttentionOptions& options = {},
                                   const ConstTensorView& dlse = {},
                                   Context& context = default_context());

// New tensors for every gradient that exists: dbias with bias, dsinks with sinks, dalibi with
// alibi.
struct BackwardResult {
  Tensor dq, dk, dv, dbias, dsinks, dalibi;
};
ATTEND_API BackwardResult attention_backward(const ConstTensorView& q, const ConstTensorView& k,
                                             const ConstTensorView& v, const ConstTensorView& out,
                                             const ConstTensorView& lse,
                                             const ConstTensorView& dout,
                                             const AttentionOptions& options = {},
                                             const ConstTensorView& dlse = {},
                                             Context& context = default_context());

// Joins results over disjoint parts of the keys, in the order given: o[n] [batch, heads, queries,
// dv] and lse[n] [batch, heads, queries] of each part. A part that saw no key (lse -inf) adds
// nothing. Parts of f32 or narrower tensors that were cut at multiples of 256 keys and kept in f64
// (`out` and lse may be wider than q) give the bits of the undivided call (but for a
// tie of rounding in some 10^8 elements).
ATTEND_API void merge(const std::vector<ConstTensorView>& o,
                      const std::vector<ConstTensorView>& lse, const TensorView& out,
                      const TensorView& lse_out = {}, Context& context = default_context());

}  // namespace attend
