// Projections, split, attend, concat, W^O; and the same backwards. Nothing is moved to split or to
// concatenate: the projections' rows are seen as [batch, heads, length, d] by their strides.
#include <attend/multi_head_attention.h>
#include <attend/option_list.h>

#include "api/lease.h"
#include "api/tensor_memory.h"
#include "core/problem.h"
#include "core/text.h"
#include "layer/check.h"
#include "layer/elementwise.h"
#include "layer/hidden_rows.h"
#include "layer/initialise.h"
#include "layer/linear.h"
#include "layer/lists.h"
#include "layer/multi_head_attention.h"
#include "layer/rotary.h"
#include "layer/rows.h"

#include <cmath>
#include <limits>
#include <utility>

namespace attend {
namespace {

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw InvalidArgument(text("multi_head_attention: ", parts...));
}

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
                      DType type) {
  if (!linear) fail(name, " is not given");
  if (linear.out() != out || linear.in() != in)
    fail(name, ".weight is ", linear.weight().shape(), "; as [out, in] it must be [", out, ", ", in,
         "]");
  if (linear.dtype() != type) fail(name, ".weight is ", linear.dtype(), ", the layer ", type);
}

void check_rows(const char* name, const ConstTensorView& x, const char* width_name,
                std::int64_t width, DType type) {
  if (!x) fail(name, " is not given");
  if ((x.rank() != 2 && x.rank() != 3) || x.size(x.rank() - 1) != width)
    fail(name, " is ", x.shape(), "; it must be [batch, length, ", width_name, "] or [length, ",
         width_name, "] with ", width_name, " ", width);
  if (x.dtype() != type) fail(name, " is ", x.dtype(), ", the layer ", type);
}

void no_pages_or_parts(const AttentionOptions& options) {
  if (options.block_table) fail("block_table is given; a layer takes paged keys as a KvCache");
  if (options.key_offset)
    fail("key_offset is given; a layer attends to all of its keys, parts are for attention()");
}

Tensor like(const Tensor& tensor, const Where& where) {
  return where.context().make_tensor(tensor.shape(), tensor.dtype());
}
Tensor like(const ConstTensorView& view, const Where& where) {
  return view ? where.context().make_tensor(view.shape(), view.dtype()) : Tensor();
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
  return ConstTensorView(x.data(), x.dtype(), {batch, heads, length, d},
                         {length * width, d, width, 1});
}

TensorView by_heads(const TensorView& x, std::int64_t heads) {
  const ConstTensorView view = by_heads(static_cast<const ConstTensorView&>(x), heads);
  return TensorView(x.data(), x.dtype(), view.shape(), view.strides());
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
    check_projection("q", q_, c.heads * c.d_k, c.model_dim, c.type);
    check_projection("k", k_, c.key_heads * c.d_k, c.key_dim, c.type);
    check_projection("v", v_, c.key_heads * c.d_v, c.value_dim, c.type);
    if (o_ && !c.output_projection) fail("o is given, but output_projection is false");
    if (c.output_projection) check_projection("o", o_, c.model_dim, c.heads * c.d_v, c.type);
  });
  options_.bias = q_.bias() || k_.bias() || v_.bias() || (o_ && o_.bias());
}

// ---- forward -----------------------------------------------------------------------------------

void AttentionCall::check(const MultiHeadAttentionOptions& o) const {
  check_rows("query", query, "model_dim", o.model_dim, o.type);
  check_rows("key", key, "key_dim", o.key_dim, o.type);
  check_rows("value", value, "value_dim", o.value_dim, o.type);
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

// Projections in memory of the Context: nothing is allocated after the first call.
class LeasedProjections {
 public:
  LeasedProjections(const ProjectedShapes& shapes, DType type, const Where& where)
      : lease_(where, bytes(shapes.q, type) + bytes(shapes.k, type) + bytes(shapes.v, type) +
                          bytes(shapes.concat, type)),
        next_(lease_.data()), projections{next(shapes.q, type), next(shapes.k, type),
                                          next(shapes.v, type), next(shapes.concat, type)} {}

 private:
  static std::size_t bytes(const Shape& shape, DType type) {
    constexpr std::size_t kAlignment = 64;
    const auto bytes =
        static_cast<std::size_t>(element_count(shape)) * static_cast<std::size_t>(size_of(type));
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  TensorView next(const Shape& shape, DType type) {
    return {std::exchange(next_, next_ + bytes(shape, type)), type, shape};
  }
  Lease lease_;
  std::byte* next_;

 public:
  const Projections projections;
};

}  // namespace

ProjectedCall::ProjectedCall(const MultiHeadAttention& layer, const AttentionCall& call,
                             const Where& where) {
  check_made("multi_head_attention", static_cast<bool>(layer));
  const MultiHeadAttentionOptions& o = layer.options();
  call.check(o);
  const ProjectedShapes shapes(o, call);
  q = where.context().make_tensor(shapes.q, o.type);
  k = where.context().make_tensor(shapes.k, o.type);
  v = where.context().make_tensor(shapes.v, o.type);
  concat = where.context().make_tensor(shapes.concat, o.type);
  project(layer, call, {q, k, v, concat}, where);
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
  rotate(*o.rotary, query_positions(q, k, call.options), q, false, where);
  rotate(*o.rotary, key_positions(k, call.options), k, false, where);
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
    const MultiHeadAttentionOptions& o = options_;
    const AttentionCall call{query, key, value, options};
    check_made("multi_head_attention", static_cast<bool>(*this));
    call.check(o);
    const ProjectedShapes shapes(o, call);
    const LeasedProjections leased(shapes, o.type, where);
    const auto& [q, k, v, concat] = leased.projections;
    project(*this, call, leased.projections, where);
    if (!o_) {
      Tensor y = where.context().make_tensor(shapes.concat, o.type);
      attention(by_heads(q, o.heads), by_heads(k, o.key_heads), by_heads(v, o.key_heads),
                by_heads(y, o.heads), options, outputs, where);
      return y;
    }
    attention(by_heads(q, o.heads), by_heads(k, o.key_heads), by_heads(v, o.key_heads),
              by_heads(concat, o.heads), options, outputs, where);
    return o_.forward(concat, where);
  });
}

