#include "arena.h"

#include <algorithm>
#include <cstring>

namespace attend::cases {
namespace {

// All ones: NaN in f64, f32, bf16 and f16, and -1 (or true) in the integers.
constexpr std::byte kGuard{0xff};
constexpr std::int64_t kGuardElements = 32;  // on each side of a buffer

struct Placement {
  Shape strides;
  std::int64_t first = 0;     // element of index 0
  std::int64_t elements = 0;  // the buffer's
};

// Row-major strides for the dimensions in the order `order` (outermost first), with `gap` elements
// left free after each extent and `inner` elements from one of the innermost dimension to the next.
Shape strides_in_order(const Shape& shape, const Shape& order, std::int64_t inner, std::int64_t gap,
                       std::int64_t& elements) {
  Shape strides = shape;
  std::int64_t stride = inner;
  for (int n = shape.rank() - 1; n >= 0; --n) {
    const int dim = static_cast<int>(order[n]);
    strides[dim] = stride;
    stride = stride * std::max<std::int64_t>(shape[dim], 1) + gap;
  }
  elements = stride;
  return strides;
}

Placement placement(const Shape& shape, Layout layout) {
  const int rank = shape.rank();
  Shape order = shape;
  for (int dim = 0; dim < rank; ++dim) order[dim] = dim;
  if (layout == Layout::bthd && rank == 4) std::swap(order[1], order[2]);
  if (layout == Layout::transposed && rank >= 2) std::swap(order[rank - 1], order[rank - 2]);
  const std::int64_t inner = layout == Layout::gapped ? 3 : 1;
  const std::int64_t gap = layout == Layout::padded ? 3 : 0;
  Placement result;
  result.strides = strides_in_order(shape, order, inner, gap, result.elements);
  if (layout == Layout::padded) {
    result.first = 1;
    result.elements += 1;
  }
  for (int dim = 0; layout == Layout::reversed && dim < rank; ++dim) {
    result.first += result.strides[dim] * std::max<std::int64_t>(shape[dim] - 1, 0);
    result.strides[dim] = -result.strides[dim];
  }
  if (layout == Layout::broadcast_batch) result.strides[0] = 0;
  if (layout == Layout::broadcast_heads) result.strides[1] = 0;
  return result;
}

std::uint64_t checksum_of(const std::vector<std::byte>& bytes) {
  std::uint64_t sum = 0xcbf29ce484222325u;  // FNV-1a
  for (const std::byte byte : bytes)
    sum = (sum ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3u;
  return sum;
}

std::byte* address_of(const TensorView& view, const Shape& index) {
  std::int64_t offset = 0;
  for (int dim = 0; dim < view.rank(); ++dim) offset += index[dim] * view.strides()[dim];
  return static_cast<std::byte*>(view.data()) + offset * size_of(view.dtype());
}

template <class T>
void put(std::byte* address, T value) {
  std::memcpy(address, &value, sizeof value);
}

}  // namespace

void for_each_index(const Shape& shape, const std::function<void(const Shape&)>& visit) {
  if (element_count(shape) == 0) return;
  Shape index = shape;
  for (int dim = 0; dim < shape.rank(); ++dim) index[dim] = 0;
  while (true) {
    visit(index);
    int dim = shape.rank() - 1;
    while (dim >= 0 && ++index[dim] == shape[dim]) index[dim--] = 0;
    if (dim < 0) return;
  }
}

void store(const TensorView& view, const Shape& index, double value) {
  std::byte* address = address_of(view, index);
  switch (view.dtype()) {
    case DType::f64: return put(address, value);
    case DType::f32: return put(address, static_cast<float>(value));
    case DType::bf16: return put(address, bf16(value));
    case DType::f16: return put(address, f16(value));
    case DType::i64: return put(address, static_cast<std::int64_t>(value));
    case DType::i32: return put(address, static_cast<std::int32_t>(value));
    case DType::i8: return put(address, static_cast<std::int8_t>(value));
    case DType::u8: return put(address, static_cast<std::uint8_t>(value));
    case DType::boolean: return put(address, value != 0);
  }
}

Arena::Buffer& Arena::allocate(std::int64_t elements, DType type, bool output) {
  Buffer& buffer = buffers_.emplace_back();
  const auto bytes = static_cast<std::size_t>((elements + 2 * kGuardElements) * size_of(type));
  buffer.bytes.assign(bytes, kGuard);
  buffer.output = output;
  if (output) buffer.writable.assign(bytes, false);
  return buffer;
}

TensorView Arena::view_of(Buffer& buffer, std::int64_t first, DType type, const Shape& shape,
                          const Shape& strides) {
  std::byte* data = buffer.bytes.data() + (kGuardElements + first) * size_of(type);
  const TensorView view(data, type, shape, strides);
  if (buffer.output) {
    for_each_index(shape, [&](const Shape& index) {
      const std::int64_t at = address_of(view, index) - buffer.bytes.data();
      for (std::int64_t n = 0; n < size_of(type); ++n)
        buffer.writable[static_cast<std::size_t>(at + n)] = true;
    });
  }
  return view;
}

TensorView Arena::place(const Shape& shape, DType type, Layout layout, bool output) {
  const Placement where = placement(shape, layout);
  return view_of(allocate(where.elements, type, output), where.first, type, shape, where.strides);
}

std::vector<TensorView> Arena::interleave(std::span<const Shape> shapes, DType type, bool output) {
  std::int64_t batch = 0, length = 0, heads = 0, d = 0;
  for (const Shape& shape : shapes) {
    batch = std::max(batch, shape[0]);
    heads += shape[1];
    length = std::max(length, shape[2]);
    d = std::max(d, shape[3]);
  }
  Buffer& buffer = allocate(batch * length * heads * d, type, output);
  std::vector<TensorView> views;
  std::int64_t first = 0;
  for (const Shape& shape : shapes) {
    views.push_back(view_of(buffer, first, type, shape, {length * heads * d, d, heads * d, 1}));
    first += shape[1] * d;
  }
  return views;
}

void Arena::seal() {
  for (Buffer& buffer : buffers_)
    if (!buffer.output) buffer.checksum = checksum_of(buffer.bytes);
}

std::vector<std::span<std::byte>> Arena::memory() {
  std::vector<std::span<std::byte>> all;
  for (Buffer& buffer : buffers_) all.emplace_back(buffer.bytes);
  return all;
}

bool Arena::intact() const {
  return std::all_of(buffers_.begin(), buffers_.end(), [](const Buffer& buffer) {
    if (!buffer.output) return checksum_of(buffer.bytes) == buffer.checksum;
    for (std::size_t n = 0; n < buffer.bytes.size(); ++n)
      if (!buffer.writable[n] && buffer.bytes[n] != kGuard) return false;
    return true;
  });
}

}  // namespace attend::cases
