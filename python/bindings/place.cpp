#include "place.h"

#include "bindings.h"
#include "dlpack.h"

#include <vector>

namespace attend::python {
namespace {

using namespace nb::literals;

nb::object torch_type(DType type) {
  const auto name = [&] {
    switch (type) {
      case DType::f64: return "float64";
      case DType::bf16: return "bfloat16";
      case DType::f16: return "float16";
      default: return "float32";
    }
  };
  return nb::module_::import_("torch").attr(name());
}

}  // namespace

Place::Place(const char* where, nb::handle like, Device device, Context& context)
    : like_(like), device_(device), context_(context) {
  if (on_host()) return;
  if (const std::string reason = cuda::why_unavailable(device.index); !reason.empty())
    throw Unsupported(std::string(where) + ": the arrays are on " + to_string(device) +
                      ", but this process " + reason);
  waits_ = !is_torch(like);
  queue_ = cuda::make_queue(device.index, waits_ ? nullptr : torch_stream(device.index));
}

// On a GPU; `by` is the method of PyTorch's tensors.
NewArray Place::made(const char* by, const Shape& shape, DType type) const {
  NewArray made;
  void* data = nullptr;
  if (waits_) {
    const auto bytes = static_cast<std::size_t>(element_count(shape) * size_of(type));
    made.memory_ = std::make_unique<cuda::Memory>(bytes, device_.index);
    data = made.memory_->data();
  } else {
    made.torch_ = like_.attr(by)(to_tuple(shape), "dtype"_a = torch_type(type));
    data = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(made.torch_.attr("data_ptr")()));
  }
  made.view_ = TensorView(data, type, shape, device_);
  return made;
}

NewArray Place::make(const Shape& shape, DType type) const {
  return on_host() ? NewArray(context_.make_tensor(shape, type)) : made("new_empty", shape, type);
}

NewArray Place::zeros(const Shape& shape, DType type) const {
  if (on_host()) return NewArray(Tensor(shape, type));
  NewArray array = made("new_zeros", shape, type);
  if (waits_) {
    const std::vector<std::byte> nothing(array.memory_->bytes());
    cuda::copy(array.memory_->data(), nothing.data(), nothing.size(), *queue_);
  }
  return array;
}

nb::object NewArray::to_python(nb::handle like) {
  if (torch_.is_valid()) return std::move(torch_);
  return memory_ ? python::to_python(std::move(memory_), view_, like)
                 : python::to_python(std::move(host_), like);
}

nb::object NewArray::to_torch(const ConstTensorView& view) {
  if (!torch_.is_valid()) return make_torch(host_, view);
  return view.strides() == view_.strides() ? std::move(torch_) : torch_.attr("transpose")(1, 2);
}

void bind_cuda(nb::module_& m) {
  m.def(
      "cuda_why_unavailable", &cuda::why_unavailable, "device"_a = 0,
      "Why calls on arrays of this GPU cannot be made, in words that follow \"this process\"; '': "
      "they can.");
  m.def("cuda_device_count", &cuda::device_count, "How many NVIDIA GPUs there are.");
}

}  // namespace attend::python