// ---- training ----------------------------------------------------------------------------------

namespace {

// A copy that the options keep. What strides of 0 repeat is stored once.
TensorOrView kept_copy(ConstTensorView view) {
  const Shape shape = view.shape();
  for (int dim = 0; dim < view.rank(); ++dim)
    if (view.strides()[dim] == 0 && view.size(dim) > 1) view = view.slice(dim, 0, 1);
  return TensorOrView(Tensor::copy_of(view)).broadcast_to(shape);
}

}  // namespace

MultiHeadAttention::SavedOptions::SavedOptions(const AttentionOptions& options)
    : options_(options) {
  for_each_tensor(options_, [](const char*, TensorOrView& tensor) {
    if (tensor) tensor = kept_copy(tensor);
  });
}

std::pair<Tensor, MultiHeadAttention::Saved> MultiHeadAttention::forward_train(
    const ConstTensorView& x, const AttentionOptions& options, const Where& where) const {
  return train(x, x, x, true, options, where);
}

std::pair<Tensor, MultiHeadAttention::Saved> MultiHeadAttention::forward_train(
    const ConstTensorView& query, const Required<ConstTensorView>& key,
    const Required<ConstTensorView>& value, const AttentionOptions& options,
    const Where& where) const {
  return train(query, key, value, false, options, where);
}

std::pair<Tensor, MultiHeadAttention::Saved> MultiHeadAttention::train(
    const ConstTensorView& query, const ConstTensorView& key, const ConstTensorView& value,
    bool self, const AttentionOptions& options, const Where& where) const {
  return reporting("multi_head_attention", [&] {
    const MultiHeadAttentionOptions& o = options_;
    ProjectedCall p(*this, {query, key, value, options}, where);
    const ConstTensorView q = by_heads(p.q.view(), o.heads);
    Saved saved{.query = copied(query, where),
                .key = self ? Tensor() : Tensor::copy_of(key),
                .value = self ? Tensor() : Tensor::copy_of(value),
                .q = {},
                .k = {},
                .v = {},
                .concat = {},
                .lse = where.context().make_tensor({q.size(0), q.size(1), q.size(2)},
                                                   statistic_type(o.type)),
                .options = SavedOptions(options)};
    const ConstTensorView k = by_heads(p.k.view(), o.key_heads),
                          v = by_heads(p.v.view(), o.key_heads);
    attention(q, k, v, by_heads(p.concat, o.heads), options, {.lse = saved.lse}, where);
    clear_hidden_rows({saved.query, saved.key, saved.value}, q, k, v, options, where);
    Tensor y = o_ ? o_.forward(p.concat, where) : p.concat;
    saved.q = std::move(p.q);
    saved.k = std::move(p.k);
    saved.v = std::move(p.v);
    saved.concat = std::move(p.concat);
    return std::pair{std::move(y), std::move(saved)};
  });
}

MultiHeadAttention::Gradients MultiHeadAttention::backward(const ConstTensorView& dy,
                                                           const Saved& saved,
                                                           const Where& where) const {
  return reporting("multi_head_attention", [&]() -> MultiHeadAttention::Gradients {
    check_made("multi_head_attention", static_cast<bool>(*this));
    const MultiHeadAttentionOptions& o = options_;
    if (!saved.query || !saved.q || saved.q.size(saved.q.view().rank() - 1) != o.heads * o.d_k)
      fail("saved is not from this layer's forward_train");
    const std::int64_t width = o_ ? o.model_dim : o.heads * o.d_v;
    check_shape("multi_head_attention", "dy", dy, o.type, with_last(saved.query.shape(), width));

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
      rotate(*o.rotary, query_positions(q, k, options), by_heads(dq, o.heads), true, where);
      rotate(*o.rotary, key_positions(k, options), by_heads(dk, o.key_heads), true, where);
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
