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
                 nb::handle out, const char* where, const Place& place)
    : given_(nb::borrow(out)),
      given_view_(write(out, {where, "out", Kind::floating, true, in.devices})) {
  const ConstTensorView& q = in.q;
  const ConstTensorView& v = in.v;
  if (out.is_none()) out_ = place.make(like_queries(q, &v), q.dtype());
  if (wanted.lse) {
    const bool wide = q.dtype() == DType::f64 || this->out().dtype() == DType::f64;
    const DType type = wide ? DType::f64 : DType::f32;
    lse_ = place.make(like_queries(q, nullptr), type);
  }
  if (!wanted.weights && !wanted.scores) return;
  const Shape shape = weights_shape(q, in.k, v, options);
  heads_ = wanted.heads;
  if (wanted.weights) weights_ = place.make(wanted.chosen(shape), q.dtype());
  if (wanted.scores) {
    scores_ = place.make(shape, q.dtype());
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
  nb::object out = given_.is_none() ? out_.to_python(like) : std::move(given_);
  if (!lse_ && !weights_ && !scores_) return out;
  nb::list list;
  list.append(out);
  for (NewArray* array : {&lse_, &weights_, &scores_}) {
    if (*array) list.append(array->to_python(like));
  }
  return nb::tuple(list);
}

Gradients::Gradients(const Inputs& in, const AttentionOptions& options, const Place& place) {
  const auto like = [&](const ConstTensorView& view) {
    return view && is_floating_point(view.dtype()) ? place.make(view.shape(), view.dtype())
                                                   : NewArray();
  };
  dq_ = like(in.q);
  dk_ = like(in.k);
  dv_ = like(in.v);
  dbias_ = like(options.bias);
  dsinks_ = like(options.sinks);
  dalibi_ = like(options.alibi);
}

AttentionGradients Gradients::views() const {
  return {.dq = dq_.view(),
          .dk = dk_.view(),
          .dv = dv_.view(),
          .dbias = dbias_.view(),
          .dsinks = dsinks_.view(),
          .dalibi = dalibi_.view()};
}

nb::object Gradients::to_python(nb::handle like) {
  const auto give = [&](nb::list& list, NewArray& array) {
    list.append(array ? array.to_python(like) : nb::none());
  };
  const bool more = dbias_ || dsinks_ || dalibi_;
  nb::list list;
  for (NewArray* array : {&dq_, &dk_, &dv_}) give(list, *array);
  if (!more) return nb::tuple(list);
  for (NewArray* array : {&dbias_, &dsinks_, &dalibi_}) give(list, *array);
  return nb::module_::import_("attend._types").attr("BackwardResult")(*list);
}

}  // namespace attend::python
