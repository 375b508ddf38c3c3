// LanguageModel: embedding, positions, causal blocks, a map to one logit a word.
#include "fields.h"
#include "layer.h"
#include "paths.h"

#include <attend/model.h>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <deque>

namespace attend::python {
namespace {

using namespace nb::literals;
using Path = std::filesystem::path;

constexpr const char* kName = "LanguageModel";

// The caches of a list, lent to a call: moved out of Python's objects and, whatever happens, back.
class Lent {
 public:
  explicit Lent(std::vector<nb::object> caches) : objects_(std::move(caches)) {
    for (const nb::object& object : objects_) {
      if (!nb::isinstance<KvCache>(object)) {
        raise_type_error("LanguageModel: caches takes a list of KvCache, found " +
                         name_of_type(object) + " in it");
      }
      KvCache* const cache = nb::cast<KvCache*>(object);
      if (std::find(from_.begin(), from_.end(), cache) != from_.end()) {
        throw InvalidArgument(
            "LanguageModel: caches holds the same cache twice; each block has its "
            "own");
      }
      from_.push_back(cache);
    }
    for (KvCache* cache : from_) alone_.emplace_back(cache, "KvCache");
    all.reserve(from_.size());
    for (KvCache* cache : from_) all.push_back(std::move(*cache));
  }
  ~Lent() {
    for (std::size_t n = 0; n < all.size(); ++n) *from_[n] = std::move(all[n]);
  }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;
  std::vector<KvCache> all;

