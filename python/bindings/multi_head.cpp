// MultiHeadAttention: forward, training, caches.
#include "multi_head.h"

#include "call.h"
#include "inspect.h"

namespace attend::python {
namespace {

using namespace nb::literals;
using Layer = MultiHeadAttention;

constexpr const char* kName = "MultiHeadAttention";

// Query, key and value: all three, or the query alone for self-attention.
struct LayerInputs {
  LayerInputs(nb::handle query_, nb::handle key_, nb::handle value_, const char* where,
              Devices devices = Devices::host)
      : query(read(query_, {where, "query", Kind::floating, false, devices})),
        key(read(key_, {where, "key", Kind::floating, true, devices})),
        value(read(value_, {where, "value", Kind::floating, true, devices})) {
    if (value.view && !key.view)
      throw InvalidArgument(std::string(where) + ": value is given, but no key");
    if (key.view && !value.view) value.view = key.view;
  }
  bool self() const noexcept { return !key.view; }
  Array query, key, value;
};

// A view of the right shape where the projections of x by heads will be; only its shape is used.
ConstTensorView projected(const ConstTensorView& x, std::int64_t heads, std::int64_t d) {
  const std::int64_t batch = x.rank() == 3 ? x.size(0) : 1, length = x.size(x.rank() - 2);
  return ConstTensorView(x.data(), x.dtype(), {batch, heads, length, d}, {0, 0, 0, 0}, x.device());
}

// What the layer hands out besides y.
class Extras {
 public:
  Extras(const Layer& layer, const LayerInputs& inputs, const AttentionOptions& options,
         const Wanted& wanted, const Where& where)
      : wanted_(wanted) {
    const MultiHeadAttentionOptions& o = layer.options();
    const auto make = [&](const Shape& shape, DType type) {
      return Tensor::uninitialized(shape, type, inputs.query.view.device(), where);
    };
    const ConstTensorView& query = inputs.query;
    const ConstTensorView& key = inputs.self() ? inputs.query : inputs.key;
    if (query.rank() < 2 || query.rank() > 3 || key.rank() < 2 || key.rank() > 3) return;
    const ConstTensorView q = projected(query, o.heads, o.d_k);
    if (wanted.lse) {
      const DType type = o.type == DType::f64 ? DType::f64 : DType::f32;
      lse_ = make({q.size(0), q.size(1), q.size(2)}, type);
    }
    if (!wanted.weights && !wanted.scores) return;
    const Shape shape = weights_shape(q, projected(key, o.key_heads, o.d_k),
                                      projected(key, o.key_heads, o.d_v), options);
    if (wanted.weights) weights_ = make(wanted.chosen(shape), o.type);
    if (wanted.scores) scores_ = make(shape, o.type);
  }

  AttentionOutputs outputs() {
    return {.lse = lse_.view(),
            .weights = weights_.view(),
            .weight_heads = wanted_.heads,
            .scores = scores_.view(),
            .stage = wanted_.scores.value_or(ScoreStage::masked)};
  }

  nb::object with(nb::object y, nb::handle like) {
    if (!lse_ && !weights_ && !scores_) return y;
    nb::list list;
    list.append(y);
    for (Tensor* tensor : {&lse_, &weights_, &scores_}) {
      if (*tensor) list.append(to_python(std::move(*tensor), like));
    }
    return nb::tuple(list);
  }

