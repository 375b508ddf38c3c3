// The C exchange API as DLPack 1.2 specifies it. The structs that nanobind does not have are here.
#include "dlpack.h"

#include <memory>

namespace attend::python {
namespace {

struct Version {
  std::uint32_t major, minor;
};

struct ManagedTensor {  // DLManagedTensorVersioned
  Version version;
  void* context;
  void (*deleter)(ManagedTensor*);
  std::uint64_t flags;
  nb::dlpack::dltensor tensor;
};

struct ExchangeApi {  // DLPackExchangeAPI; functions return 0, or -1 with a Python error
  Version version;
  const ExchangeApi* older;  // the same of an earlier major version, or null
  void* allocate;
  void* managed_from_object;
  int (*managed_to_object)(ManagedTensor*, void** object);         // takes the tensor
  int (*tensor_from_object)(void* object, nb::dlpack::dltensor*);  // may be null
  int (*current_stream)(std::int32_t device_type, std::int32_t device, void** stream);
};
constexpr std::uint32_t kMajor = 1;

struct Torch {
  PyTypeObject *tensor = nullptr, *parameter = nullptr;  // never given back
  const ExchangeApi* api = nullptr;                      // lives as long as the process
};
// Found at the first tensor. Not a static of a function: threads that hold the GIL would wait for
// each other.
Torch torch;

const ExchangeApi* api_of(nb::handle type) {
  constexpr const char* name = "dlpack_exchange_api";
  const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
  if (PyCapsule_IsValid(capsule.ptr(), name) == 0) return nullptr;
  const auto* api = static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), name));
  while (api != nullptr && api->version.major > kMajor) api = api->older;
  const bool known = api != nullptr && api->version.major == kMajor &&
                     api->managed_to_object != nullptr && api->tensor_from_object != nullptr &&
                     api->current_stream != nullptr;
  return known ? api : nullptr;
}

// Not imported from here: who has a tensor has imported PyTorch.
bool find_torch() {
  PyObject* const module = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
  if (module == nullptr) return false;
  nb::object tensor = nb::getattr(nb::handle(module), "Tensor", nb::none());
  nb::object parameter =
      nb::getattr(nb::getattr(nb::handle(module), "nn", nb::none()), "Parameter", nb::none());
  if (!PyType_Check(tensor.ptr()) || !PyType_Check(parameter.ptr())) return false;
  torch.api = api_of(tensor);
  torch.parameter = reinterpret_cast<PyTypeObject*>(parameter.release().ptr());
  torch.tensor = reinterpret_cast<PyTypeObject*>(tensor.release().ptr());
  return true;
}

// A tensor on its way to PyTorch, which deletes it: what it shows, and the memory.
struct Handed {
  ManagedTensor managed{};
  ConstTensorView view;
  Tensor memory;
};

}  // namespace

nb::dlpack::dtype to_dlpack(DType type) {
  using Code = nb::dlpack::dtype_code;
  const auto make = [&](Code code) {
    return nb::dlpack::dtype{static_cast<std::uint8_t>(code),
                             static_cast<std::uint8_t>(8 * size_of(type)), 1};
  };
  switch (type) {
    case DType::f64:
    case DType::f32:
    case DType::f16: return make(Code::Float);
    case DType::bf16: return make(Code::Bfloat);
    case DType::i64:
    case DType::i32:
    case DType::i8: return make(Code::Int);
    case DType::u8: return make(Code::UInt);
    case DType::boolean: return make(Code::Bool);
  }
  return {};
}

std::optional<DType> from_dlpack(nb::dlpack::dtype type) {
  for (const DType found : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::boolean,
                            DType::i64, DType::i32, DType::i8, DType::u8}) {
    if (to_dlpack(found) == type) return found;
  }
  return {};
}

bool is_exact_torch(nb::handle object) {
  if (torch.tensor == nullptr && !find_torch()) return false;
  const PyTypeObject* const type = Py_TYPE(object.ptr());
  return type == torch.tensor || type == torch.parameter;
}

bool see_torch(nb::handle tensor, nb::dlpack::dltensor& seen) {
  if (torch.api == nullptr) return false;
  if (torch.api->tensor_from_object(tensor.ptr(), &seen) == 0) return true;
  PyErr_Clear();
  return false;
}

void* torch_stream(int device) {
  void* stream = nullptr;
  if (torch.api == nullptr)
    return reinterpret_cast<void*>(nb::cast<std::uintptr_t>(
        nb::module_::import_("torch.cuda").attr("current_stream")(device).attr("cuda_stream")));
  if (torch.api->current_stream(nb::device::cuda::value, device, &stream) != 0)
    throw nb::python_error();
  return stream;
}

nb::object loaded_torch_cuda() {
  PyObject* const module = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
  if (module == nullptr) return {};
  nb::object found = nb::getattr(nb::handle(module), "cuda", nb::none());
  if (!nb::hasattr(found, "is_available") || !nb::cast<bool>(found.attr("is_available")()))
    return {};
  return found;
}

nb::object make_torch(Tensor& memory, const ConstTensorView& view) {
  if (torch.api == nullptr) return {};
  auto handed = std::make_unique<Handed>();
  handed->memory = std::move(memory);
  handed->view = view;
  ManagedTensor& managed = handed->managed;
  managed.version = {kMajor, 0};
  managed.context = handed.get();
  managed.deleter = [](ManagedTensor* self) { delete static_cast<Handed*>(self->context); };
  managed.tensor.data = const_cast<void*>(view.data());
  const bool on_gpu = view.device().kind == Device::Kind::cuda;
  managed.tensor.device = {on_gpu ? nb::device::cuda::value : nb::device::cpu::value,
                           on_gpu ? view.device().index : 0};
  managed.tensor.ndim = view.rank();
  managed.tensor.dtype = to_dlpack(view.dtype());
  managed.tensor.shape = const_cast<std::int64_t*>(handed->view.shape().begin());
  managed.tensor.strides = const_cast<std::int64_t*>(handed->view.strides().begin());
  void* object = nullptr;
  if (torch.api->managed_to_object(&handed.release()->managed, &object) != 0)
    throw nb::python_error();
  return nb::steal(static_cast<PyObject*>(object));
}

}  // namespace attend::python
