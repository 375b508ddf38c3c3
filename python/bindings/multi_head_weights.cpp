// MultiHeadAttention: its weights, as parameters, by heads, in files.
#include "multi_head.h"

#include "paths.h"

namespace attend::python {
namespace {

using namespace nb::literals;
using Layer = MultiHeadAttention;
using Path = std::filesystem::path;

nb::list split(const Layer& self) {
  nb::list list;
  const nb::object type = nb::module_::import_("attend._types").attr("HeadWeights");
  for (Layer::HeadWeights& head : self.split()) {
    nb::list parts;
    for (Tensor* tensor :
         {&head.q, &head.k, &head.v, &head.o, &head.q_bias, &head.k_bias, &head.v_bias}) {
      parts.append(to_python(std::move(*tensor), nb::handle()));
    }
    list.append(type(*parts));
  }
  return list;
}

Layer join(nb::handle parts, nb::handle o_bias, const nb::kwargs& keywords) {
  constexpr const char* where = "MultiHeadAttention.join";
  const MultiHeadAttentionOptions options = to_multi_head_options(keywords, where);
  std::vector<Layer::HeadWeights> list;
  for (const nb::handle head : parts) {
    const auto part = [&](const char* name) {
      const nb::object value = nb::getattr(head, name, nb::none());
      return Tensor::copy_of(read(value, {where, name, Kind::floating, true}));
    };
    list.push_back({part("q"), part("k"), part("v"), part("o"), part("q_bias"), part("k_bias"),
                    part("v_bias")});
  }
  const Array bias = read(o_bias, {where, "o_bias", Kind::floating, true});
  return Layer::join(options, list, Tensor::copy_of(bias));
}

Layer load(nb::handle file, nb::handle prefix, std::int64_t heads, std::int64_t key_heads,
           nb::handle rotary, bool output_projection, nb::handle orientation) {
  constexpr std::string_view orientations[] = {"automatic", "out_in", "in_out"};
  constexpr const char* where = "MultiHeadAttention.load";
  const WeightsFormat format{
      .prefix = text_of(prefix, "MultiHeadAttention.load: prefix"),
      .heads = heads,
      .key_heads = key_heads,
      .rotary = to_rotary(rotary, where),
      .output_projection = output_projection,
      .orientation = choose<WeightsFormat::Orientation>(orientation, orientations,
                                                        "MultiHeadAttention.load: orientation")};
  if (nb::isinstance<TensorFile>(file)) return Layer::load(nb::cast<TensorFile&>(file), format);
  const Path path = to_path(file, where);
  return unlocked([&] { return Layer::load(path, format); });
}

}  // namespace

void bind_weights(nb::class_<MultiHeadAttention>& type) {
  type.def_prop_ro(
          "options", [](const Layer& self) { return to_python(self.options()); },
          nb::sig("def options(self) -> dict[str, Any]"), "With every size filled in.")
      .def("parameters", show_parameters<Layer>, nb::sig("def parameters(self) -> dict[str, Any]"),
           "q.weight, q.bias, k.weight, ... o.bias: NumPy arrays that are the layer's memory.")
      .def("split", split, nb::sig("def split(self) -> list[HeadWeights]"),
           "The same weights as one set of matrices per head, as copies.")
      .def_static("join", join, "parts"_a, "o_bias"_a = nb::none(), "options"_a,
                  nb::sig("def join(parts: Sequence[HeadWeights], o_bias: Array | None = None, "
                          "**options: Any) -> MultiHeadAttention"),
                  "A layer from the matrices of its heads; options as of the constructor.")
      .def(
          "save",
          [](const Layer& self, nb::handle file, bool per_head) {
            const Path path = to_path(file, "MultiHeadAttention.save");
            unlocked([&] { self.save(path, per_head); });
          },
          "path"_a, "per_head"_a = false,
          nb::sig("def save(self, path: str | os.PathLike[str], per_head: bool = False) -> None"),
          "Writes the parameters as safetensors, with the options in the metadata.")
      .def_static("load", load, "path"_a, nb::kw_only(), "prefix"_a = "", "heads"_a = 0,
                  "key_heads"_a = 0, "rotary"_a = nb::none(), "output_projection"_a = true,
                  "orientation"_a = "automatic",
                  nb::sig("def load(path: str | os.PathLike[str] | TensorFile, *, "
                          "prefix: str = '', heads: int = 0, key_heads: int = 0, "
                          "rotary: RotaryLike | None = None, output_projection: bool = True, "
                          "orientation: Literal['automatic', 'out_in', 'in_out'] = 'automatic') "
                          "-> MultiHeadAttention"),
                  R"(A layer from a safetensors file: one of save(), or of another library.

heads and the rest come from the file's metadata, if that holds them. The names of PyTorch's
nn.MultiheadAttention, of Llama (q_proj ...), BERT and GPT-2 are known, behind the prefix.
output_projection=False: the file has no W^O.
)");
}

}  // namespace attend::python
