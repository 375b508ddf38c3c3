// Projections, split, attend, concat, W^O. Nothing is moved to split or to concatenate: the
// projections' rows are seen as [batch, heads, length, d] by their strides.
#include <attend/multi_head_attention.h>
#include <attend/option_list.h>

#include "layer/check.h"
#include "layer/elementwise.h"
#include "layer/initialise.h"
#include "layer/linear.h"
#include "layer/multi_head_attention.h"
#include "layer/rotary.h"
#include "layer/rows.h"
#include "layer/scratch.h"
#include "layer/tensors.h"

#include <cmath>
#include <limits>
#include <utility>

namespace attend {
namespace {

using multi_head::fail;

// Of a width that nobody has, not all are looked for.
std::string divisors(std::int64_t n) {
  std::string list;
  for (std::int64_t d = 1; d <= n && d <= 65536; ++d)
    if (n % d == 0) list += (list.empty() ? "" : " ") + std::to_string(d);
  return list;
}

void fill_in_rotary(MultiHeadAttentionOptions& o) {
  Rotary& rotary = *o.rotary;
  if (rotary.dim == 0) rotary.dim = o.d_k;
  if (rotary.dim < 0 || rotary.dim > o.d_k || rotary.dim % 2 != 0)
    fail("rotary.dim is ", rotary.dim, "; it must be even and at most d_k ", o.d_k);
  check_choice("multi_head_attention", "rotary.pairing", rotary.pairing, 2);
  if (!(rotary.base > 0) || !std::isfinite(rotary.base))
    fail("rotary.base is ", rotary.base, "; it must be finite and above 0");
}

void check_projection(const char* name, const Linear& linear, std::int64_t out, std::int64_t in,
                      DType type, Device device) {
  if (!linear) fail(name, " is not given");
  if (linear.device() != device)
    fail(name, ".weight is on ", linear.device(), ", q.weight on ", device,
         "; all must be on one device");
  if (linear.out() != out || linear.in() != in)
    fail(name, ".weight is ", linear.weight().shape(), "; as [out, in] it must be [", out, ", ", in,
         "]");
  if (linear.dtype() != type) fail(name, ".weight is ", linear.dtype(), ", the layer ", type);
}

void check_rows(const char* name, const ConstTensorView& x, const char* width_name,
                std::int64_t width, DType type, Device device) {
  check_readable("multi_head_attention", name, x, device);
  if ((x.rank() != 2 && x.rank() != 3) || x.size(x.rank() - 1) != width)
    fail(name, " is ", x.shape(), "; it must be [batch, length, ", width_name, "] or [length, ",
         width_name, "] with ", width_name, " ", width);
  if (x.dtype() != type)
    fail(name, " is ", x.dtype(), ", the layer is ", type, "; convert it, or the layer with to()");
}

void no_pages_or_parts(const AttentionOptions& options) {
  if (options.block_table) fail("block_table is given; a layer takes paged keys as a KvCache");
  if (options.key_offset)
    fail("key_offset is given; a layer attends to all of its keys, parts are for attention()");
}

}  // namespace

MultiHeadAttentionOptions filled_in(MultiHeadAttentionOptions o) {
  const auto at_least_1 = [](const char* name, std::int64_t value) {
    if (value < 1) fail(name, " is ", value, "; it must be at least 1");
  };
  at_least_1("model_dim", o.model_dim);
  at_least_1("heads", o.heads);
  if (o.d_k == 0 && o.model_dim % o.heads != 0)
    fail("model_dim ", o.model_dim, " is not divisible by heads ", o.heads,
         "; give d_k, or one of ", divisors(o.model_dim));
  if (o.key_heads == 0) o.key_heads = o.heads;
  if (o.d_k == 0) o.d_k = o.model_dim / o.heads;
  if (o.d_v == 0) o.d_v = o.d_k;
  if (o.key_dim == 0) o.key_dim = o.model_dim;
  if (o.value_dim == 0) o.value_dim = o.key_dim;
  at_least_1("key_heads", o.key_heads);
  at_least_1("d_k", o.d_k);
  at_least_1("d_v", o.d_v);
  at_least_1("key_dim", o.key_dim);
  at_least_1("value_dim", o.value_dim);
  if (o.heads % o.key_heads != 0)
    fail("heads ", o.heads, " is not a multiple of key_heads ", o.key_heads);
  for (const std::int64_t d : {o.d_k, o.d_v})
    if (o.heads > std::numeric_limits<std::int64_t>::max() / d)
      fail(o.heads, " heads of ", d, " features are too many");
  if (!is_floating_point(o.type)) fail("type is ", o.type, "; it must be f64, f32, bf16 or f16");
  if (o.rotary) fill_in_rotary(o);
  return o;
}

ConstTensorView by_heads(const ConstTensorView& x, std::int64_t heads) {
  const bool batched = x.rank() == 3;
  const std::int64_t batch = batched ? x.size(0) : 1, length = x.size(x.rank() - 2),
                     width = x.size(x.rank() - 1), d = width / heads;
  const std::int64_t row = x.strides()[x.rank() - 2], column = x.strides()[x.rank() - 1];
  return ConstTensorView(x.data(), x.dtype(), {batch, heads, length, d},
                         {batched ? x.strides()[0] : length * row, d * column, row, column},
                         x.device());
}

TensorView by_heads(const TensorView& x, std::int64_t heads) {
  const ConstTensorView view = by_heads(static_cast<const ConstTensorView&>(x), heads);
  return TensorView(x.data(), x.dtype(), view.shape(), view.strides(), x.device());
}

// ---- making ------------------------------------------------------------------------------------

MultiHeadAttention::MultiHeadAttention(const MultiHeadAttentionOptions& options)
    : options_(reporting("multi_head_attention", [&] { return filled_in(options); })) {
  const MultiHeadAttentionOptions& o = options_;
  const auto made = [&](const char* name, std::int64_t out, std::int64_t in) {
    return Linear(
        {.in = in, .out = out, .bias = o.bias, .type = o.type, .seed = derived_seed(o.seed, name)});
  };
  q_ = made("q", o.heads * o.d_k, o.model_dim);
  k_ = made("k", o.key_heads * o.d_k, o.key_dim);
  v_ = made("v", o.key_heads * o.d_v, o.value_dim);
  if (o.output_projection) o_ = made("o", o.model_dim, o.heads * o.d_v);
}

MultiHeadAttention::MultiHeadAttention(const MultiHeadAttentionOptions& options, Linear q, Linear k,
                                       Linear v, Linear o)
    : options_(reporting("multi_head_attention", [&] { return filled_in(options); })),
      q_(std::move(q)), k_(std::move(k)), v_(std::move(v)), o_(std::move(o)) {
  reporting("multi_head_attention", [&] {
    const MultiHeadAttentionOptions& c = options_;
    check_projection("q", q_, c.heads * c.d_k, c.model_dim, c.type, q_.device());
    check_projection("k", k_, c.key_heads * c.d_k, c.key_dim, c.type, q_.device());
    check_projection("v", v_, c.key_heads * c.d_v, c.value_dim, c.type, q_.device());
    if (o_ && !c.output_projection) fail("o is given, but output_projection is false");
    if (c.output_projection)
      check_projection("o", o_, c.model_dim, c.heads * c.d_v, c.type, q_.device());
  });
  options_.bias = q_.bias() || k_.bias() || v_.bias() || (o_ && o_.bias());
}

// ---- forward -----------------------------------------------------------------------------------

void AttentionCall::check(const MultiHeadAttention& layer) const {
  const MultiHeadAttentionOptions& o = layer.options();
  check_rows("query", query, "model_dim", o.model_dim, o.type, layer.device());
  check_rows("key", key, "key_dim", o.key_dim, o.type, layer.device());
  check_rows("value", value, "value_dim", o.value_dim, o.type, layer.device());
  if (key.rank() != query.rank() || value.rank() != query.rank())
    fail("query is ", query.shape(), ", key ", key.shape(), ", value ", value.shape(),
         "; all must have a batch dimension, or none");
  no_pages_or_parts(options);
}

namespace {

struct ProjectedShapes {
  ProjectedShapes(const MultiHeadAttentionOptions& o, const AttentionCall& call)
      : q(with_last(call.query.shape(), o.heads * o.d_k)),
        k(with_last(call.key.shape(), o.key_heads * o.d_k)),
        v(with_last(call.value.shape(), o.key_heads * o.d_v)),
        concat(with_last(call.query.shape(), o.heads * o.d_v)) {}
  Shape q, k, v, concat;
};

}  // namespace

ProjectedCall::ProjectedCall(const MultiHeadAttention& layer, const AttentionCall& call,
                             const Where& where) {
  check_made("multi_head_attention", static_cast<bool>(layer));
  const MultiHeadAttentionOptions& o = layer.options();
  call.check(layer);
  check_queue("multi_head_attention", layer.device(), where);
  const ProjectedShapes shapes(o, call);
  const auto made = [&](const Shape& shape) {
    return Tensor::uninitialized(shape, o.type, layer.device(), where);
  };
  q = made(shapes.q);
  k = made(shapes.k);
  v = made(shapes.v);
  concat = made(shapes.concat);
  project(layer, call, {q, k, v}, where);
}

void project(const MultiHeadAttention& layer, const AttentionCall& call, const Projections& to,
             const Where& where) {
  const MultiHeadAttentionOptions& o = layer.options();
  linear_forward(
      {{layer.q(), call.query, to.q}, {layer.k(), call.key, to.k}, {layer.v(), call.value, to.v}},
      where);
  if (!o.rotary) return;
  const TensorView q = by_heads(to.q, o.heads), k = by_heads(to.k, o.key_heads);
  weights_shape(q, k, by_heads(to.v, o.key_heads), call.options);  // throws if unsound
  rotate(*o.rotary, query_places(q, k, call.options), q, false, where);
  rotate(*o.rotary, key_places(k, call.options), k, false, where);
}

Shape output_shape(const MultiHeadAttentionOptions& o, const ConstTensorView& query) {
  return with_last(query.shape(), o.output_projection ? o.model_dim : o.heads * o.d_v);
}

void check_output(const MultiHeadAttention& layer, const ConstTensorView& y, const Shape& shape,
                  const AttentionOptions& options, std::initializer_list<NamedInput> others) {
  check_output("multi_head_attention", "y", y, layer.options().type, shape, layer.device());
  const auto apart_from = [&](const char* name, const ConstTensorView& other) {
    check_apart("multi_head_attention", "y", y, name, other);
  };
  for (const auto& [name, tensor] : others) apart_from(name, tensor);
  for_each_tensor(options, apart_from);
  check_apart_from_tensors("multi_head_attention", "y", y, layer);
}

namespace {

ConstTensorView visited_blocks_of(const AttentionOutputs& outputs) {
  return outputs.visited_blocks == nullptr ? ConstTensorView()
                                           : ConstTensorView(outputs.visited_blocks, {1});
}

// The outputs besides y overlap neither the inputs nor the parameters. attention(), which writes
// them, checks everything else about them.
void check_outputs(const MultiHeadAttention& layer, const AttentionCall& call,
                   const AttentionOutputs& outputs) {
  const auto apart = [&](const char* name, const ConstTensorView& written) {
    if (!written || spans_too_far(written)) return;
    check_apart("multi_head_attention", name, written, "query", call.query);
    check_apart("multi_head_attention", name, written, "key", call.key);
    check_apart("multi_head_attention", name, written, "value", call.value);
    check_apart_from_tensors("multi_head_attention", name, written, layer);
  };
  apart("lse", outputs.lse);
  apart("weights", outputs.weights);
  apart("scores", outputs.scores);
  apart("visited_blocks", visited_blocks_of(outputs));
}

}  // namespace

void project_output(const MultiHeadAttention& layer, const ConstTensorView& concat,
                    const AddedTo& to, const Where& where) {
  if (layer.o())
    linear_forward({{.linear = layer.o(), .x = concat, .y = to.y, .residual = to.residual}}, where);
  else add(concat, to.residual, to.y, where);
}

void attend_and_project(const MultiHeadAttention& layer, const ConstTensorView& q,
                        const ConstTensorView& k, const ConstTensorView& v,
                        const AttentionOptions& options, const AttentionOutputs& outputs,
                        const AddedTo& to, const Where& where) {
  const MultiHeadAttentionOptions& o = layer.options();
  const bool direct = !layer.o() && !to.residual;  // the heads' results are the output
  const Scratch scratch(where,
                        {{direct ? Shape{0} : with_last(to.y.shape(), o.heads * o.d_v), o.type}},
                        layer.device());
  const TensorView& concat = direct ? to.y : scratch.tensors[0];
  attention(q, k, v, by_heads(concat, o.heads), options, outputs, where);
  if (!direct) project_output(layer, concat, to, where);
}

void attention_forward(const MultiHeadAttention& layer, const AttentionCall& call,
                       const AttentionOutputs& outputs, const AddedTo& to, const Where& where) {
  const MultiHeadAttentionOptions& o = layer.options();
  call.check(layer);
  check_queue("multi_head_attention", layer.device(), where);
  const ProjectedShapes shapes(o, call);
  const Scratch scratch(where, {{shapes.q, o.type}, {shapes.k, o.type}, {shapes.v, o.type}},
                        layer.device());
  const auto& [q, k, v] = scratch.tensors;
  project(layer, call, {q, k, v}, where);
  attend_and_project(layer, by_heads(q, o.heads), by_heads(k, o.key_heads),
                     by_heads(v, o.key_heads), call.options, outputs, to, where);
}

void MultiHeadAttention::forward_into(const ConstTensorView& x, const TensorView& y,
                                      const AttentionOptions& options,
                                      const AttentionOutputs& outputs, const Where& where) const {
  forward_into(x, x, x, y, options, outputs, where);
}

void MultiHeadAttention::forward_into(const ConstTensorView& query,
                                      const Required<ConstTensorView>& key,
                                      const Required<ConstTensorView>& value,
                                      const Required<TensorView>& y,
                                      const AttentionOptions& options,
                                      const AttentionOutputs& outputs, const Where& where) const {
  reporting("multi_head_attention", [&] {
    const AttentionCall call{query, key, value, options};
    check_made("multi_head_attention", static_cast<bool>(*this));
    call.check(*this);
    check_output(*this, y, output_shape(options_, query), options,
                 {{"query", query},
                  {"key", key},
                  {"value", value},
                  {"lse", outputs.lse},
                  {"weights", outputs.weights},
                  {"scores", outputs.scores},
                  {"visited_blocks", visited_blocks_of(outputs)}});
    check_outputs(*this, call, outputs);
    attention_forward(*this, call, outputs, {y}, where);
  });
}

Tensor MultiHeadAttention::forward(const ConstTensorView& x, const AttentionOptions& options,
                                   const AttentionOutputs& outputs, const Where& where) const {
  return forward(x, x, x, options, outputs, where);
}

Tensor MultiHeadAttention::forward(const ConstTensorView& query,
                                   const Required<ConstTensorView>& key,
                                   const Required<ConstTensorView>& value,
                                   const AttentionOptions& options, const AttentionOutputs& outputs,
                                   const Where& where) const {
  return reporting("multi_head_attention", [&] {
    check_made("multi_head_attention", static_cast<bool>(*this));
    const AttentionCall call{query, key, value, options};
    call.check(*this);
    check_outputs(*this, call, outputs);
    check_queue("multi_head_attention", device(), where);
    Tensor y = Tensor::uninitialized(output_shape(options_, query), options_.type, device(), where);
    attention_forward(*this, call, outputs, {y}, where);
    return y;
  });
}

}  // namespace attend
