// The elements of a tensor as bytes of a file.
#include "io/elements.h"

#include <array>
#include <bit>
#include <cstring>

namespace attend {
namespace {

static_assert(std::endian::native == std::endian::little, "both formats are little-endian");

constexpr std::size_t kBufferBytes = 65536;  // a multiple of every element's size

bool is_contiguous(const ConstTensorView& view) {
  std::int64_t expected = 1;
  for (int dim = view.rank() - 1; dim >= 0; --dim) {
    if (view.size(dim) == 1) continue;  // its stride is never used
    if (view.strides()[dim] != expected) return false;
    expected *= view.size(dim);
  }
  return true;
}

// Calls use(address) for every element in row-major order.
template <class Use>
void for_each_element(const ConstTensorView& view, Use use) {
  Shape index = view.shape();
  for (int dim = 0; dim < index.rank(); ++dim) index[dim] = 0;
  for (std::int64_t n = view.count(); n > 0; --n) {
    std::int64_t offset = 0;
    for (int dim = 0; dim < index.rank(); ++dim)
      if (index[dim] != 0) offset += index[dim] * view.strides()[dim];
    use(static_cast<const std::byte*>(view.data()) + offset * size_of(view.dtype()));
    for (int dim = index.rank() - 1; dim >= 0 && ++index[dim] == view.size(dim); --dim)
      index[dim] = 0;
  }
}

}  // namespace

std::optional<std::uint64_t> byte_count(const std::vector<std::uint64_t>& sizes, DType type) {
  std::int64_t without_zeros = size_of(type);
  bool zero = false;
  for (const std::uint64_t size : sizes) {
    zero |= size == 0;
    if (size != 0 && __builtin_mul_overflow(without_zeros, size, &without_zeros)) return {};
  }
  return zero ? 0 : static_cast<std::uint64_t>(without_zeros);
}

Shape shape_of(const std::vector<std::uint64_t>& sizes) {
  const std::vector<std::int64_t> values(sizes.begin(), sizes.end());
  return Shape(values);
}

Tensor read_elements(const Source& source, std::uint64_t offset, const Shape& shape, DType type,
                     std::string_view what) {
  Tensor tensor = Tensor::uninitialized(shape, type);
  auto* bytes = static_cast<unsigned char*>(tensor.view().data());
  const std::int64_t count = tensor.count();
  source.read(offset, bytes, static_cast<std::size_t>(count * size_of(type)));
  // A bool that is neither 0 nor 1 is undefined behaviour in whoever reads it.
  for (std::int64_t n = 0; type == DType::boolean && n < count; ++n)
    if (bytes[n] > 1)
      source.fail("element ", n, " of ", what, " is ", int{bytes[n]}, "; a bool is 0 or 1");
  return tensor;
}

void write_elements(Sink& sink, const ConstTensorView& view) {
  const auto size = static_cast<std::size_t>(size_of(view.dtype()));
  const bool is_bool = view.dtype() == DType::boolean;
  if (view.count() == 0) return;
  if (is_contiguous(view) && !is_bool) {
    sink.write(view.data(), static_cast<std::size_t>(view.count()) * size);
    return;
  }
  std::array<std::byte, kBufferBytes> buffer;
  std::size_t filled = 0;
  for_each_element(view, [&](const std::byte* element) {
    std::memcpy(&buffer[filled], element, size);
    if (is_bool) buffer[filled] = std::byte{*element != std::byte{0}};  // any but 0 is true
    filled += size;
    if (filled < buffer.size()) return;
    sink.write(buffer.data(), filled);
    filled = 0;
  });
  sink.write(buffer.data(), filled);
}

void check_writable(std::string_view where, std::string_view what, const ConstTensorView& view) {
  if (!view) throw InvalidArgument(text(where, ": ", what, " is missing"));
  if (view.device() != Device{})
    throw InvalidArgument(
        text(where, ": ", what, " is on ", view.device(), ", not in host memory"));
  if (view.data() == nullptr && view.count() > 0)
    throw InvalidArgument(text(where, ": ", what, " ", view.shape(), " has no address"));
  const std::vector<std::uint64_t> sizes(view.shape().begin(), view.shape().end());
  if (!byte_count(sizes, view.dtype()))
    throw InvalidArgument(text(where, ": ", what, " ", view.shape(), " of ", view.dtype(),
                               " is larger than a file can be"));
}

}  // namespace attend
