// AttentionBlock: attention, norms and a feed-forward network around the residual.
#include "multi_head.h"
#include "paths.h"

#include <attend/block.h>

namespace attend::python {
namespace {

using namespace nb::literals;
using Block = AttentionBlock;
using Path = std::filesystem::path;

constexpr const char* kName = "AttentionBlock";

// What a call reads: x, the memory of a decoder, and the options of both attentions.
struct Call {
  Call(const Block& block, nb::handle x_, nb::handle memory_, nb::handle cross_,
       const nb::kwargs& keywords, const char* where)
      : x(read(x_, {where, "x", Kind::floating, false, devices_of(block)})),
        memory(read(memory_, {where, "memory", Kind::floating, true, devices_of(block)})),
        self(keywords, where, devices_of(block)), cross(cross_, where, "cross", devices_of(block)) {
    if (!cross_.is_none() && !block.options().cross) {
      throw InvalidArgument(std::string(where) +
                            ": cross= are options of attention over a memory, which this block "
                            "does not have; make it with cross=True");
    }
  }
  Array x, memory;
  Options self, cross;
};

// With a cache, x are new tokens and a decoder's memory is a cache too.
nb::object decode(const Block& self, nb::handle x, nb::handle memory, nb::handle cross,
                  KvCache& cache, nb::handle lengths, Context& context,
                  const nb::kwargs& keywords) {
  constexpr const char* where = "AttentionBlock.forward";
  const bool decoder = nb::isinstance<KvCache>(memory);
  if (!decoder && !memory.is_none()) {
    throw InvalidArgument(std::string(where) +
                          ": with a cache, memory is a KvCache too: "
                          "block.cross.make_cache() and .append()");
  }
  const Call call(self, x, nb::none(), cross, keywords, where);
  const Array n = read(lengths, {where, "lengths", Kind::whole, true});
  const Change alone(&cache, "KvCache");
  if (!decoder) {
    return to_python(
        unlocked([&] { return self.forward(call.x, cache, call.self.get(), n, context); }), x);
  }
  const KvCache& kept = nb::cast<KvCache&>(memory);
  const Look looking(&kept, "KvCache");
  return to_python(unlocked([&] {
                     return self.forward(call.x, cache, kept, call.self.get(), call.cross.get(), n,
                                         context);
                   }),
                   x);
}

nb::object forward(const Block& self, nb::handle x, nb::handle memory, nb::handle cross,
                   nb::handle cache_or_none, nb::handle lengths, GivenContext context,
                   const nb::kwargs& keywords) {
  constexpr const char* where = "AttentionBlock.forward";
  KvCache* const cache = to_cache(cache_or_none, where, true);
  Context& used = context_or_default(context);
  check_lengths(lengths, cache, where);
  if (cache) return decode(self, x, memory, cross, *cache, lengths, used, keywords);
  const Call call(self, x, memory, cross, keywords, where);
  return to_python(run_on(kName, call.x, used,
                          [&](const Where& at) {
                            if (!call.memory.view) return self.forward(call.x, call.self.get(), at);
                            return self.forward(call.x, call.memory, call.self.get(),
                                                call.cross.get(), at);
                          }),
                   x);
}

nb::object forward_train(const Block& self, nb::handle x, nb::handle memory, nb::handle cross,
                         GivenContext context, const nb::kwargs& keywords) {
  constexpr const char* where = "AttentionBlock.forward_train";
  const Call call(self, x, memory, cross, keywords, where);
  auto [y, saved] = run_on(kName, call.x, context_or_default(context), [&](const Where& at) {
    return self.forward_train(call.x, call.memory, call.self.get(), call.cross.get(), at);
  });
  return nb::make_tuple(to_python(std::move(y), x), nb::cast(std::move(saved)));
}

nb::object backward(const Block& self, nb::handle dy, const Block::Saved& saved,
                    GivenContext context) {
  constexpr const char* where = "AttentionBlock.backward";
  const Array in = read(dy, {where, "dy", Kind::floating, false, devices_of(self)});
  Block::Gradients g = run_on(kName, in, context_or_default(context),
                              [&](const Where& at) { return self.backward(in, saved, at); });
  const nb::module_ types = nb::module_::import_("attend._types");
  const auto of_options = [&](Block::OptionGradients& options) {
    return types.attr("OptionGradients")(to_python(std::move(options.dbias), dy),
                                         to_python(std::move(options.dsinks), dy),
                                         to_python(std::move(options.dalibi), dy));
  };
  return types.attr("BlockGradients")(to_python(std::move(g.dx), dy),
                                      to_python(std::move(g.dmemory), dy), of_options(g.self),
                                      of_options(g.cross), to_python(std::move(g.parameters), dy));
}

Trace trace(const Block& self, nb::handle x, nb::handle memory, nb::handle cross,
            GivenContext context, const nb::kwargs& keywords) {
  constexpr const char* where = "AttentionBlock.trace";
  const Call call(self, x, memory, cross, keywords, where);
  return unlocked([&] {
    return self.trace(call.x, call.memory, call.self.get(), call.cross.get(),
                      context_or_default(context));
  });
}

nb::dict options_of(const Block& self) {
  const AttentionBlockOptions& o = self.options();
  nb::dict dict;
  dict["attention"] = to_python(o.attention);
  dict["cross"] = o.cross;
  dict["memory_dim"] = o.memory_dim;
  dict["hidden_dim"] = o.hidden_dim;
  dict["activation"] = chosen(o.activation, kActivations);
  dict["placement"] = chosen(o.placement, kPlacements);
  dict["norm"] = chosen(o.norm, kNorms);
  dict["epsilon"] = o.epsilon;
  return dict;
}

void make(Block* self, nb::handle attention, bool cross, std::int64_t memory_dim,
          std::int64_t hidden_dim, nb::handle activation, nb::handle placement, nb::handle norm,
          double epsilon) {
  new (self) Block(
      {.attention = to_multi_head_options(attention, kName),
       .cross = cross,
       .memory_dim = memory_dim,
       .hidden_dim = hidden_dim,
       .activation = choose<Activation>(activation, kActivations, "AttentionBlock: activation"),
       .placement = choose<NormPlacement>(placement, kPlacements, "AttentionBlock: placement"),
       .norm = choose<NormKind>(norm, kNorms, "AttentionBlock: norm"),
       .epsilon = epsilon});
}

}  // namespace

void bind_block(nb::module_& m) {
  const auto no_context = "context"_a = nb::none();
  nb::class_<Block> type(m, "AttentionBlock",
                         R"(Attention and a feed-forward network, each with residual and norm.

    post   y = norm(x + f(x))       pre   y = x + f(norm(x))       none   y = x + f(x)

for each part f: self-attention, attention over a memory (cross=True), feed-forward
(hidden_dim > 0).
`attention` holds the options of MultiHeadAttention. x, y [batch, T, model_dim], memory
[batch, Tm, memory_dim].

>>> block = attend.AttentionBlock({'model_dim': 8, 'heads': 2}, hidden_dim=16, placement='pre')
>>> block.forward(numpy.ones((1, 3, 8), 'float32'), causal=True).shape
(1, 3, 8)
)");
  nb::class_<Block::Saved>(type, "Saved", "What backward() needs from forward_train().");
  type.def("__init__", make, "attention"_a, nb::kw_only(), "cross"_a = false, "memory_dim"_a = 0,
           "hidden_dim"_a = 0, "activation"_a = "gelu", "placement"_a = "post",
           "norm"_a = "layer_norm", "epsilon"_a = 1e-5,
           nb::sig("def __init__(self, attention: Mapping[str, Any], *, cross: bool = False, "
                   "memory_dim: int = 0, hidden_dim: int = 0, activation: str = 'gelu', "
                   "placement: str = 'post', norm: str = 'layer_norm', "
                   "epsilon: float = 1e-05) -> None"))
      .def(
          "forward", forward, "x"_a, "memory"_a = nb::none(), nb::kw_only(), "cross"_a = nb::none(),
          "cache"_a = nb::none(), "lengths"_a = nb::none(), no_context, "options"_a,
          nb::sig("def forward(self, x: ArrayT, memory: Array | KvCache | None = None, "
                  "*, " ATTEND_OPTIONS "cross: Mapping[str, Any] | None = None, "
                  "cache: KvCache | None = None, lengths: Array | None = None, "
                  "context: Context | None = None) -> ArrayT"),
          R"(y. The options are those of self-attention; `cross` is a dict of those over the memory.

With a cache (block.attention.make_cache()) x are new tokens, and the memory of a decoder is a cache
too (block.cross.make_cache(), filled by block.cross.append()).
)")
      .def("forward_train", forward_train, "x"_a, "memory"_a = nb::none(), nb::kw_only(),
           "cross"_a = nb::none(), no_context, "options"_a,
           nb::sig(
               "def forward_train(self, x: ArrayT, memory: Array | None = None, *, " ATTEND_OPTIONS
               "cross: Mapping[str, Any] | None = None, "
               "context: Context | None = None) -> tuple[ArrayT, Saved]"),
           "(y, saved); backward() takes saved.")
      .def("backward", backward, "dy"_a.none(), "saved"_a, nb::kw_only(), no_context,
           nb::sig("def backward(self, dy: Array, saved: Saved, *, "
                   "context: Context | None = None) -> BlockGradients"),
           "Gradients at x, the memory, the options and the parameters, given dy at y.")
      .def("trace", trace, "x"_a, "memory"_a = nb::none(), nb::kw_only(), "cross"_a = nb::none(),
           no_context, "options"_a,
           nb::sig("def trace(self, x: Array, memory: Array | None = None, *, " ATTEND_OPTIONS
                   "cross: Mapping[str, Any] | None = None, context: Context | None = None) "
                   "-> Trace"),
           "The steps of the parts, 'attention.weights', and the sums and norms between them.")
      .def_prop_ro(
          "attention",
          [](const Block& self) -> const MultiHeadAttention& { return self.attention(); },
          nb::rv_policy::reference_internal)
      .def_prop_ro(
          "cross", [](const Block& self) { return self.options().cross ? &self.cross() : nullptr; },
          nb::rv_policy::reference_internal,
          nb::sig("def cross(self) -> MultiHeadAttention | None"),
          "The attention over the memory; None without one.")
      .def_prop_ro("options", options_of, nb::sig("def options(self) -> dict[str, Any]"),
                   "What it was made with.")
      .def("parameters", show_parameters<Block>, nb::sig("def parameters(self) -> dict[str, Any]"),
           "The weights by name: NumPy arrays that are the block's memory.")
      .def(
          "save",
          [](const Block& self, nb::handle file) {
            const Path path = to_path(file, "AttentionBlock.save");
            unlocked([&] { self.save(path); });
          },
          "path"_a, nb::sig("def save(self, path: str | os.PathLike[str]) -> None"),
          "Writes the parameters as safetensors, with the options in the metadata.")
      .def_static(
          "load",
          [](nb::handle file) {
            const Path path = to_path(file, "AttentionBlock.load");
            return unlocked([&] { return Block::load(path); });
          },
          "path"_a, nb::sig("def load(path: str | os.PathLike[str]) -> AttentionBlock"),
          "A block that save() wrote.");
  bind_to(type, "AttentionBlock");
  bind_manners(type, [](nb::handle self, const Block& block) {
    return described(self, options_of(block), block.parameters());
  });
}

}  // namespace attend::python