 private:
  std::vector<nb::object> objects_;  // the list may lose them during the call
  std::vector<KvCache*> from_;
  std::deque<Change> alone_;
};

std::vector<std::int64_t> to_tokens(nb::handle prompt) {
  constexpr const char* where = "LanguageModel.generate";
  const bool text = nb::isinstance<nb::str>(prompt) || nb::isinstance<nb::bytes>(prompt);
  if (text || PySequence_Check(prompt.ptr()) == 0)
    raise_type_error(std::string(where) + ": prompt takes a list of whole numbers, found " +
                     name_of_type(prompt));
  std::vector<std::int64_t> tokens;
  for (const nb::handle token : prompt)
    tokens.push_back(number<std::int64_t>(token, where, "each token of prompt", "a whole number"));
  return tokens;
}

nb::object forward(const LanguageModel& self, nb::handle tokens,
                   std::optional<std::vector<nb::object>> caches, GivenContext context) {
  const Array in = read(tokens, {kName, "tokens", Kind::whole});
  Context& used = context_or_default(context);
  if (!caches) {
    return to_python(unlocked([&] { return self.forward(in, used); }), tokens);
  }
  Lent lent(std::move(*caches));
  return to_python(unlocked([&] { return self.forward(in, lent.all, used); }), tokens);
}

nb::dict options_of(const LanguageModel& self) {
  const LanguageModelOptions& o = self.options();
  nb::dict dict;
  dict["vocabulary"] = o.vocabulary;
  dict["length"] = o.length;
  dict["layers"] = o.layers;
  dict["model_dim"] = o.model_dim;
  dict["heads"] = o.heads;
  dict["hidden_dim"] = o.hidden_dim;
  dict["activation"] = chosen(o.activation, kActivations);
  dict["placement"] = chosen(o.placement, kPlacements);
  dict["norm"] = chosen(o.norm, kNorms);
  dict["type"] = chosen(o.type);
  dict["seed"] = o.seed;
  return dict;
}

void make(LanguageModel* self, std::int64_t vocabulary, std::int64_t length, std::int64_t layers,
          std::int64_t model_dim, std::int64_t heads, std::int64_t hidden_dim,
          nb::handle activation, nb::handle placement, nb::handle norm, nb::handle type,
          std::uint64_t seed) {
  new (self) LanguageModel(
      {.vocabulary = vocabulary,
       .length = length,
       .layers = layers,
       .model_dim = model_dim,
       .heads = heads,
       .hidden_dim = hidden_dim,
       .activation = choose<Activation>(activation, kActivations, "LanguageModel: activation"),
       .placement = choose<NormPlacement>(placement, kPlacements, "LanguageModel: placement"),
       .norm = choose<NormKind>(norm, kNorms, "LanguageModel: norm"),
       .type = to_dtype(type, kName),
       .seed = seed});
}

void bind_training(nb::class_<LanguageModel>& type) {
  using Saved = LanguageModel::Saved;
  const auto no_context = "context"_a = nb::none();
  type.def(
          "forward_train",
          [](const LanguageModel& self, nb::handle tokens, GivenContext context) {
            const Array in = read(tokens, {kName, "tokens", Kind::whole});
            auto [logits, saved] =
                unlocked([&] { return self.forward_train(in, context_or_default(context)); });
            return nb::make_tuple(to_python(std::move(logits), tokens), nb::cast(std::move(saved)));
          },
          "tokens"_a.none(), nb::kw_only(), no_context,
          nb::sig("def forward_train(self, tokens: ArrayT, *, context: Context | None = None) -> "
                  "tuple[ArrayT, Saved]"),
          "(logits, saved); backward() takes saved.")
      .def(
          "backward",
          [](const LanguageModel& self, nb::handle dlogits, const Saved& saved,
             GivenContext context) {
            const Array in = read(dlogits, {kName, "dlogits", Kind::floating});
            return to_python(
                unlocked([&] { return self.backward(in, saved, context_or_default(context)); }),
                dlogits);
          },
          "dlogits"_a, "saved"_a, nb::kw_only(), no_context,
          nb::sig("def backward(self, dlogits: Array, saved: Saved, *, "
                  "context: Context | None = None) -> dict[str, Any]"),
          "Gradients at the parameters, by name.");
}

void bind_files(nb::class_<LanguageModel>& type) {
  type.def(
          "metadata", [](const LanguageModel& self) { return to_python(self.metadata()); },
          nb::sig("def metadata(self) -> dict[str, str]"),
          "The options as a file's metadata, for save_checkpoint().")
      .def(
          "save",
          [](const LanguageModel& self, nb::handle file, nb::handle metadata) {
            const Path path = to_path(file, "LanguageModel.save");
            const Metadata more = to_metadata(metadata, "LanguageModel.save");
            unlocked([&] { self.save(path, more); });
          },
          "path"_a, "metadata"_a = nb::dict(),
          nb::sig("def save(self, path: str | os.PathLike[str], "
                  "metadata: Mapping[str, str] = {}) -> None"),
          "Writes the parameters as safetensors, with the options in the metadata.")
      .def_static(
          "load",
          [](nb::handle file) {
            if (nb::isinstance<TensorFile>(file)) {
              return LanguageModel::load(nb::cast<TensorFile&>(file));
            }
            const Path path = to_path(file, "LanguageModel.load");
            return unlocked([&] { return LanguageModel::load(path); });
          },
          "path"_a, nb::sig("def load(path: str | os.PathLike[str] | TensorFile) -> LanguageModel"),
          "A model that save() wrote.");
}

}  // namespace

void bind_model(nb::module_& m) {
  const auto no_context = "context"_a = nb::none();
  nb::class_<LanguageModel> type(m, "LanguageModel", R"(A small language model made of the layers.

    tokens [batch, T] (int64 or int32)   logits [batch, T, vocabulary]

>>> model = attend.LanguageModel(vocabulary=5, length=8, layers=1, model_dim=16)
>>> model.forward(numpy.array([[0, 1, 2]])).shape
(1, 3, 5)
>>> len(model.generate([0, 1], 4))
4
)");
  nb::class_<LanguageModel::Saved>(type, "Saved", "What backward() needs from forward_train().");
  type.def("__init__", make, nb::kw_only(), "vocabulary"_a, "length"_a, "layers"_a = 2,
           "model_dim"_a = 64, "heads"_a = 4, "hidden_dim"_a = 0, "activation"_a = "gelu",
           "placement"_a = "pre", "norm"_a = "layer_norm", "type"_a = "f32", "seed"_a = 0,
           nb::sig("def __init__(self, *, vocabulary: int, length: int, layers: int = 2, "
                   "model_dim: int = 64, heads: int = 4, hidden_dim: int = 0, "
                   "activation: str = 'gelu', placement: str = 'pre', norm: str = 'layer_norm', "
                   "type: Any = 'f32', seed: int = 0) -> None"))
      .def("forward", forward, "tokens"_a.none(), "caches"_a = nb::none(), nb::kw_only(),
           no_context,
           nb::sig("def forward(self, tokens: ArrayT, caches: list[KvCache] | None = None, *, "
                   "context: Context | None = None) -> ArrayT"),
           "The logits; with the caches of make_caches() the tokens are new ones.")
      .def(
          "trace",
          [](const LanguageModel& self, nb::handle tokens, GivenContext context) {
            const Array in = read(tokens, {kName, "tokens", Kind::whole});
            return unlocked([&] { return self.trace(in, context_or_default(context)); });
          },
          "tokens"_a.none(), nb::kw_only(), no_context,
          nb::sig("def trace(self, tokens: Array, *, context: Context | None = None) -> Trace"),
          "Every step of every block: 'blocks.1.attention.weights'.")
      .def(
          "make_caches",
          [](const LanguageModel& self, std::int64_t batch, nb::handle wanted) {
            return self.make_caches(batch, cache_type(wanted, "make_caches"));
          },
          "batch"_a = 1, "type"_a = nb::none(),
          nb::sig("def make_caches(self, batch: int = 1, type: Any = None) -> list[KvCache]"),
          "An empty cache for each block, of the model's type or 'i8'.")
      .def(
          "generate",
          [](const LanguageModel& self, nb::handle prompt, std::int64_t count, double temperature,
             std::uint64_t seed, nb::handle wanted, GivenContext context) {
            const std::vector<std::int64_t> tokens = to_tokens(prompt);
            const DType of_caches = cache_type(wanted, "generate").value_or(self.options().type);
            return unlocked([&] {
              return self.generate(tokens, count, temperature, seed, of_caches,
                                   context_or_default(context));
            });
          },
          "prompt"_a.none(), "count"_a, "temperature"_a = 0.0, "seed"_a = 0, nb::kw_only(),
          "cache_type"_a = nb::none(), no_context,
          nb::sig("def generate(self, prompt: Sequence[int], count: int, "
                  "temperature: float = 0.0, seed: int = 0, *, cache_type: Any = None, "
                  "context: Context | None = None) -> list[int]"),
          "`count` tokens after the prompt: the likeliest, or sampled with a temperature. The "
          "caches are of the model's type, or 'i8'.")
      .def_prop_ro("options", options_of, nb::sig("def options(self) -> dict[str, Any]"),
                   "What it was made with.")
      .def("parameters", show_parameters<LanguageModel>,
           nb::sig("def parameters(self) -> dict[str, Any]"),
           "The weights by name: NumPy arrays that are the model's memory.");
  bind_training(type);
  bind_files(type);
  bind_to(type, "LanguageModel");
  bind_manners(type, [](nb::handle self, const LanguageModel& model) {
    return described(self, options_of(model), model.parameters());
  });
}

}  // namespace attend::python
