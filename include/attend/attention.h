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
                          const ConstTensorView& v, const Required<TensorView>& out,
                          const AttentionOptions& options = {},
                          const AttentionOutputs& outputs = {},
                          const Where& where = default_context());

// The same into a new tensor.
ATTEND_API Tensor attention(const ConstTensorView& q, const ConstTensorView& k,
                            const ConstTensorView& v, const AttentionOptions& options = {},
                            const Where& where = default_context());

// The shape of this call's weights and scores: [batch, heads, queries, keys], for packed sequences
// [sequences, heads, max_q, max_k], the longest sequence's sizes if they are not given.
ATTEND_API Shape weights_shape(const ConstTensorView& q, const ConstTensorView& k,
                               const ConstTensorView& v, const AttentionOptions& options = {});

// What a backward pass reads: what attention() was given and wrote, and the gradient of a loss at
// what it wrote. out and lse are those of the same q, k, v and options: all the keys, not a part of
// them. Kernels may use them to save work, or compute them again as the reference does. A tensor
// that is moved in, or is made there, is kept, as in AttentionOptions.
struct BackwardInputs {
  TensorOrView q{}, k{}, v{};
  TensorOrView out{};   // [batch, heads, queries, dv]
  TensorOrView lse{};   // [batch, heads, queries]
  TensorOrView dout{};  // the gradient at out
  TensorOrView dlse{};  // and at lse; none: zero
};

// The gradients of the loss:
//   attention_backward({.q = q, .k = k, .v = v, .out = out, .lse = lse, .dout = dout},
//                      {.causal = true}, {.dq = dq, .dk = dk, .dv = dv});
ATTEND_API void attention_backward(const BackwardInputs& inputs, const AttentionOptions& options,
                                   const AttentionGradients& gradients,
                                   const Where& where = default_context());

// The same into new tensors, for every gradient that exists: dbias with bias, dsinks with sinks,
// dalibi with alibi.
struct BackwardResult {
  Tensor dq, dk, dv, dbias, dsinks, dalibi;
};
ATTEND_API BackwardResult attention_backward(const BackwardInputs& inputs,
                                             const AttentionOptions& options = {},
                                             const Where& where = default_context());

// ---- Parts of the keys -------------------------------------------------------------------------
//
// A call on a part of the keys is told where the part begins, options.key_offset, and with causal,
// window or alibi options.query_offset too.

// Adds these keys to a partial state: the sums of all keys so far, before the division, an f64
// tensor [batch, heads, queries, dv + 4] (as q is, packed or not; the columns: docs/algorithm.md).
// A state of zeros is empty. Keys that come in ascending order, cut at multiples of 256, leave the
// state from which finish_partial() makes the bits of the undivided call, in every type. Sinks are
// counted once, with the first keys: they may be given again with later ones.
ATTEND_API void attention_partial(const ConstTensorView& q, const ConstTensorView& k,
                                  const ConstTensorView& v, const TensorView& state,
                                  const AttentionOptions& options = {},
                                  const Where& where = default_context());

// [batch, heads, queries, dv + 4]: the shape of a partial state for these queries and values.
ATTEND_API Shape partial_state_shape(const ConstTensorView& q, const ConstTensorView& v);

// Joins partial states over disjoint parts of the keys, in the order given. The result has the bits
// of one state to which all keys were added in turn, if every part after the first holds one chunk:
// keys that lie between two multiples of 256. Otherwise it differs from that by the order of sums
// in f64: of C chunks in all, by at most 32 (C + 1) 2^-53 times the largest |out| of a chunk alone.
ATTEND_API void merge_partial(const std::vector<ConstTensorView>& states, const TensorView& state,
                              const Where& where = default_context());

// The same into `out` [batch, heads, queries, dv] and, if given, lse: divides, and rounds once. A
// single state is not changed.
ATTEND_API void finish_partial(const std::vector<ConstTensorView>& states, const TensorView& out,
                               const TensorView& lse = {}, const Where& where = default_context());

// Joins results over disjoint parts of the keys, in the order given: o[n] [batch, heads, queries,
// dv] and lse[n] [batch, heads, queries] of each part. A part that saw no key (lse -inf) adds
// nothing. (o, lse) are rounded, so the result is near that of the undivided call and need not have
// its bits: with n parts, whose |lse| are at most L, and u = 2^-53 for parts in f64, 2^-24 for f32,
// it is off by at most 16 u (L + 32 + n) times the largest |o|, and its own rounding; and by the
// rounding of the calls' own sums, unless the keys are cut at multiples of 256. The rounding of
// parts in bf16 and f16 comes on top: 2^-8 and 2^-11 times the largest |o|. Where u L is above
// 2^-8 and more than one part counts, lse does not tell how much each weighs: that is refused.
// Partial states know no such limit. Write attend::merge: a plain merge may find std::merge.
ATTEND_API void merge(const std::vector<ConstTensorView>& o,
                      const std::vector<ConstTensorView>& lse, const TensorView& out,
                      const TensorView& lse_out = {}, const Where& where = default_context());

}  // namespace attend
