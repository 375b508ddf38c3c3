// From Python to the library: which memory an array shows, and whether it may be taken.
#include "arrays.h"

#include "dlpack.h"

#include <array>
#include <string_view>

namespace attend::python {
namespace {

// NumPy's struct behind __array_struct__: the fastest way to an array, and one that needs no
// header.
struct ArrayInterface {
  int two;
  int rank;
  char kind;
  int item_size;
  int flags;
  const Py_intptr_t* shape;
  const Py_intptr_t* strides;  // in bytes
  void* data;
};
constexpr int kNotSwapped = 0x200, kWritable = 0x400;

std::string prefix(const Argument& argument) {
  return std::string(argument.where) + ": " + argument.name;
}

std::optional<DType> float_type(int bytes) {
  if (bytes == 8) return DType::f64;
  if (bytes == 4) return DType::f32;
  if (bytes == 2) return DType::f16;
  return {};
}

std::optional<DType> integer_type(int bytes) {
  if (bytes == 8) return DType::i64;
  if (bytes == 4) return DType::i32;
  if (bytes == 1) return DType::i8;
  return {};
}

std::optional<DType> numpy_type(nb::handle object, const ArrayInterface& array) {
  switch (array.kind) {
    case 'f': return float_type(array.item_size);
    case 'i': return integer_type(array.item_size);
    case 'u': return array.item_size == 1 ? std::optional(DType::u8) : std::nullopt;
    case 'b': return DType::boolean;
    case 'V':  // types that NumPy does not know itself
      if (array.item_size == 2 && string_of(object.attr("dtype")) == "bfloat16") {
        return DType::bf16;
      }
      return {};
    default: return {};
  }
}

bool fits(Kind kind, DType type) {
  switch (kind) {
    case Kind::any: return true;
    case Kind::floating: return is_floating_point(type);
    case Kind::keys: return is_floating_point(type) || type == DType::i8;
    case Kind::whole: return type == DType::i64 || type == DType::i32;
    case Kind::mask: return !is_floating_point(type);
  }
  return false;
}

const char* hint(Kind kind) {
  switch (kind) {
    case Kind::any: return "float64, float32, bfloat16, float16, int64, int32, int8, uint8 or bool";
    case Kind::floating: return "float64, float32, bfloat16 or float16";
    case Kind::keys: return "float64, float32, bfloat16, float16, or int8 with scales";
    case Kind::whole: return "int64 or int32";
    case Kind::mask: return "bool, int8, uint8, int32 or int64 (False or 0 hides a key)";
  }
  return "";
}

// The type, if it may be taken; a sentence about masks and biases where those were mixed up.
DType checked_type(nb::handle object, std::optional<DType> type, const Argument& argument) {
  if (type && fits(argument.kind, *type)) return *type;
  std::string message = prefix(argument) + " takes " + hint(argument.kind) + ", found " +
                        (nb::hasattr(object, "dtype") ? string_of(object.attr("dtype"))
                                                      : "another in " + name_of_type(object));
  const std::string_view name = argument.name;
  if (type && is_floating_point(*type) && name == "mask") {
    message += "; numbers that are added to the scores are bias=";
  } else if (type && name == "bias") {
    message += "; what hides keys is mask= (True or 1 = visible)";
  }
  raise_type_error(message);
}

struct Seen {  // what an array is, before it becomes a view
  void* data;
  DType type;
  Shape shape, strides;
  Device device{};
};

void check_rank(std::int64_t rank, const Argument& argument) {
  if (rank > kMaxRank) {
    throw InvalidArgument(prefix(argument) + " has " + std::to_string(rank) +
                          " dimensions; at most " + std::to_string(kMaxRank) + " are taken");
  }
}

Seen see_numpy(nb::handle object, const Argument& argument, bool to_write) {
  const nb::object capsule = object.attr("__array_struct__");
  const auto& array = *static_cast<const ArrayInterface*>(
      PyCapsule_GetPointer(capsule.ptr(), PyCapsule_GetName(capsule.ptr())));
  if (to_write && !(array.flags & kWritable)) {
    throw InvalidArgument(prefix(argument) + " is read-only");
  }
  const DType type = checked_type(object, numpy_type(object, array), argument);
  if (!(array.flags & kNotSwapped)) {
    throw InvalidArgument(prefix(argument) + " is in the other byte order; convert it by astype()");
  }
  check_rank(array.rank, argument);
  std::array<std::int64_t, kMaxRank> shape{}, strides{};
  const auto rank = static_cast<std::size_t>(array.rank);
  bool empty = false;
  for (std::size_t dim = 0; dim < rank; ++dim) {
    shape[dim] = array.shape[dim];
    strides[dim] = array.strides[dim] / array.item_size;
    empty |= shape[dim] == 0;
  }
  for (std::size_t dim = 0; dim < rank; ++dim) {
    // Fields of records: the library's strides count elements.
    if (array.strides[dim] % array.item_size != 0 && !empty && shape[dim] > 1) {
      throw InvalidArgument(prefix(argument) + " has a stride of " +
                            std::to_string(array.strides[dim]) +
                            " bytes, which is no multiple of its elements' size; copy it first");
    }
  }
  if (reinterpret_cast<std::uintptr_t>(array.data) % static_cast<unsigned>(array.item_size) != 0) {
    throw InvalidArgument(prefix(argument) + " is not aligned in memory; copy it first");
  }
  return {array.data,
          type,
          Shape(std::span(shape.data(), rank)),
          Shape(std::span(strides.data(), rank)),
          {}};
}

Device device_of(const nb::dlpack::dltensor& array, const Argument& argument) {
  const int kind = array.device.device_type;
  if (kind == nb::device::cpu::value || kind == nb::device::cuda_host::value) return {};
  if (kind != nb::device::cuda::value)
    throw Unsupported(prefix(argument) + " is not in the CPU's memory or an NVIDIA GPU's (DLPack " +
                      "device " + std::to_string(kind) + "); move it there first");
  const Device device{Device::Kind::cuda, array.device.device_id};
  if (argument.devices == Devices::host)
    throw Unsupported(prefix(argument) + " is on " + to_string(device) + "; " + argument.where +
                      " computes on the CPU, move it there first");
  return device;
}

Seen see_dlpack(const nb::dlpack::dltensor& array, nb::handle object, const Argument& argument) {
  const Device device = device_of(array, argument);
  const DType type = checked_type(object, from_dlpack(array.dtype), argument);
  check_rank(array.ndim, argument);
  const auto rank = static_cast<std::size_t>(array.ndim);
  const Shape shape(std::span(array.shape, rank));
  return {static_cast<char*>(array.data) + array.byte_offset, type, shape,
          array.strides ? Shape(std::span(array.strides, rank)) : contiguous_strides(shape),
          device};
}

// DLPack itself would drop the gradient without a word.
void refuse_gradients(nb::handle object, const Argument& argument) {
  if (!object.attr("requires_grad").is(Py_True)) return;
  raise_type_error(prefix(argument) +
                   " requires a gradient, which would get lost; pass its .detach(), or use "
                   "attend.torch, which PyTorch's autograd knows");
}

// PyTorch's z.conj().imag shows memory whose sign it changes when it reads, which DLPack cannot
// say.
nb::object without_minus(nb::handle tensor, const Argument& argument, bool to_write) {
  if (!tensor.attr("is_neg")().is(Py_True)) return nb::borrow(tensor);
  if (to_write) {
    throw InvalidArgument(prefix(argument) +
                          " is a view with PyTorch's negative bit, which cannot be written into");
  }
  return tensor.attr("resolve_neg")();
}

// Why an object gave no array.
[[noreturn]] void refuse(nb::handle object, const Argument& argument, bool to_write) {
  if (!nb::hasattr(object, "__dlpack__")) {
    raise_type_error(prefix(argument) +
                     " takes a NumPy array or anything with __dlpack__ (PyTorch, JAX, ...)" +
                     (argument.optional ? ", or None" : "") + ", found " + name_of_type(object));
  }
  std::string reason = "no tensor came";
  try {
    object.attr("__dlpack__")();
    if (to_write) reason = "it is read-only";
  } catch (const nb::python_error& error) {
    reason = string_of(error.value());
  }
  raise_type_error(prefix(argument) + " could not be taken by __dlpack__ of " +
                   name_of_type(object) + ": " + reason);
}

// By __dlpack__, or PyTorch's own function, which is some ten times faster than that of its
// tensors.
template <class Imported>
Seen see_by_dlpack(nb::handle object, Imported& owner, const Argument& argument) {
  bool taken = false;
  try {
    taken = nb::try_cast(
        is_torch(object)
            ? nb::object(nb::module_::import_("torch.utils.dlpack").attr("to_dlpack")(object))
            : nb::borrow(object),
        owner, false);
  } catch (const nb::python_error&) {  // refuse() finds out why
  }
  if (!taken) refuse(object, argument, !std::is_same_v<Imported, nb::ndarray<nb::ro>>);
  const nb::dlpack::dltensor array{.data = const_cast<void*>(owner.data_handle()),
                                   .device = {owner.device_type(), owner.device_id()},
                                   .ndim = static_cast<std::int32_t>(owner.ndim()),
                                   .dtype = owner.dtype(),
                                   .shape = const_cast<std::int64_t*>(owner.shape_ptr()),
                                   .strides = const_cast<std::int64_t*>(owner.stride_ptr()),
                                   .byte_offset = owner.byte_offset()};
  return see_dlpack(array, object, argument);
}

// `result` is an Array or a WritableArray.
template <class Result>
Seen see(Result& result, const Argument& argument, bool to_write) {
  const bool exact = is_exact_torch(result.object);
  if (!exact && is_numpy(result.object)) return see_numpy(result.object, argument, to_write);
  if (exact || is_torch(result.object)) {
    refuse_gradients(result.object, argument);
    result.object = without_minus(result.object, argument, to_write);
  }
  nb::dlpack::dltensor array;
  if (exact && see_torch(result.object, array)) return see_dlpack(array, result.object, argument);
  return see_by_dlpack(result.object, result.owner, argument);
}

// Whether an object is of a class of a library that was imported by somebody else. Looked up each
// time: a static here would be waited for by threads that hold the GIL.
bool is_of(nb::handle object, const char* library, const char* name) {
  PyObject* const module = PyDict_GetItemString(PyImport_GetModuleDict(), library);
  if (!module) return false;
  const nb::object type = nb::getattr(nb::handle(module), name, nb::none());
  return PyType_Check(type.ptr()) &&
         PyObject_TypeCheck(object.ptr(), reinterpret_cast<PyTypeObject*>(type.ptr()));
}

}  // namespace

bool is_numpy(nb::handle object) { return is_of(object, "numpy", "ndarray"); }
bool is_torch(nb::handle object) {
  return is_exact_torch(object) || is_of(object, "torch", "Tensor");
}

Array read(nb::handle object, const Argument& argument) {
  Array result;
  if (object.is_none() && argument.optional) return result;
  result.object = nb::borrow(object);
  const Seen seen = see(result, argument, false);
  result.view = ConstTensorView(seen.data, seen.type, seen.shape, seen.strides, seen.device);
  return result;
}

WritableArray write(nb::handle object, const Argument& argument) {
  WritableArray result;
  if (object.is_none() && argument.optional) return result;
  result.object = nb::borrow(object);
  const Seen seen = see(result, argument, true);
  result.view = TensorView(seen.data, seen.type, seen.shape, seen.strides, seen.device);
  return result;
}

std::string name_of_type(nb::handle object) {
  const nb::handle type = object.type();
  const std::string module = string_of(type.attr("__module__"));
  const std::string name = string_of(type.attr("__qualname__"));
  return module == "builtins" ? name : module + "." + name;
}

std::string string_of(nb::handle object) {
  const nb::object bytes = nb::str(object).attr("encode")("utf-8", "backslashreplace");
  return {PyBytes_AS_STRING(bytes.ptr()), static_cast<std::size_t>(PyBytes_GET_SIZE(bytes.ptr()))};
}

std::string text_of(nb::handle object, const std::string& what) {
  if (!PyUnicode_Check(object.ptr()))
    raise_type_error(what + " takes a str, found " + name_of_type(object));
  Py_ssize_t size = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(object.ptr(), &size);
  if (text != nullptr) return {text, static_cast<std::size_t>(size)};
  PyErr_Clear();
  throw InvalidArgument(what + " has a lone surrogate, which UTF-8 cannot hold: '" +
                        string_of(object) + "'");
}

void raise_type_error(const std::string& message) { throw nb::type_error(message.c_str()); }

}  // namespace attend::python
