// attention, attention_backward, partial states, merge, weights_shape.
#include "bindings.h"
#include "call.h"

#include <nanobind/stl/vector.h>

namespace attend::python {
namespace {

using namespace nb::literals;

nb::object forward(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle return_lse,
                   nb::handle return_weights, nb::handle return_scores, nb::handle weight_heads,
                   GivenContext context, const nb::kwargs& keywords) {
  constexpr const char* where = "attention";
  const Inputs in(q, k, v, where, Devices::any);
  const Options options(keywords, where, Devices::any);
  const Wanted wanted(return_lse, return_weights, return_scores, weight_heads, where);
  const Place place(where, in.q, context_or_default(context));
  Results results(in, options.get(), wanted, out, where, place);
  place.run([&](const Where& at) {
    attention(in.q, in.k, in.v, results.out(), options.get(), results.outputs(), at);
  });
  return results.to_python(q);
}

nb::object backward(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse,
                    nb::handle dout, nb::handle dlse, GivenContext context,
                    const nb::kwargs& keywords) {
  constexpr const char* where = "attention_backward";
  const Inputs in(q, k, v, where, Devices::any);
  const BackwardArrays more(out, lse, dout, dlse, where, Devices::any);
  const Options options(keywords, where, Devices::any);
  const Place place(where, in.q, context_or_default(context));
  Gradients gradients(in, options.get(), place);
  place.run([&](const Where& at) {
    attention_backward(inputs_of(in, more), options.get(), gradients.views(), at);
  });
  return gradients.to_python(q);
}

std::vector<nb::object> list_of_arrays(nb::handle value, const char* where, const char* name) {
  std::vector<nb::object> list;
  if (!nb::try_cast(value, list))
    raise_type_error(std::string(where) + ": " + name + " takes a list of arrays, found " +
                     name_of_type(value));
  return list;
}

nb::object merge_parts(nb::handle all_o, nb::handle all_lse, nb::handle out, GivenContext context) {
  constexpr const char* where = "merge";
  const auto o = list_of_arrays(all_o, where, "o"), lse = list_of_arrays(all_lse, where, "lse");
  std::vector<Array> arrays;
  const auto views = [&](const std::vector<nb::object>& objects, const char* name) {
    std::vector<ConstTensorView> list;
    for (const nb::object& object : objects) {
      arrays.push_back(read(object, {where, name, Kind::floating, false, Devices::any}));
      list.push_back(arrays.back().view);
    }
    return list;
  };
  const auto o_views = views(o, "o"), lse_views = views(lse, "lse");
  if (o.empty() || lse.empty()) throw InvalidArgument("merge: there are no parts to merge");
  WritableArray given = write(out, {where, "out", Kind::floating, true, Devices::any});
  const Place place(where, o[0], o_views[0].device(), context_or_default(context));
  NewArray joined, joined_lse = place.make(lse_views[0].shape(), lse_views[0].dtype());
  if (out.is_none()) joined = place.make(o_views[0].shape(), o_views[0].dtype());
  place.run([&](const Where& at) {
    attend::merge(o_views, lse_views, out.is_none() ? joined.view() : given.view, joined_lse.view(),
                  at);
  });
  nb::object result = out.is_none() ? joined.to_python(o[0]) : nb::borrow(out);
  return nb::make_tuple(result, joined_lse.to_python(o[0]));
}

nb::object add_to_state(nb::handle q, nb::handle k, nb::handle v, nb::handle state,
                        GivenContext context, const nb::kwargs& keywords) {
  constexpr const char* where = "attention_partial";
  const Inputs in(q, k, v, where, Devices::any);
  const Options options(keywords, where, Devices::any);
  WritableArray given = write(state, {where, "state", Kind::floating, true, Devices::any});
  const Place place(where, in.q, context_or_default(context));
  NewArray made;
  if (state.is_none()) made = place.zeros(partial_state_shape(in.q, in.v), DType::f64);
  place.run([&](const Where& at) {
    attention_partial(in.q, in.k, in.v, state.is_none() ? made.view() : given.view, options.get(),
                      at);
  });
  return state.is_none() ? made.to_python(q) : nb::borrow(state);
}

// The states, and the arrays that hold them.
struct States {
  std::vector<Array> arrays;
  std::vector<ConstTensorView> views;
  States(nb::handle states, const char* where) {
    const auto list = list_of_arrays(states, where, "states");
    if (list.empty()) throw InvalidArgument(std::string(where) + ": there are no states");
    for (const nb::object& state : list) {
      arrays.push_back(read(state, {where, "states", Kind::floating, false, Devices::any}));
      views.push_back(arrays.back().view);
    }
  }
};

nb::object merge_states(nb::handle states, GivenContext context) {
  constexpr const char* where = "merge_partial";
  const States given(states, where);
  const Place place(where, given.arrays[0], context_or_default(context));
  NewArray joined = place.make(given.views[0].shape(), DType::f64);
  place.run([&](const Where& at) { merge_partial(given.views, joined.view(), at); });
  return joined.to_python(given.arrays[0].object);
}

nb::object finish_states(nb::handle states, nb::handle out, nb::handle return_lse,
                         GivenContext context) {
  constexpr const char* where = "finish_partial";
  const bool with_lse = number<bool>(return_lse, where, "return_lse", "True or False");
  const States parts(states, where);
  WritableArray given = write(out, {where, "out", Kind::floating, true, Devices::any});
  const Place place(where, parts.arrays[0], context_or_default(context));
  NewArray made, lse;
  const Shape shape = parts.views[0].shape();
  if (out.is_none() && shape.rank() == 4 && shape[3] > 4)
    made = place.make({shape[0], shape[1], shape[2], shape[3] - 4}, DType::f64);
  if (with_lse && shape.rank() == 4) lse = place.make({shape[0], shape[1], shape[2]}, DType::f64);
  place.run([&](const Where& at) {
    finish_partial(parts.views, out.is_none() ? made.view() : given.view, lse.view(), at);
  });
  const nb::object& like = parts.arrays[0].object;
  nb::object result = out.is_none() ? made.to_python(like) : nb::borrow(out);
  if (!with_lse) return result;
  return nb::make_tuple(result, lse.to_python(like));
}

nb::tuple shape_of_weights(nb::handle q, nb::handle k, nb::handle v, const nb::kwargs& keywords) {
  const Inputs in(q, k, v, "weights_shape", Devices::any);
  const Options options(keywords, "weights_shape", Devices::any);
  return to_tuple(weights_shape(in.q, in.k, in.v, options.get()));
}

}  // namespace

void bind_attention(nb::module_& m) {
  const auto no_context = nb::arg("context") = nb::none();
  // Twice, for the stub: what is returned depends on what is asked for. The first takes all calls.
  m.def("attention", forward, "q"_a.none(), "k"_a.none(), "v"_a.none(), nb::kw_only(),
        "out"_a = nb::none(), "return_lse"_a.none() = false, "return_weights"_a.none() = false,
        "return_scores"_a = nb::none(), "weight_heads"_a = nb::none(), no_context, "options"_a,
        nb::sig("def attention(q: ArrayT, k: Array, v: Array, *, " ATTEND_OPTIONS
                "out: ArrayT | None = None, " ATTEND_NOTHING_ELSE
                "context: Context | None = None) -> ArrayT"),
        R"(Softmax attention: out = softmax(scale * q . k^T + ...) . v

    q    [batch, heads, queries, d]        k [batch, key heads, keys, d]
    out  [batch, heads, queries, dv]       v [batch, key heads, keys, dv]

heads must be a multiple of key heads: query head h uses key head h / (heads / key heads). q is
float64, float32, bfloat16 or float16; k and v are of that type, or each bfloat16, float16 or int8
with scales; gradients and statistics of these are some 50 times slower. Query i is at
position i + query_offset, key j at j + key_offset; by default the last query is at the last key.

scale                1 / sqrt(d) if None
softcap              s = softcap * tanh(s / softcap); 0: none. The bias is added after it, or
                     before it with bias_before_softcap
causal               key j is visible iff j + key_offset <= i + query_offset
window               (left, right): keys from `left` before to `right` behind; None: no limit
query_offset         a number, or integers [batch]
key_offset           the position of key 0, in a call on a part of the keys; with causal, window or
                     alibi, query_offset must then be given too
mask                 bool or integers, 0 = hidden, [batch, heads, queries, keys] or what broadcasts
                     to it; keys past the end of a shorter mask are hidden
bias                 floats that are added to the scores, broadcast likewise; -inf hides
alibi, sinks         [heads]: slopes, and scores of a key without value
blocks               (visible, query_size, key_size): block-sparse attention
key_lengths          integers [batch]: keys from there on are hidden
cu_seqlens_q, _k     integers [sequences + 1]: packed sequences in q [1, heads, total, d]
max_q, max_k         packed: queries and keys of the longest sequence or more, the sizes of weights,
                     scores, mask and bias; None: of the longest
block_table          integers [batch, pages]: k and v are pages [pages, key heads, page size, d]
k_scales, v_scales   float32 [batch, key heads, keys]: key j is k[j] * k_scales[j], a value likewise
dropout              (p, seed, offset)
out                  an array to write into, which is also returned
return_lse           also the log of the sum of exp of the scores, [batch, heads, queries], float32,
                     or float64 if q or `out` is
return_weights       also the weights [batch, heads, queries, keys], before dropout
return_scores        also the scores: 'raw', 'softcapped' or 'masked'
weight_heads         with return_weights: a list of heads; weights are of these alone, [batch, chosen
                     heads, queries, keys], with the bits that they have among those of all

Returns out, or a tuple (out, lse, weights, scores) of those that were asked for, as arrays of the
library that q is from.

>>> q = numpy.ones((1, 2, 3, 4), 'float32')
>>> attend.attention(q, q, q, causal=True).shape
(1, 2, 3, 4)
)");

  m.def("attention", forward, "q"_a.none(), "k"_a.none(), "v"_a.none(), nb::kw_only(),
        "out"_a = nb::none(), "return_lse"_a.none() = false, "return_weights"_a.none() = false,
        "return_scores"_a = nb::none(), "weight_heads"_a = nb::none(), no_context, "options"_a,
        nb::sig("def attention(q: ArrayT, k: Array, v: Array, *, " ATTEND_OPTIONS
                "out: ArrayT | None = None, " ATTEND_MORE
                "context: Context | None = None) -> tuple[ArrayT, ...]"));

  m.def("attention_backward", backward, "q"_a.none(), "k"_a.none(), "v"_a.none(), "out"_a, "lse"_a,
        "dout"_a, nb::kw_only(), "dlse"_a = nb::none(), no_context, "options"_a,
        nb::sig("def attention_backward(q: ArrayT, k: Array, v: Array, out: Array, lse: Array, "
                "dout: Array, *, " ATTEND_OPTIONS
                "dlse: Array | None = None, context: Context | None = None) -> Any"),
        R"(Gradients of a loss, given its gradient dout at `out` and, if that is used, dlse at lse.

out and lse are what attention() gave for the same q, k, v and options. Returns (dq, dk, dv), of the
shapes and types of q, k, v, None for int8; with bias, sinks or alibi a BackwardResult, which has
dbias, dsinks and dalibi as well.

>>> q = numpy.ones((1, 2, 3, 4), 'float32')
>>> out, lse = attend.attention(q, q, q, return_lse=True)
>>> dq, dk, dv = attend.attention_backward(q, q, q, out, lse, numpy.ones_like(out))
>>> dv.shape
(1, 2, 3, 4)
)");

  m.def("attention_partial", add_to_state, "q"_a.none(), "k"_a.none(), "v"_a.none(),
        "state"_a = nb::none(), nb::kw_only(), no_context, "options"_a,
        nb::sig("def attention_partial(q: ArrayT, k: Array, v: Array, state: ArrayT | None = None, "
                "*, " ATTEND_OPTIONS "context: Context | None = None) -> ArrayT"),
        R"(Adds these keys to a partial state: the sums of all keys so far, before the division.

A state is a float64 array [batch, heads, queries, dv + 4]; zeros are an empty one, and without a
state a new one is begun. key_offset says where the part's keys begin. Keys that come in ascending
order, cut at multiples of 256, leave a state from which finish_partial() makes the bits of the
undivided call. Sinks are counted once, with the first keys. Returns the state.

>>> q = numpy.ones((1, 1, 2, 4), 'float32'); k = numpy.ones((1, 1, 300, 4), 'float32')
>>> state = None
>>> for at, end in ((0, 256), (256, 300)):
...     part = k[:, :, at:end]
...     state = attend.attention_partial(q, part, part, state, causal=True, query_offset=298,
...                                      key_offset=at)
>>> out = attend.finish_partial([state], out=numpy.empty_like(q))
>>> bool((out == attend.attention(q, k, k, causal=True)).all())
True
)");

  m.def("merge_partial", merge_states, "states"_a.none(), nb::kw_only(), no_context,
        nb::sig("def merge_partial(states: Sequence[ArrayT], *, context: Context | None = None) "
                "-> ArrayT"),
        R"(Joins partial states over disjoint parts of the keys, in the order given, into a new one.

If every part after the first lies between two multiples of 256, the bits are those of one state to
which all keys were added in turn; otherwise they differ by some units in the last place of float64.

>>> q = numpy.ones((1, 1, 2, 4))
>>> attend.merge_partial([attend.attention_partial(q, q, q), numpy.zeros((1, 1, 2, 8))]).shape
(1, 1, 2, 8)
)");

  m.def("finish_partial", finish_states, "states"_a.none(), nb::kw_only(), "out"_a = nb::none(),
        "return_lse"_a.none() = false, no_context,
        nb::sig("def finish_partial(states: Sequence[ArrayT], *, out: ArrayT | None = None, "
                "return_lse: bool = False, context: Context | None = None) -> Any"),
        R"(The result of attention from partial states, which are joined in the order given.

Returns out, or (out, lse): float64, or what is given as `out`.

>>> q = numpy.ones((1, 1, 2, 4))
>>> state = attend.attention_partial(q, q, q)
>>> bool((attend.finish_partial([state]) == attend.attention(q, q, q)).all())
True
)");

  m.def(
      "merge", merge_parts, "o"_a.none(), "lse"_a.none(), nb::kw_only(), "out"_a = nb::none(),
      no_context,
      nb::sig("def merge(o: Sequence[ArrayT], lse: Sequence[Array], *, out: ArrayT | None = None, "
              "context: Context | None = None) -> tuple[ArrayT, ArrayT]"),
      R"(Joins results over disjoint parts of the keys, in the order given.

o[n] [batch, heads, queries, dv] and lse[n] [batch, heads, queries] are what attention() gave for
the nth part. Returns (out, lse) of all the keys. Give each part its key_offset, and with causal,
window or alibi query_offset too. These are rounded results: the join is near the undivided call, to
about 16 * 2^-53 * (|lse| + 32) in float64, and is refused where |lse| is so large that lse does not
tell how much a part weighs. Partial states (attention_partial) have the bits, and no such limit.

>>> q = numpy.ones((1, 1, 2, 4)); k = numpy.ones((1, 1, 6, 4))
>>> parts = [attend.attention(q, x, x, return_lse=True) for x in (k[:, :, :2], k[:, :, 2:])]
>>> out, lse = attend.merge([o for o, _ in parts], [lse for _, lse in parts])
>>> bool(abs(out - attend.attention(q, k, k)).max() < 1e-12)
True
)");

  m.def("weights_shape", shape_of_weights, "q"_a.none(), "k"_a.none(), "v"_a.none(), "options"_a,
        nb::sig("def weights_shape(q: Array, k: Array, v: Array, **options: Any) -> "
                "tuple[int, ...]"),
        R"(The shape of the weights and scores of such a call.

>>> q, k = numpy.ones((1, 2, 3, 4)), numpy.ones((1, 2, 5, 4))
>>> attend.weights_shape(q, k, k)
(1, 2, 3, 5)
)");
}

}  // namespace attend::python
