// The results of a call, as tensors and as Python's arrays.
#include "call.h"

#include <nanobind/stl/vector.h>

namespace attend::python {
namespace {

// [batch, heads, queries], and the last dimension of v behind it if there is one. What is wrong
// with other ranks is for the library to say; until then they get any shape of the right rank.
Shape like_queries(const ConstTensorView& q, const ConstTensorView* v) {
  const bool known = q.rank() == 4 && (!v || v->rank() == 4);
  if (!v) return known ? Shape{q.size(0), q.size(1), q.size(2)} : Shape{0, 0, 0};
  return known ? Shape{q.size(0), q.size(1), q.size(2), v->size(3)} : Shape{0, 0, 0, 0};
}

}  // namespace

void Wanted::choose(nb::handle list, const char* where) {
  const std::string start = std::string(where) + ": weight_heads ";
  std::vector<nb::object> entries;
  if (nb::isinstance<nb::str>(list) || !nb::try_cast(list, entries))
    raise_type_error(start + "takes a list of heads, found " + name_of_type(list));
  if (entries.empty())
    throw InvalidArgument(start +
                          "is an empty list; None is all heads, and without weights leave "
                          "return_weights out");
  if (!weights)
    throw InvalidArgument(start + "is given, but weights are not asked for; return_weights=True");
  for (const nb::object& entry : entries)
    heads.push_back(number<std::int64_t>(entry, where, "weight_heads", "whole numbers"));
}

Results::Results(const Inputs& in, const AttentionOptions& options, const Wanted& wanted,
                 nb::handle out, const char* where, const Context& context)
    : given_(nb::borrow(out)), given_view_(write(out, {where, "out", Kind::floating, true})) {
  const ConstTensorView& q = in.q;
  const ConstTensorView& v = in.v;
  if (out.is_none()) out_ = context.make_tensor(like_queries(q, &v), q.dtype());
  if (wanted.lse) {
    const bool wide = q.dtype() == DType::f64 || this->out().dtype() == DType::f64;
    const DType type = wide ? DType::f64 : DType::f32;
    lse_ = context.make_tensor(like_queries(q, nullptr), type);
  }
  if (!wanted.weights && !wanted.scores) return;
  const Shape shape = weights_shape(q, in.k, v, options);
  heads_ = wanted.heads;
  if (wanted.weights) weights_ = context.make_tensor(wanted.chosen(shape), q.dtype());
  if (wanted.scores) {
    scores_ = context.make_tensor(shape, q.dtype());
    stage_ = *wanted.scores;
  }
}

AttentionOutputs Results::outputs() {
  return {.lse = lse_.view(),
          .weights = weights_.view(),
          .weight_heads = heads_,
          .scores = scores_.view(),
          .stage = stage_};
}

nb::object Results::to_python(nb::handle like) {
  nb::object out = given_.is_none() ? python::to_python(std::move(out_), like) : std::move(given_);
  if (!lse_ && !weights_ && !scores_) return out;
  nb::list list;
  list.append(out);
  for (Tensor* tensor : {&lse_, &weights_, &scores_}) {
    if (*tensor) list.append(python::to_python(std::move(*tensor), like));
  }
  return nb::tuple(list);
}

BackwardResult empty_gradients(const Inputs& in, const AttentionOptions& options,
                               const Context& context) {
  const auto like = [&](const ConstTensorView& view) {
    return view && is_floating_point(view.dtype()) ? context.make_tensor(view.shape(), view.dtype())
                                                   : Tensor();
  };
  return {like(in.q),         like(in.k),          like(in.v),
          like(options.bias), like(options.sinks), like(options.alibi)};
}

AttentionGradients views_of(BackwardResult& result) {
  return {.dq = result.dq.view(),
          .dk = result.dk.view(),
          .dv = result.dv.view(),
          .dbias = result.dbias.view(),
          .dsinks = result.dsinks.view(),
          .dalibi = result.dalibi.view()};
}

nb::object to_python(BackwardResult&& result, nb::handle like) {
  const bool more = result.dbias || result.dsinks || result.dalibi;
  nb::list list;
  for (Tensor* tensor : {&result.dq, &result.dk, &result.dv}) {
    list.append(to_python(std::move(*tensor), like));
  }
  if (!more) return nb::tuple(list);
  for (Tensor* tensor : {&result.dbias, &result.dsinks, &result.dalibi}) {
    list.append(to_python(std::move(*tensor), like));
  }
  return nb::module_::import_("attend._types").attr("BackwardResult")(*list);
}

}  // namespace attend::python
