// What layers refuse, and in which words.
#include "layer/check.h"

#include "api/launch.h"
#include "api/overlap.h"
#include "core/text.h"

#include <cmath>

namespace attend {
namespace {

void check_same_type(const char* layer, const char* name, DType found, DType type) {
  if (found != type)
    throw InvalidArgument(text(layer, ": ", name, " is ", found, ", the layer is ", type));
}

}  // namespace

void check_size(const char* layer, const char* name, std::int64_t size) {
  if (size < 1)
    throw InvalidArgument(text(layer, ": ", name, " is ", size, "; it must be at least 1"));
}

void check_choice(const char* layer, const char* name, std::size_t choice, std::size_t count) {
  if (choice >= count)
    throw InvalidArgument(
        text(layer, ": ", name, " is ", choice, "; its choices go from 0 to ", count - 1));
}

void check_deviation(const char* layer, double deviation) {
  if (!(deviation >= 0 && std::isfinite(deviation)))
    throw InvalidArgument(
        text(layer, ": deviation is ", deviation, "; it must be finite and not negative"));
}

void check_type(const char* layer, DType type) {
  if (!is_floating_point(type))
    throw InvalidArgument(
        text(layer, ": the type is ", type, "; it must be f64, f32, bf16 or f16"));
}

void check_made(const char* layer, bool made) {
  if (!made) throw InvalidArgument(text(layer, ": the layer is none; make it from options first"));
}

void check_has_gradients(const char* layer, bool quantized) {
  if (quantized)
    throw Unsupported(text(layer, ": the weights are i8, of quantize(); gradients need weights of ",
                           "f64, f32, bf16 or f16: train the layer first, then quantize it"));
}

void check_queue(const char* layer, Device device, const Where& where) {
  if (device != Device{}) queue_for(layer, device, where.queue());
}

void check_on_host(const char* layer, const char* function, Device device) {
  if (device != Device{})
    throw Unsupported(text(layer, ": ", function, " takes host memory alone, found ", device,
                           "; make a copy in it: to() of a layer, Tensor::copy_of()"));
}

void check_readable(const char* layer, const char* name, const ConstTensorView& x, Device device) {
  if (!x) throw InvalidArgument(text(layer, ": ", name, " is missing"));
  if (x.device() != device && device != Device{})
    throw InvalidArgument(text(layer, ": ", name, " is on ", x.device(), ", the layer on ", device,
                               "; both must be on one device"));
  if (x.device() != device)
    throw InvalidArgument(text(layer, ": ", name, " is on ", x.device(), ", not in host memory"));
  if (x.data() == nullptr && x.count() > 0)
    throw InvalidArgument(text(layer, ": ", name, " ", x.shape(), " has no address"));
  const std::int64_t size = size_of(x.dtype());
  if (reinterpret_cast<std::intptr_t>(x.data()) % size != 0 && x.count() > 0)
    throw InvalidArgument(text(layer, ": ", name, " is ", x.dtype(),
                               ", but its address is not a multiple of ", size));
}

void check_input(const char* layer, const char* name, const ConstTensorView& x, DType type,
                 std::int64_t features, Device device) {
  check_readable(layer, name, x, device);
  if (x.dtype() != type)
    throw InvalidArgument(text(layer, ": ", name, " is ", x.dtype(), ", the layer is ", type,
                               "; convert it, or the layer with to()"));
  if (x.rank() == 0 || x.size(x.rank() - 1) != features)
    throw InvalidArgument(
        text(layer, ": ", name, " is ", x.shape(), "; it must be [..., ", features, "]"));
}

void check_shape(const char* layer, const char* name, const ConstTensorView& x, DType type,
                 const Shape& shape, Device device) {
  check_readable(layer, name, x, device);
  check_same_type(layer, name, x.dtype(), type);
  if (x.shape() != shape)
    throw InvalidArgument(text(layer, ": ", name, " is ", x.shape(), "; it must be ", shape));
}

void check_output(const char* layer, const char* name, const ConstTensorView& y, DType type,
                  const Shape& shape, Device device) {
  check_shape(layer, name, y, type, shape, device);
  if (spans_too_far(y))
    throw InvalidArgument(text(layer, ": ", name, " ", y.shape(), " with strides ", y.strides(),
                               " reaches further than 2^60 bytes"));
  if (overlaps_itself(y))
    throw InvalidArgument(text(layer, ": ", name, " ", y.shape(), " with strides ", y.strides(),
                               " has elements that share memory; outputs must not"));
}

void check_apart(const char* layer, const char* name, const ConstTensorView& y, const char* other,
                 const ConstTensorView& x) {
  if (x && overlap(y, x))
    throw InvalidArgument(
        text(layer, ": ", name, " overlaps ", other, " in memory; outputs must not"));
}

}  // namespace attend
