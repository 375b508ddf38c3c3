// Between Python's arrays and the library's tensors, without copying.
//
// In:  NumPy arrays by their array interface (any strides, read-only, ml_dtypes' bfloat16), and
//      whatever has __dlpack__ (PyTorch, CuPy, JAX, ...), in host memory or that of an NVIDIA GPU.
//      Nothing else: a list would have to be copied.
// Out: arrays of the library that the first argument came from, which own the result's memory.
#pragma once

#include <attend/cuda.h>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <optional>
#include <string>

namespace attend::python {

namespace nb = nanobind;

// What the elements of an argument may be.
enum class Kind : std::uint8_t {
  any,
  floating,  // f64 f32 bf16 f16
  keys,      // and i8, with scales: k and v
  whole,     // i64 i32: lengths, offsets, tokens
  mask,      // bool i8 u8 i32 i64, 0 = hidden
};

// A view of a Python array, which it keeps alive: the dict or list that an array came in may lose
// it while the GIL is released. `owner` holds what DLPack asks to be kept. To be made, moved and
// destroyed with the GIL held.
struct Array {
  ConstTensorView view{};
  nb::object object{};
  nb::ndarray<nb::ro> owner{};

  operator const ConstTensorView&() const noexcept { return view; }  // NOLINT: it is one
};

// Where an argument may lie: what runs on the CPU alone takes no arrays of a GPU.
enum class Devices : std::uint8_t { host, any };

// `where` and `name` are for messages: "attention: q ...". None gives a view of none, if
// `optional`.
struct Argument {
  const char* where;
  const char* name;
  Kind kind = Kind::any;
  bool optional = false;
  Devices devices = Devices::host;
};
Array read(nb::handle object, const Argument& argument);

// The same to write into.
struct WritableArray {
  TensorView view{};
  nb::object object{};
  nb::ndarray<> owner{};
};
WritableArray write(nb::handle object, const Argument& argument);

// A new array that owns the tensor's memory, of the library that `like` is from (none: NumPy's). A
// default-made tensor is None.
nb::object to_python(Tensor&& tensor, nb::handle like);
// The same of a view of a GPU's memory, for libraries other than PyTorch.
nb::object to_python(std::unique_ptr<cuda::Memory>&& memory, const ConstTensorView& view,
                     nb::handle like);

// Neither library is imported from here: who has one of its arrays has imported it.
bool is_numpy(nb::handle object);
bool is_torch(nb::handle object);

// A NumPy array that shows memory of `owner` and keeps it alive.
nb::object show(const TensorView& view, nb::handle owner);
nb::object show(const ConstTensorView& view, nb::handle owner);  // read-only
// Likewise of a GPU's memory: a torch.Tensor.
nb::object show_torch(const TensorView& view, nb::handle owner);

// "f32" from "f32", "float32", numpy.float32, torch.float32, ml_dtypes.bfloat16, ...
DType to_dtype(nb::handle object, const char* where);

nb::tuple to_tuple(const Shape& shape);
std::string name_of_type(nb::handle object);  // "torch.Tensor"
std::string string_of(nb::handle object);     // str(object), what is no character as an escape

// The text of a str. `what` is for messages: "Context: kernels". A str may hold lone surrogates,
// which no UTF-8 has.
std::string text_of(nb::handle object, const std::string& what);

[[noreturn]] void raise_type_error(const std::string& message);

}  // namespace attend::python
