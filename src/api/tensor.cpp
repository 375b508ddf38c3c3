// Shape, the views and Tensor.
#include "api/context.h"
#include "api/launch.h"
#include "api/tensor_memory.h"
#include "core/reporting.h"
#include "core/text.h"

#include <attend/tensor.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

namespace attend {
namespace {

void check_sizes(const Shape& shape) {
  for (const std::int64_t size : shape)
    if (size < 0) throw InvalidArgument(text("tensor: ", shape, " has a negative size"));
  element_count(shape);
}

void check_dim(const char* function, const Shape& shape, int dim) {
  if (dim < 0 || dim >= shape.rank())
    throw InvalidArgument(text(function, ": there is no dimension ", dim, " in ", shape));
}

std::size_t byte_count(DType type, const Shape& shape) {
  std::size_t bytes = 0;
  // Half of the address space is the limit of the language, and some bytes below 2^64 the runtime
  // rounds up to the alignment, which gives 0.
  if (__builtin_mul_overflow(static_cast<std::size_t>(element_count(shape)),
                             static_cast<std::size_t>(size_of(type)), &bytes) ||
      bytes > static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max()))
    throw InvalidArgument(text("tensor: ", shape, " of ", type, " is larger than memory can be"));
  return bytes;
}

int checked_rank(std::size_t rank) {
  if (rank > static_cast<std::size_t>(kMaxRank))
    throw InvalidArgument(
        text("tensor: ", rank, " dimensions; at most ", kMaxRank, " are allowed"));
  return static_cast<int>(rank);
}

// A cast makes enums of any number.
void check_enums(DType type, Device device) {
  if (type > DType::boolean)
    throw InvalidArgument(text("tensor: DType(", static_cast<int>(type), ") is no type"));
  if (device.kind > Device::Kind::cuda)
    throw InvalidArgument(
        text("tensor: Device::Kind(", static_cast<int>(device.kind), ") is no kind of device"));
}

}  // namespace

const char* version() noexcept { return ATTEND_VERSION; }

// ---- Shape -------------------------------------------------------------------------------------

Shape::Shape(std::initializer_list<Value> values) : rank_(checked_rank(values.size())) {
  std::transform(values.begin(), values.end(), values_.begin(), [](Value v) { return v.value; });
}

Shape::Shape(std::span<const std::int64_t> values) : rank_(checked_rank(values.size())) {
  std::copy(values.begin(), values.end(), values_.begin());
}

void Shape::Value::too_large(std::uint64_t any) {
  throw InvalidArgument(text("tensor: a size of ", any, "; it must be below 2^63"));
}

std::string to_string(const Shape& shape) {
  std::string s = "[";
  for (int dim = 0; dim < shape.rank(); ++dim)
    s += (dim > 0 ? ", " : "") + std::to_string(shape[dim]);
  return s + "]";
}

std::string to_string(Device device) {
  return device.kind == Device::Kind::cpu ? "cpu" : "cuda:" + std::to_string(device.index);
}

std::int64_t element_count(const Shape& shape) {
  std::int64_t count = 1;
  bool overflow = false;
  for (const std::int64_t size : shape) overflow |= __builtin_mul_overflow(count, size, &count);
  if (!overflow) return count;
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;  // whatever the others are
  throw InvalidArgument(text("tensor: ", shape, " has 2^63 elements or more"));
}

Shape contiguous_strides(const Shape& shape) {
  check_sizes(shape);
  Shape strides = shape;
  std::int64_t stride = 1;
  for (int dim = shape.rank() - 1; dim >= 0; --dim) {
    strides[dim] = stride;
    if (shape[dim] != 0 && __builtin_mul_overflow(stride, shape[dim], &stride))
      throw InvalidArgument(text("tensor: the strides of ", shape, " are 2^63 or more"));
  }
  return strides;
}

// ---- Views -------------------------------------------------------------------------------------

ConstTensorView::ConstTensorView(const void* data, DType type, const Shape& shape, Device device)
    : ConstTensorView(data, type, shape, contiguous_strides(shape), device) {}

ConstTensorView::ConstTensorView(const void* data, DType type, const Shape& shape,
                                 const Shape& strides, Device device)
    : data_(data), shape_(shape), strides_(strides), device_(device), type_(type), defined_(true) {
  check_enums(type, device);
  check_sizes(shape);
  if (strides.rank() != shape.rank())
    throw InvalidArgument(text("tensor: ", strides.rank(), " strides ", strides, " for the ",
                               shape.rank(), " dimensions ", shape, "; each needs one"));
}

