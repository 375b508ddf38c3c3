// Multi-head attention forward with what its backward pass needs, and that pass.
#include <attend/multi_head_attention.h>
#include <attend/option_list.h>

#include "api/tensor_memory.h"
#include "core/problem.h"
#include "layer/check.h"
#include "layer/elementwise.h"
#include "layer/hidden_rows.h"
#include "layer/linear.h"
#include "layer/lists.h"
#include "layer/multi_head_attention.h"
#include "layer/rotary.h"
#include "layer/rows.h"

#include <utility>

namespace attend {
namespace {

Tensor like(const ConstTensorView& view, const Where& where) {
  return view ? Tensor::uninitialized(view.shape(), view.dtype(), view.device(), where) : Tensor();
}

// A copy that the options keep. What strides of 0 repeat is stored once.
TensorOrView kept_copy(const char* name, ConstTensorView view, const Where& where) {
  check_readable("multi_head_attention", name, view, view.device());
  const Shape shape = view.shape();
  for (int dim = 0; dim < view.rank(); ++dim)
    if (view.strides()[dim] == 0 && view.size(dim) > 1) view = view.slice(dim, 0, 1);
  return TensorOrView(copied(view, where)).broadcast_to(shape);
}

}  // namespace

MultiHeadAttention::SavedOptions::SavedOptions(const AttentionOptions& options, const Where& where)
    : options_(options) {
  for_each_tensor(options_, [&](const char* name, TensorOrView& tensor) {
    if (tensor) tensor = kept_copy(name, tensor, where);
  });
}

MultiHeadAttention::Saved attention_train(const MultiHeadAttention& layer,
                                          const ConstTensorView& query, const ConstTensorView& key,
                                          const ConstTensorView& value,
                                          const AttentionOptions& options, const AddedTo& to,
                                          const Where& where) {
  const MultiHeadAttentionOptions& o = layer.options();
  const bool self = !key;
  const AttentionCall call{query, self ? query : key, self ? query : value, options};
  call.check(layer);
  check_hides_no_rows(layer.device(), options, query.size(query.rank() - 2),
                      call.key.size(query.rank() - 2));
  for_each_tensor(options, [&](const char* name, const ConstTensorView& tensor) {
    if (tensor) check_readable("multi_head_attention", name, tensor, layer.device());
  });
  ProjectedCall p(layer, call, where);
  const ConstTensorView q = by_heads(p.q.view(), o.heads);
  MultiHeadAttention::Saved saved{
      .query = copied(query, where),
      .key = copied(key, where),
      .value = copied(value, where),
      .q = {},
      .k = {},
      .v = {},
      .concat = {},
      .lse = Tensor::uninitialized({q.size(0), q.size(1), q.size(2)}, statistic_type(o.type),
                                   layer.device(), where),
      .options = MultiHeadAttention::SavedOptions(options, where)};
  const ConstTensorView k = by_heads(p.k.view(), o.key_heads),
                        v = by_heads(p.v.view(), o.key_heads);
  attention(q, k, v, by_heads(p.concat, o.heads), options, {.lse = saved.lse}, where);
  clear_hidden_rows({saved.query, saved.key, saved.value}, q, k, v, options, where);
  project_output(layer, p.concat, to, where);
  saved.q = std::move(p.q);
  saved.k = std::move(p.k);
  saved.v = std::move(p.v);
  saved.concat = std::move(p.concat);
  return saved;
}

std::pair<Tensor, MultiHeadAttention::Saved> MultiHeadAttention::forward_train(
    const ConstTensorView& x, const AttentionOptions& options, const Where& where) const {
  return reporting("multi_head_attention", [&] {
    check_made("multi_head_attention", static_cast<bool>(*this));
    check_has_gradients("multi_head_attention", quantized());
    AttentionCall{x, x, x, options}.check(*this);
    check_queue("multi_head_attention", device(), where);
    Tensor y = Tensor::uninitialized(output_shape(options_, x), options_.type, device(), where);
    Saved saved = attention_train(*this, x, {}, {}, options, {y}, where);
    return std::pair{std::move(y), std::move(saved)};
  });
}

std::pair<Tensor, MultiHeadAttention::Saved> MultiHeadAttention::forward_train(
    const ConstTensorView& query, const Required<ConstTensorView>& key,
    const Required<ConstTensorView>& value, const AttentionOptions& options,
    const Where& where) const {
  return reporting("multi_head_attention", [&] {
    check_made("multi_head_attention", static_cast<bool>(*this));
    check_has_gradients("multi_head_attention", quantized());
    AttentionCall{query, key, value, options}.check(*this);
    check_queue("multi_head_attention", device(), where);
    Tensor y = Tensor::uninitialized(output_shape(options_, query), options_.type, device(), where);
    Saved saved = attention_train(*this, query, key, value, options, {y}, where);
    return std::pair{std::move(y), std::move(saved)};
  });
}

MultiHeadAttention::Gradients MultiHeadAttention::backward(const ConstTensorView& dy,
                                                           const Saved& saved,
                                                           const Where& where) const {
  return reporting("multi_head_attention", [&]() -> MultiHeadAttention::Gradients {
    check_made("multi_head_attention", static_cast<bool>(*this));
    check_has_gradients("multi_head_attention", quantized());
    const MultiHeadAttentionOptions& o = options_;
    if (!saved.query || !saved.q || saved.q.size(saved.q.view().rank() - 1) != o.heads * o.d_k)
      throw InvalidArgument("multi_head_attention: saved is not from this layer's forward_train");
    check_readable("multi_head_attention", "saved.q", saved.q, device());
    const std::int64_t width = o_ ? o.model_dim : o.heads * o.d_v;
    check_shape("multi_head_attention", "dy", dy, o.type, with_last(saved.query.shape(), width),
                device());
    check_queue("multi_head_attention", device(), where);

    // output = concat W^O + b
    LayerGradients output;
    if (o_) output = o_.backward(dy, saved.concat.view(), where);
    else output.dx = copied(dy, where);

    // concat = attention(q, k, v)
    const AttentionOptions options = saved.options.view();
    Tensor dq = like(saved.q, where), dk = like(saved.k, where), dv = like(saved.v, where);
    const auto heads_of = [&](const Tensor& x, std::int64_t heads) {
      return by_heads(x.view(), heads);
    };
    const ConstTensorView q = heads_of(saved.q, o.heads), k = heads_of(saved.k, o.key_heads);
    Gradients result{.dx = {},
                     .dquery = {},
                     .dkey = {},
                     .dvalue = {},
                     .dbias = like(options.bias, where),
                     .dsinks = like(options.sinks, where),
                     .dalibi = like(options.alibi, where),
                     .parameters = {}};
    attention_backward({.q = q,
                        .k = k,
                        .v = heads_of(saved.v, o.key_heads),
                        .out = heads_of(saved.concat, o.heads),
                        .lse = saved.lse,
                        .dout = heads_of(output.dx, o.heads)},
                       options,
                       {.dq = by_heads(dq, o.heads),
                        .dk = by_heads(dk, o.key_heads),
                        .dv = by_heads(dv, o.key_heads),
                        .dbias = result.dbias,
                        .dsinks = result.dsinks,
                        .dalibi = result.dalibi},
                       where);
    if (o.rotary) {
      rotate(*o.rotary, query_places(q, k, options), by_heads(dq, o.heads), true, where);
      rotate(*o.rotary, key_places(k, options), by_heads(dk, o.key_heads), true, where);
    }

    // q = query W^Q + b, and so k and v
    const bool self = !saved.key;
    const LinearBackwardPass passes[] = {{q_, dq, saved.query},
                                         {k_, dk, self ? saved.query : saved.key},
                                         {v_, dv, self ? saved.query : saved.value}};
    std::vector<LayerGradients> list = linear_backward(passes, where);
    LayerGradients &query = list[0], &key = list[1], &value = list[2];
    if (self) {
      add_to(query.dx, key.dx, where);
      add_to(query.dx, value.dx, where);
      result.dx = std::move(query.dx);
    } else {
      result.dquery = std::move(query.dx);
      result.dkey = std::move(key.dx);
      result.dvalue = std::move(value.dx);
    }
    attend::append(result.parameters, "q.", std::move(query.parameters));
    attend::append(result.parameters, "k.", std::move(key.parameters));
    attend::append(result.parameters, "v.", std::move(value.parameters));
    attend::append(result.parameters, "o.", std::move(output.parameters));
    return result;
  });
}

}  // namespace attend