 private:
  Wanted wanted_;
  Tensor lse_, weights_, scores_;
};

nb::object forward(const Layer& self, nb::handle query, nb::handle key, nb::handle value,
                   nb::handle cache_or_none, nb::handle lengths, nb::handle return_lse,
                   nb::handle return_weights, nb::handle return_scores, nb::handle weight_heads,
                   GivenContext context, const nb::kwargs& keywords) {
  constexpr const char* where = "MultiHeadAttention.forward";
  const LayerInputs inputs(query, key, value, where, devices_of(self));
  const Options options(keywords, where, devices_of(self));
  const Wanted wanted(return_lse, return_weights, return_scores, weight_heads, where);
  KvCache* const cache = to_cache(cache_or_none, where, true);
  Context& used = context_or_default(context);
  check_lengths(lengths, cache, where);
  if (cache) {
    if (!inputs.self())
      throw InvalidArgument(std::string(where) +
                            ": a cache is for self-attention; "
                            "use append() and attend() for a memory");
    if (wanted.lse || wanted.weights || wanted.scores)
      throw InvalidArgument(std::string(where) +
                            ": lse, weights and scores are not given with a cache");
    const Array n = read(lengths, {where, "lengths", Kind::whole, true});
    const Change alone(cache, "KvCache");
    Tensor y = unlocked([&] { return self.forward(inputs.query, *cache, options.get(), n, used); });
    return to_python(std::move(y), query);
  }
  std::optional<Extras> extras;
  Tensor y = run_on(kName, inputs.query, used, [&](const Where& at) {
    extras.emplace(self, inputs, options.get(), wanted, at);
    if (inputs.self()) return self.forward(inputs.query, options.get(), extras->outputs(), at);
    return self.forward(inputs.query, inputs.key, inputs.value, options.get(), extras->outputs(),
                        at);
  });
  return extras->with(to_python(std::move(y), query), query);
}

nb::object forward_train(const Layer& self, nb::handle query, nb::handle key, nb::handle value,
                         GivenContext context, const nb::kwargs& keywords) {
  constexpr const char* where = "MultiHeadAttention.forward_train";
  const LayerInputs inputs(query, key, value, where, devices_of(self));
  const Options options(keywords, where, devices_of(self));
  Context& used = context_or_default(context);
  auto [y, saved] = run_on(kName, inputs.query, used, [&](const Where& at) {
    if (inputs.self()) return self.forward_train(inputs.query, options.get(), at);
    return self.forward_train(inputs.query, inputs.key, inputs.value, options.get(), at);
  });
  return nb::make_tuple(to_python(std::move(y), query), nb::cast(std::move(saved)));
}

nb::object backward(const Layer& self, nb::handle dy, const Layer::Saved& saved,
                    GivenContext context) {
  constexpr const char* where = "MultiHeadAttention.backward";
  const Array in = read(dy, {where, "dy", Kind::floating, false, devices_of(self)});
  Layer::Gradients g = run_on(kName, in, context_or_default(context),
                              [&](const Where& at) { return self.backward(in, saved, at); });
  nb::list list;
  for (Tensor* tensor : {&g.dx, &g.dquery, &g.dkey, &g.dvalue, &g.dbias, &g.dsinks, &g.dalibi}) {
    list.append(to_python(std::move(*tensor), dy));
  }
  list.append(to_python(std::move(g.parameters), dy));
  return nb::module_::import_("attend._types").attr("MultiHeadAttentionGradients")(*list);
}

Trace trace(const Layer& self, nb::handle query, nb::handle key, nb::handle value,
            GivenContext context, const nb::kwargs& keywords) {
  constexpr const char* where = "MultiHeadAttention.trace";
  const LayerInputs inputs(query, key, value, where);
  const Options options(keywords, where);
  Context& used = context_or_default(context);
  return unlocked([&] {
    if (inputs.self()) return self.trace(inputs.query, options.get(), used);
    return self.trace(inputs.query, inputs.key, inputs.value, options.get(), used);
  });
}

nb::object heads(const Layer& self, nb::handle query, nb::handle key, nb::handle value,
                 GivenContext context, const nb::kwargs& keywords) {
  constexpr const char* where = "MultiHeadAttention.heads";
  const LayerInputs inputs(query, key, value, where);
  const Options options(keywords, where);
  Context& used = context_or_default(context);
  Layer::Heads found = unlocked([&] {
    if (inputs.self()) return self.heads(inputs.query, options.get(), used);
    return self.heads(inputs.query, inputs.key, inputs.value, options.get(), used);
  });
  nb::list contribution;
  for (const double norm : found.contribution) contribution.append(norm);
  return nb::module_::import_("attend._types")
      .attr("LayerHeads")(to_python(std::move(found.q), query),
                          to_python(std::move(found.k), query),
                          to_python(std::move(found.v), query), contribution);
}

nb::object inspect(const Layer& self, nb::handle query, nb::handle key, nb::handle value,
                   std::int64_t top_k, bool key_mass, bool metrics, std::int64_t local_width,
                   nb::handle tokens, std::int64_t tile_rows, std::int64_t tile_columns,
                   GivenContext context, const nb::kwargs& keywords) {
  constexpr const char* where = "MultiHeadAttention.inspect";
  const LayerInputs inputs(query, key, value, where);
  const InspectArguments arguments({.top_k = top_k,
                                    .key_mass = key_mass,
                                    .metrics = metrics,
                                    .local_width = local_width,
                                    .tile_rows = tile_rows,
                                    .tile_columns = tile_columns},
                                   tokens, where);
  const Options options(keywords, where);
  Context& used = context_or_default(context);
  Statistics statistics = unlocked([&] {
    if (inputs.self()) return self.inspect(inputs.query, options.get(), arguments.options, used);
    return self.inspect(inputs.query, inputs.key, inputs.value, options.get(), arguments.options,
                        used);
  });
  return to_python(std::move(statistics), query);
}

void append(const Layer& self, nb::handle key, nb::handle value, nb::handle to, nb::handle lengths,
            GivenContext context) {
  constexpr const char* where = "MultiHeadAttention.append";
  const Array k = read(key, {where, "key", Kind::floating});
  const Array v = read(value, {where, "value", Kind::floating});
  const Array n = read(lengths, {where, "lengths", Kind::whole, true});
  KvCache& cache = *to_cache(to, where);
  const Change alone(&cache, "KvCache");
  unlocked([&] { self.append(k, v, cache, n, context_or_default(context)); });
}

nb::object attend_cache(const Layer& self, nb::handle query, nb::handle over, GivenContext context,
                        const nb::kwargs& keywords) {
  constexpr const char* where = "MultiHeadAttention.attend";
  const Array q = read(query, {where, "query", Kind::floating});
  const Options options(keywords, where);
  const KvCache& cache = *to_cache(over, where);
  const Look looking(&cache, "KvCache");
  return to_python(
      unlocked([&] { return self.attend(q, cache, options.get(), context_or_default(context)); }),
      query);
}

void bind_calls(nb::class_<Layer>& type) {
  const auto no_context = "context"_a = nb::none();
  type.def(
          "forward", forward, "query"_a.none(), "key"_a = nb::none(), "value"_a = nb::none(),
          nb::kw_only(), "cache"_a = nb::none(), "lengths"_a = nb::none(),
          "return_lse"_a.none() = false, "return_weights"_a.none() = false,
          "return_scores"_a = nb::none(), "weight_heads"_a = nb::none(), no_context, "options"_a,
          nb::sig("def forward(self, query: ArrayT, key: Array | None = None, "
                  "value: Array | None = None, *, " ATTEND_OPTIONS
                  "cache: KvCache | None = None, lengths: Array | None = None, " ATTEND_NOTHING_ELSE
                  "context: Context | None = None) -> ArrayT"),
          R"(The output [batch, Tq, model_dim]: self-attention of `query`, or over key and value.

A value that is not given is the key. Options, lse, weights and scores as in attention(). With a
cache the query's rows are new tokens: they are appended and attend to all that it holds; only the
first lengths[b] rows are tokens, if that is given.
)")
      .def("forward", forward, "query"_a.none(), "key"_a = nb::none(), "value"_a = nb::none(),
           nb::kw_only(), "cache"_a = nb::none(), "lengths"_a = nb::none(),
           "return_lse"_a.none() = false, "return_weights"_a.none() = false,
           "return_scores"_a = nb::none(), "weight_heads"_a = nb::none(), no_context, "options"_a,
           nb::sig("def forward(self, query: ArrayT, key: Array | None = None, "
                   "value: Array | None = None, *, " ATTEND_OPTIONS
                   "cache: KvCache | None = None, lengths: Array | None = None, " ATTEND_MORE
                   "context: Context | None = None) -> tuple[ArrayT, ...]"))
      .def("forward_train", forward_train, "query"_a.none(), "key"_a = nb::none(),
           "value"_a = nb::none(), nb::kw_only(), no_context, "options"_a,
           nb::sig("def forward_train(self, query: ArrayT, key: Array | None = None, "
                   "value: Array | None = None, *, " ATTEND_OPTIONS
                   "context: Context | None = None) -> tuple[ArrayT, Saved]"),
           "(output, saved); backward() takes saved.")
      .def("backward", backward, "dy"_a.none(), "saved"_a, nb::kw_only(), no_context,
           nb::sig("def backward(self, dy: Array, saved: Saved, *, "
                   "context: Context | None = None) -> MultiHeadAttentionGradients"),
           "Gradients at the inputs, options and parameters, given dy at the output.")
      .def("trace", trace, "query"_a.none(), "key"_a = nb::none(), "value"_a = nb::none(),
           nb::kw_only(), no_context, "options"_a,
           nb::sig("def trace(self, query: Array, key: Array | None = None, "
                   "value: Array | None = None, *, " ATTEND_OPTIONS
                   "context: Context | None = None) -> Trace"),
           "Every intermediate result by name.")
      .def("heads", heads, "query"_a.none(), "key"_a = nb::none(), "value"_a = nb::none(),
           nb::kw_only(), no_context, "options"_a,
           nb::sig("def heads(self, query: Array, key: Array | None = None, "
                   "value: Array | None = None, *, " ATTEND_OPTIONS
                   "context: Context | None = None) -> LayerHeads"),
           "q, k and v of the heads, as attention() takes them, and how much each head adds.")
      .def("inspect", inspect, "query"_a.none(), "key"_a = nb::none(), "value"_a = nb::none(),
           nb::kw_only(), "top_k"_a = 0, "key_mass"_a = true, "metrics"_a = true,
           "local_width"_a = 8, "tokens"_a = nb::none(), "tile_rows"_a = 0, "tile_columns"_a = 0,
           no_context, "options"_a,
           nb::sig("def inspect(self, query: Array, key: Array | None = None, "
                   "value: Array | None = None, *, " ATTEND_INSPECT ATTEND_OPTIONS
                   "context: Context | None = None) -> Statistics"),
           "inspect() of the layer's heads, with how much each adds to the output: contribution.")
      .def(
          "make_cache",
          [](const Layer& self, std::int64_t batch, std::int64_t capacity, std::int64_t page_size,
             std::int64_t pages, nb::handle wanted) {
            return self.make_cache(batch, capacity, page_size, pages,
                                   cache_type(wanted, "make_cache"));
          },
          "batch"_a, "capacity"_a, "page_size"_a = 0, "pages"_a = 0, "type"_a = nb::none(),
          nb::sig("def make_cache(self, batch: int, capacity: int, page_size: int = 0, "
                  "pages: int = 0, type: Any = None) -> KvCache"),
          "An empty KvCache that fits this layer, of its type or 'i8'.")
      .def("append", append, "key"_a.none(), "value"_a.none(), "cache"_a.none(),
           "lengths"_a = nb::none(), nb::kw_only(), no_context,
           nb::sig("def append(self, key: Array, value: Array, cache: KvCache, "
                   "lengths: Array | None = None, *, context: Context | None = None) -> None"),
           "Projects key and value and appends them to the cache.")
      .def("attend", attend_cache, "query"_a.none(), "cache"_a.none(), nb::kw_only(), no_context,
           "options"_a,
           nb::sig("def attend(self, query: ArrayT, cache: KvCache, *, " ATTEND_OPTIONS
                   "context: Context | None = None) -> ArrayT"),
           "Attention of the query over what the cache holds.");
}

}  // namespace

void bind_multi_head(nb::module_& m) {
  nb::class_<Layer> type(m, "MultiHeadAttention", R"(Multi-head attention with its projections.

    Q = query W^Q + b   K = key W^K + b   V = value W^V + b     split into heads
    output = concat(head_0, ..., head_{H-1}) W^O + b

    query [batch, Tq, model_dim]   key [batch, Tk, key_dim]   value [batch, Tk, value_dim]

A single sequence may come without the batch dimension. Weights are [out, in], Xavier-uniform from
the seed. Sizes that are 0 follow from the others: key_heads = heads, d_k = model_dim / heads,
d_v = d_k, key_dim = model_dim, value_dim = key_dim. rotary is (pairing, base, dim).

>>> layer = attend.MultiHeadAttention(model_dim=8, heads=2)
>>> layer.forward(numpy.ones((1, 3, 8), 'float32'), causal=True).shape
(1, 3, 8)
)");
  nb::class_<Layer::Saved>(type, "Saved", "What backward() needs from forward_train().");
  type.def(
      "__init__",
      [](Layer* self, const nb::args& positional, const nb::kwargs& keywords) {
        constexpr const char* names[] = {"model_dim", "heads"};
        if (positional.size() > std::size(names))
          raise_type_error(std::string(kName) + ": model_dim and heads may come by their place, " +
                           std::to_string(positional.size()) +
                           " arguments did; name the others: MultiHeadAttention(512, 8, "
                           "key_heads=2, bias=False)");
        const auto all = nb::steal<nb::dict>(PyDict_Copy(keywords.ptr()));
        for (std::size_t n = 0; n < positional.size(); ++n) {
          if (all.contains(names[n]))
            raise_type_error(std::string(kName) + ": " + names[n] +
                             " is given twice, by its place "
                             "and by its name");
          all[names[n]] = positional[n];
        }
        const MultiHeadAttentionOptions options = to_multi_head_options(all, kName);
        if (!all.contains("model_dim"))
          raise_type_error(std::string(kName) + ": model_dim is missing; as in " + kName +
                           "(512, heads=8)");
        new (self) Layer(options);
      },
      "sizes"_a, "options"_a,
      nb::sig("def __init__(self, model_dim: int, heads: int = 1, *, key_heads: int = 0, "
              "d_k: int = 0, d_v: int = 0, key_dim: int = 0, value_dim: int = 0, "
              "bias: bool = True, output_projection: bool = True, "
              "rotary: RotaryLike | None = None, type: Any = 'f32', seed: int = 0) -> None"));
  bind_calls(type);
  bind_weights(type);
  bind_to(type, "MultiHeadAttention");
  bind_manners(type, [](nb::handle self, const Layer& layer) {
    return described(self, to_python(layer.options()), layer.parameters());
  });
}

}  // namespace attend::python