const void* ConstTensorView::address(DType type, const Shape& index) const {
  if (!defined_) throw InvalidArgument("at: there is no tensor");
  if (device_ != Device{})
    throw InvalidArgument(text("at: the tensor is on ", device_, ", not in host memory"));
  if (type != type_) throw InvalidArgument(text("at: the tensor holds ", type_, ", not ", type));
  bool inside = index.rank() == rank();
  std::int64_t offset = 0;
  for (int dim = 0; inside && dim < rank(); ++dim) {
    inside = index[dim] >= 0 && index[dim] < shape_[dim];
    offset += index[dim] * strides_[dim];
  }
  if (!inside) throw InvalidArgument(text("at: index ", index, " is outside ", shape_));
  if (data_ == nullptr) throw InvalidArgument(text("at: the tensor ", shape_, " has no address"));
  return static_cast<const std::byte*>(data_) + offset * size_of(type_);
}

ConstTensorView ConstTensorView::permute(const Shape& order) const {
  ConstTensorView view = *this;
  bool used[kMaxRank] = {};
  bool valid = order.rank() == rank();
  for (int dim = 0; valid && dim < rank(); ++dim) {
    const std::int64_t from = order[dim];
    valid = from >= 0 && from < rank() && !used[from];
    if (!valid) break;
    used[from] = true;
    view.shape_[dim] = shape_[static_cast<int>(from)];
    view.strides_[dim] = strides_[static_cast<int>(from)];
  }
  if (!valid)
    throw InvalidArgument(
        text("permute: ", order, " is not an order of the ", rank(), " dimensions of ", shape_));
  return view;
}

ConstTensorView ConstTensorView::slice(int dim, std::int64_t begin, std::int64_t end,
                                       std::int64_t step) const {
  check_dim("slice", shape_, dim);
  const std::int64_t size = shape_[dim];
  const bool forward = step > 0 && 0 <= begin && begin <= end && end <= size;
  const bool backward = step < 0 && -1 <= end && end <= begin && begin < size;
  if (!forward && !backward)
    throw InvalidArgument(text("slice: from ", begin, " to ", end, " by ", step,
                               " of a dimension of ", size,
                               "; it must be 0 <= from <= to <= size, or, with a negative step, "
                               "-1 <= to <= from < size"));
  ConstTensorView view = *this;
  view.shape_[dim] = begin == end ? 0 : (end - begin - (forward ? 1 : -1)) / step + 1;
  if (view.shape_[dim] > 1) view.strides_[dim] *= step;  // of one element it may be too large
  if (element_count(view.shape_) > 0)
    view.data_ = static_cast<const std::byte*>(data_) + begin * strides_[dim] * size_of(type_);
  return view;
}

ConstTensorView ConstTensorView::broadcast_to(const Shape& shape) const {
  ConstTensorView view = *this;
  view.shape_ = shape;
  view.strides_ = shape;
  check_sizes(shape);
  const int extra = shape.rank() - rank();
  bool valid = extra >= 0;
  for (int dim = 0; valid && dim < shape.rank(); ++dim) {
    const std::int64_t size = dim < extra ? 1 : shape_[dim - extra];
    valid = size == 1 || size == shape[dim];
    view.strides_[dim] = size == 1 ? 0 : strides_[dim - extra];
  }
  if (!valid)
    throw InvalidArgument(text("broadcast_to: ", shape_, " cannot be repeated to ", shape,
                               "; a size must be 1 or equal"));
  return view;
}

TensorView TensorView::permute(const Shape& order) const {
  return TensorView(ConstTensorView::permute(order));
}

TensorView TensorView::slice(int dim, std::int64_t begin, std::int64_t end,
                             std::int64_t step) const {
  return TensorView(ConstTensorView::slice(dim, begin, end, step));
}

// ---- Tensor ------------------------------------------------------------------------------------

void Tensor::Free::operator()(void* memory) const noexcept { give_memory(memory); }

Tensor Tensor::uninitialized(const Shape& shape, DType type) {
  return made(shape, type, [](std::size_t bytes) { return take_memory(bytes); });
}

template <class Take>
Tensor Tensor::made(const Shape& shape, DType type, const Take& take) {
  check_enums(type, {});
  check_sizes(shape);
  const std::size_t bytes = byte_count(type, shape);
  Tensor tensor;
  tensor.memory_.reset(take(bytes));
  if (!tensor.memory_)
    throw OutOfMemory(text("tensor: no memory for the ", bytes, " bytes of ", shape, " ", type));
  tensor.view_ = TensorView(tensor.memory_.get(), type, shape);
  return tensor;
}

