#include "widen.h"

#include <stdexcept>

namespace attend::oracle {
namespace {

template <class T, class Out, class Convert>
std::vector<Out> read(const ConstTensorView& view, Convert&& convert) {
  std::vector<Out> values(static_cast<std::size_t>(view.count()));
  const T* data = static_cast<const T*>(view.data());
  for_each_element(view.shape(), view.strides(), [&](std::int64_t n, std::int64_t offset) {
    values[static_cast<std::size_t>(n)] = convert(data[offset]);
  });
  return values;
}

}  // namespace

std::vector<double> widen(const ConstTensorView& view) {
  const auto from_half = [](auto x) { return static_cast<double>(static_cast<float>(x)); };
  switch (view.dtype()) {
    case DType::f64: return read<double, double>(view, [](double x) { return x; });
    case DType::f32: return read<float, double>(view, [](float x) { return double{x}; });
    case DType::bf16: return read<bf16, double>(view, from_half);
    case DType::f16: return read<f16, double>(view, from_half);
    default: throw std::invalid_argument("widen: not a floating-point tensor");
  }
}

std::vector<std::int64_t> integers(const ConstTensorView& view) {
  const auto to_integer = [](auto x) { return static_cast<std::int64_t>(x); };
  switch (view.dtype()) {
    case DType::i64: return read<std::int64_t, std::int64_t>(view, to_integer);
    case DType::i32: return read<std::int32_t, std::int64_t>(view, to_integer);
    case DType::i8: return read<std::int8_t, std::int64_t>(view, to_integer);
    case DType::u8:
    case DType::boolean: return read<std::uint8_t, std::int64_t>(view, to_integer);
    default: throw std::invalid_argument("integers: not an integer tensor");
  }
}

double round_to(DType type, double value) {
  switch (type) {
    case DType::f64: return value;
    case DType::f32: return static_cast<float>(value);
    case DType::bf16: return static_cast<float>(bf16(value));
    case DType::f16: return static_cast<float>(f16(value));
    default: throw std::invalid_argument("round_to: not a floating-point type");
  }
}

double unit_roundoff(DType type) {
  switch (type) {
    case DType::f64: return 0x1p-53;
    case DType::f32: return 0x1p-24;
    case DType::bf16: return 0x1p-8;
    case DType::f16: return 0x1p-11;
    default: throw std::invalid_argument("unit_roundoff: not a floating-point type");
  }
}

}  // namespace attend::oracle
