// Sizes and names of the element types, and the conversions of the two 16-bit ones.
#include <attend/dtype.h>

#include <bit>
#include <cmath>

namespace attend {
namespace {

// x as an f32 whose last bit is set if x was cut ("round to odd"). Rounding that once more to 8 or
// 11 bits gives what rounding x itself would have given, in every rounding mode of the caller.
std::uint32_t to_odd_f32(double x) noexcept {
  const auto f = static_cast<float>(x);
  auto bits = std::bit_cast<std::uint32_t>(f);
  const auto widened = static_cast<double>(f);
  if (widened == x || x != x || (bits & 1) != 0) return bits;
  // Even and not exact: the neighbour towards x is odd. Away from zero is +1 in the bits.
  return std::abs(widened) < std::abs(x) ? bits + 1 : bits - 1;
}

// Drops the low `drop` bits, to nearest, ties to even.
std::uint32_t round_off(std::uint32_t bits, int drop) noexcept {
  const std::uint32_t half = 1U << (drop - 1);
  return (bits + half - 1 + ((bits >> drop) & 1)) >> drop;
}

}  // namespace

std::int64_t size_of(DType type) noexcept {
  switch (type) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::bf16:
    case DType::f16: return 2;
    case DType::i8:
    case DType::u8:
    case DType::boolean: break;
  }
  return 1;
}

std::string_view name_of(DType type) noexcept {
  switch (type) {
    case DType::f64: return "f64";
    case DType::f32: return "f32";
    case DType::bf16: return "bf16";
    case DType::f16: return "f16";
    case DType::i64: return "i64";
    case DType::i32: return "i32";
    case DType::i8: return "i8";
    case DType::u8: return "u8";
    case DType::boolean: return "bool";
  }
  return "unknown type";  // made by a cast
}

bool is_floating_point(DType type) noexcept {
  return type == DType::f64 || type == DType::f32 || type == DType::bf16 || type == DType::f16;
}

bf16::bf16(double value) noexcept {
  const std::uint32_t f = to_odd_f32(value);
  const bool nan = value != value;
  bits = static_cast<std::uint16_t>(nan ? (f >> 16) | 0x40 : round_off(f, 16));
}

f16::f16(double value) noexcept {
  const std::uint32_t f = to_odd_f32(value);
  const std::uint32_t sign = f >> 16 & 0x8000, magnitude = f & 0x7FFFFFFF;
  std::uint32_t half = 0;
  if (value != value) {
    half = 0x7E00;
  } else if (magnitude >= 0x47800000) {  // from 65536: infinity
    half = 0x7C00;
  } else if (magnitude >= 0x38800000) {  // from 2^-14: rebias the exponent by 127 - 15
    half = round_off(magnitude - (112U << 23), 13);
  } else if (magnitude >= 0x33000000) {  // from 2^-25: subnormal, in units of 2^-24
    const int exponent = static_cast<int>(magnitude >> 23);
    half = round_off((magnitude & 0x7FFFFF) | 0x800000, 126 - exponent);
  }
  bits = static_cast<std::uint16_t>(sign | half);
}

f16::operator float() const noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
  const std::uint32_t exponent = bits >> 10 & 31, mantissa = bits & 0x3FF;
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return sign != 0 ? -magnitude : magnitude;
  }
  const std::uint32_t rebiased = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | rebiased << 23 | mantissa << 13);
}

}  // namespace attend