Tensor Tensor::uninitialized(const Shape& shape, DType type, Device device, const Where& where) {
  if (device == Device{}) return where.context().make_tensor(shape, type);
  check_enums(type, device);
  check_sizes(shape);
  const std::size_t bytes = byte_count(type, shape);
  if (where.queue() == nullptr)
    throw InvalidArgument(
        text("tensor: memory of ", device, " comes from a queue of it, which must be given"));
  Status why;
  const DeviceBlock block =
      take_device_memory(bytes, queue_for("tensor", device, where.queue()), why);
  if (why.kind == Status::Kind::out_of_memory)
    throw OutOfMemory(
        text("tensor: ", device, " has no memory for the ", bytes, " bytes of ", shape, " ", type));
  check_launched("tensor", device, why);
  Tensor tensor;
  tensor.memory_.reset(block.owner);
  tensor.view_ = TensorView(block.data, type, shape, device);
  return tensor;
}

Tensor Context::make_tensor(const Shape& shape, DType type) const {
  return Tensor::made(shape, type,
                      [&](std::size_t bytes) { return take_memory(bytes, state_->tensors); });
}

Tensor::Tensor(const Shape& shape, DType type) : Tensor(uninitialized(shape, type)) {
  std::memset(view_.data(), 0, byte_count(type, shape));
}

Tensor::Tensor(const void* values, std::size_t count, DType type, const Shape& shape) {
  check_sizes(shape);
  if (count != static_cast<std::size_t>(element_count(shape)))
    throw InvalidArgument(
        text("tensor: ", count, " values for the ", element_count(shape), " elements of ", shape));
  *this = uninitialized(shape, type);
  if (count > 0) std::memcpy(view_.data(), values, byte_count(type, shape));
}

Tensor Tensor::copy_of(const ConstTensorView& view) {
  if (!view) return {};
  if (view.device() != Device{})
    throw InvalidArgument(
        text("copy_of: the tensor is on ", view.device(), ", not in host memory"));
  if (view.data() == nullptr && view.count() > 0)
    throw InvalidArgument(text("copy_of: the tensor ", view.shape(), " has no address"));
  Tensor tensor = uninitialized(view.shape(), view.dtype());
  copy_elements(view, static_cast<std::byte*>(tensor.view_.data()));
  return tensor;
}

// By the device's queue, which waits. What is not contiguous is made so first, where it is.
Tensor Tensor::copy_of(const ConstTensorView& view, Device device, const Where& where) {
  if (!view) return {};
  if (view.data() == nullptr && view.count() > 0)
    throw InvalidArgument(text("copy_of: the tensor ", view.shape(), " has no address"));
  const Device from = view.device();
  if (from == device && (device == Device{} || !is_contiguous(view))) return copied(view, where);
  if (from != Device{} && device != Device{} && from != device)
    throw Unsupported(text("copy_of: from ", from, " to ", device,
                           " a tensor goes by the host, in two copies with a queue of each"));
  const Tensor between = is_contiguous(view) ? Tensor() : copied(view, where);
  Tensor tensor = uninitialized(view.shape(), view.dtype(), device, where);
  const Device there = device == Device{} ? from : device;
  Queue& queue = queue_for("copy_of", there, where.queue());
  check_launched("copy_of", there,
                 queue.copy(tensor.view_.data(), between ? between.view_.data() : view.data(),
                            byte_count(view.dtype(), view.shape())));
  return tensor;
}

Tensor::Tensor(const Tensor& other) {
  if (other.device() == Device{}) {
    *this = copy_of(other.view_);
    return;
  }
  Queue& queue = *queue_of(other.memory_.get());
  *this = uninitialized(other.shape(), other.dtype(), other.device(), queue);
  check_launched(
      "tensor", other.device(),
      queue.copy(view_.data(), other.view_.data(), byte_count(other.dtype(), other.shape())));
}

Tensor& Tensor::operator=(const Tensor& other) {
  if (this != &other) *this = Tensor(other);
  return *this;
}

Tensor::Tensor(Tensor&& other) noexcept
    : memory_(std::move(other.memory_)), view_(std::exchange(other.view_, {})) {}

Tensor& Tensor::operator=(Tensor&& other) noexcept {
  memory_ = std::move(other.memory_);
  view_ = std::exchange(other.view_, {});
  return *this;
}

void Tensor::check_type(DType type) const {
  if (view_ && type != view_.dtype())
    throw InvalidArgument(text("data: the tensor holds ", view_.dtype(), ", not ", type));
}

// ---- TensorOrView ------------------------------------------------------------------------------

struct TensorOrView::Kept {
  Tensor tensor;
  std::atomic<std::int64_t> count{1};
};

TensorOrView::TensorOrView(Tensor&& tensor)
    : kept_(reporting("tensor", [&] { return new Kept{std::move(tensor)}; })) {
  ConstTensorView::operator=(kept_->tensor);
}

void TensorOrView::share() const noexcept { kept_->count.fetch_add(1, std::memory_order_relaxed); }

void TensorOrView::leave() const noexcept {
  if (kept_->count.fetch_sub(1, std::memory_order_acq_rel) == 1) delete kept_;
}

}  // namespace attend
