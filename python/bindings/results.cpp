// From the library to Python: arrays that own a tensor's memory, or show memory of a layer.
#include "arrays.h"

#include "dlpack.h"

#include <array>
#include <memory>
#include <string_view>

namespace attend::python {
namespace {

template <class Wrapped>
Wrapped wrap(const ConstTensorView& view, nb::handle owner, nb::dlpack::dtype type) {
  const bool on_gpu = view.device().kind == Device::Kind::cuda;
  std::array<std::size_t, kMaxRank> shape{};
  for (int dim = 0; dim < view.rank(); ++dim) {
    shape[static_cast<std::size_t>(dim)] = static_cast<std::size_t>(view.size(dim));
  }
  return Wrapped(const_cast<void*>(view.data()), static_cast<std::size_t>(view.rank()),
                 shape.data(), owner, view.strides().begin(), type,
                 on_gpu ? nb::device::cuda::value : nb::device::cpu::value, view.device().index);
}

// NumPy has no bfloat16 of its own: such memory goes over as 16 bits, and ml_dtypes names it.
template <class... Marks>
nb::object wrap_numpy(const ConstTensorView& view, nb::handle owner) {
  using Wrapped = nb::ndarray<nb::numpy, Marks...>;
  if (view.dtype() != DType::bf16) {
    return wrap<Wrapped>(view, owner, to_dlpack(view.dtype())).cast(nb::rv_policy::reference);
  }
  const auto bits = wrap<Wrapped>(view, owner, nb::dtype<std::uint16_t>());
  return nb::object(nb::cast(bits, nb::rv_policy::reference))
      .attr("view")(nb::module_::import_("ml_dtypes").attr("bfloat16"));
}

// Has from_dlpack, as the array API standard has it of every library's namespace. CuPy's arrays may
// not say theirs; it is the module of their type.
nb::object library_of(nb::handle like) {
  if (nb::hasattr(like, "__array_namespace__")) return like.attr("__array_namespace__")();
  const std::string type = name_of_type(like);
  return nb::module_::import_(type.substr(0, type.find('.')).c_str());
}

}  // namespace

nb::object to_python(Tensor&& tensor, nb::handle like) {
  if (!tensor) return nb::none();
  const bool to_torch = like.is_valid() && is_torch(like);
  if (to_torch) {
    if (nb::object made = make_torch(tensor, tensor.view())) return made;
  }
  auto kept = std::make_unique<Tensor>(std::move(tensor));
  const ConstTensorView view = *kept;
  const nb::capsule owner(kept.get(),
                          [](void* memory) noexcept { delete static_cast<Tensor*>(memory); });
  kept.release();
  if (!like.is_valid() || is_numpy(like)) return wrap_numpy(view, owner);
  const nb::dlpack::dtype type = to_dlpack(view.dtype());
  if (to_torch) {
    return nb::module_::import_("torch.utils.dlpack")
        .attr("from_dlpack")(wrap<nb::ndarray<>>(view, owner, type));
  }
  if (view.device() != Device{} || nb::hasattr(like, "__array_namespace__")) {
    return library_of(like).attr("from_dlpack")(
        wrap<nb::ndarray<nb::array_api>>(view, owner, type));
  }
  return wrap_numpy(view, owner);
}

nb::object to_python(std::unique_ptr<cuda::Memory>&& memory, const ConstTensorView& view,
                     nb::handle like) {
  const nb::capsule owner(memory.get(),
                          [](void* kept) noexcept { delete static_cast<cuda::Memory*>(kept); });
  memory.release();
  return library_of(like).attr("from_dlpack")(
      wrap<nb::ndarray<nb::array_api>>(view, owner, to_dlpack(view.dtype())));
}

nb::object show(const TensorView& view, nb::handle owner) { return wrap_numpy(view, owner); }

nb::object show(const ConstTensorView& view, nb::handle owner) {
  return wrap_numpy<nb::ro>(view, owner);
}

nb::object show_torch(const TensorView& view, nb::handle owner) {
  return nb::module_::import_("torch.utils.dlpack")
      .attr("from_dlpack")(wrap<nb::ndarray<>>(view, owner, to_dlpack(view.dtype())));
}

DType to_dtype(nb::handle object, const char* where) {
  // str(torch.float32) is "torch.float32", str(numpy.dtype("f4")) is "float32"; a NumPy class has
  // its name in __name__.
  std::string name =
      string_of(nb::hasattr(object, "__name__") ? object.attr("__name__") : nb::borrow(object));
  name = name.substr(name.rfind('.') + 1);
  constexpr std::array<std::pair<std::string_view, DType>, 10> names{{{"f64", DType::f64},
                                                                      {"float64", DType::f64},
                                                                      {"f32", DType::f32},
                                                                      {"float32", DType::f32},
                                                                      {"bf16", DType::bf16},
                                                                      {"bfloat16", DType::bf16},
                                                                      {"f16", DType::f16},
                                                                      {"float16", DType::f16},
                                                                      {"i8", DType::i8},
                                                                      {"int8", DType::i8}}};
  for (const auto& [known, type] : names) {
    if (name == known) return type;
  }
  raise_type_error(std::string(where) +
                   ": type is f64, f32, bf16 or f16 (of a KvCache also i8), found " + name);
}

nb::tuple to_tuple(const Shape& shape) {
  nb::list list;
  for (const std::int64_t size : shape) list.append(size);
  return nb::tuple(list);
}

}  // namespace attend::python
