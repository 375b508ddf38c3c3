// One tensor of a call as kernels see it: an address, a type, and strides that already hold every
// broadcast (a repeated or missing dimension has stride 0). Sizes are the Problem's business.
#pragma once

#include <attend/dtype.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace attend {

struct Strided {
  std::byte* data = nullptr;
  DType type = DType::f32;
  bool given = false;
  std::array<std::int64_t, 4> stride{};  // in elements, of b, h, i and the last index

  explicit operator bool() const noexcept { return given; }
  std::int64_t offset(std::int64_t b, std::int64_t h, std::int64_t i,
                      std::int64_t x = 0) const noexcept {
    return b * stride[0] + h * stride[1] + i * stride[2] + x * stride[3];
  }
};

// Any floating-point element as a double, and a double rounded once to any type.
inline double load(const Strided& t, std::int64_t offset) noexcept {
  switch (t.type) {
    case DType::f64: return reinterpret_cast<const double*>(t.data)[offset];
    case DType::f32: return reinterpret_cast<const float*>(t.data)[offset];
    case DType::bf16: return static_cast<float>(reinterpret_cast<const bf16*>(t.data)[offset]);
    default: return static_cast<float>(reinterpret_cast<const f16*>(t.data)[offset]);
  }
}

inline void store(const Strided& t, std::int64_t offset, double value) noexcept {
  switch (t.type) {
    case DType::f64: reinterpret_cast<double*>(t.data)[offset] = value; break;
    case DType::f32: reinterpret_cast<float*>(t.data)[offset] = static_cast<float>(value); break;
    case DType::bf16: reinterpret_cast<bf16*>(t.data)[offset] = bf16(value); break;
    default: reinterpret_cast<f16*>(t.data)[offset] = f16(value); break;
  }
}

// Any integer or bool element.
inline std::int64_t load_integer(const Strided& t, std::int64_t offset) noexcept {
  switch (t.type) {
    case DType::i64: return reinterpret_cast<const std::int64_t*>(t.data)[offset];
    case DType::i32: return reinterpret_cast<const std::int32_t*>(t.data)[offset];
    case DType::i8: return reinterpret_cast<const std::int8_t*>(t.data)[offset];
    default: return reinterpret_cast<const std::uint8_t*>(t.data)[offset];  // u8, bool
  }
}

// A whole row: `count` elements from `offset` along the last index.
inline void load_row(const Strided& t, std::int64_t offset, std::int64_t count,
                     double* row) noexcept {
  for (std::int64_t x = 0; x < count; ++x) row[x] = load(t, offset + x * t.stride[3]);
}

inline void store_row(const Strided& t, std::int64_t offset, std::int64_t count,
                      const double* row) noexcept {
  for (std::int64_t x = 0; x < count; ++x) store(t, offset + x * t.stride[3], row[x]);
}

}  // namespace attend
