// Sizes and names of the element types, and the conversions of the two 16-bit ones.
#include <attend/dtype.h>

#include "core/sixteen_bits.h"

namespace attend {
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

bf16::bf16(double value) noexcept : bits(bf16_bits(value)) {}
f16::f16(double value) noexcept : bits(f16_bits(value)) {}
f16::operator float() const noexcept { return widened_f16(bits); }

}  // namespace attend
