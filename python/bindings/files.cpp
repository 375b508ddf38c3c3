// Tensors in files: .npy and safetensors.
#include "layer.h"
#include "paths.h"

#include <attend/io.h>

namespace attend::python {
namespace {

using namespace nb::literals;
using Path = std::filesystem::path;

nb::dict tensors_of(nb::handle self) {
  nb::dict dict;
  for (NamedTensor& named : nb::cast<TensorFile&>(self).tensors) {
    dict[named.name.c_str()] = show(named.tensor.view(), self);
  }
  return dict;
}

}  // namespace

void bind_files(nb::module_& m) {
  m.def(
      "load_npy",
      [](nb::handle file) {
        const Path path = to_path(file, "load_npy");
        return to_python(unlocked([&] { return load_npy(path); }), nb::handle());
      },
      "path"_a, nb::sig("def load_npy(path: str | os.PathLike[str]) -> Any"),
      R"(The array in a .npy file, as a contiguous NumPy array. The reader is strict.

>>> attend.save_npy('x.npy', numpy.arange(6.0).reshape(2, 3))
>>> attend.load_npy('x.npy').shape
(2, 3)
)");
  m.def(
      "save_npy",
      [](nb::handle file, nb::handle tensor) {
        const Path path = to_path(file, "save_npy");
        const Array array = read(tensor, {"save_npy", "tensor"});
        unlocked([&] { save_npy(path, array); });
      },
      "path"_a, "tensor"_a,
      nb::sig("def save_npy(path: str | os.PathLike[str], tensor: Array) -> None"),
      "Writes a .npy file, whole or not at all.");

  nb::class_<TensorFile>(m, "TensorFile", "What a safetensors file holds: tensors and metadata.")
      .def_prop_ro("tensors", tensors_of, nb::sig("def tensors(self) -> dict[str, Any]"),
                   "NumPy arrays by name, in the order of the file.")
      .def_prop_ro(
          "metadata", [](const TensorFile& self) { return to_python(self.metadata); },
          nb::sig("def metadata(self) -> dict[str, str]"))
      .def_prop_ro(
          "path", [](const TensorFile& self) { return self.path; },
          nb::sig("def path(self) -> os.PathLike[str]"))
      .def(
          "__getitem__",
          [](nb::handle self, nb::handle key) {
            const std::string name = text_of(key, "TensorFile: name");
            auto& file = nb::cast<TensorFile&>(self);
            for (NamedTensor& named : file.tensors) {
              if (named.name == name) return show(named.tensor.view(), self);
            }
            throw nb::key_error(name.c_str());
          },
          "name"_a, nb::sig("def __getitem__(self, name: str) -> Any"));

  m.def(
      "load_safetensors",
      [](nb::handle file) {
        const Path path = to_path(file, "load_safetensors");
        return unlocked([&] { return load_safetensors(path); });
      },
      "path"_a, nb::sig("def load_safetensors(path: str | os.PathLike[str]) -> TensorFile"),
      R"(All tensors of a safetensors file. The reader is strict.

>>> attend.save_safetensors('x.safetensors', {'a': numpy.ones((2, 3))}, {'made by': 'hand'})
>>> file = attend.load_safetensors('x.safetensors')
>>> file['a'].shape, file.metadata
((2, 3), {'made by': 'hand'})
)");
  m.def(
      "save_safetensors",
      [](nb::handle file, nb::handle tensors, nb::handle metadata) {
        const Path path = to_path(file, "save_safetensors");
        const Metadata more = to_metadata(metadata, "save_safetensors");
        const NamedArrays arrays = read_named(tensors, "save_safetensors", "tensors");
        unlocked([&] { save_safetensors(path, arrays.views, more); });
      },
      "path"_a, "tensors"_a, "metadata"_a = nb::dict(),
      nb::sig("def save_safetensors(path: str | os.PathLike[str], tensors: Mapping[str, Array], "
              "metadata: Mapping[str, str] = {}) -> None"),
      "Writes a dict of arrays as a safetensors file, whole or not at all.");
  m.def(
      "load_parameters",
      [](const TensorFile& file, nb::handle parameters, nb::handle prefix, bool allow_others) {
        const std::string before = text_of(prefix, "load_parameters: prefix");
        const NamedWritables to = write_named(parameters, "load_parameters", "parameters");
        unlocked([&] { load_parameters(file, to.parameters, before, allow_others); });
      },
      "file"_a, "parameters"_a, "prefix"_a = "", "allow_others"_a = false,
      nb::sig("def load_parameters(file: TensorFile, parameters: Mapping[str, Array], "
              "prefix: str = '', allow_others: bool = False) -> None"),
      R"(Copies the tensors `prefix + name` of a file into the parameters of a layer.

Every parameter must be there with its shape; floating-point types are converted. Nothing is changed
if anything is wrong.
)");
}

}  // namespace attend::python
