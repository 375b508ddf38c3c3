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

// Calls use(T{}) with the C++ type of a floating-point tensor. Always inlined: in a kernel compiled
// for an instruction set no copy of it may be left for others to call.
template <class Use>
[[gnu::always_inline]] inline auto with_type(DType type, Use use) {
  switch (type) {
    case DType::f64: return use(double{});
    case DType::f32: return use(float{});
    case DType::bf16: return use(bf16{});
    default: return use(f16{});
  }
}

inline double widened(double x) noexcept { return x; }
inline double widened(float x) noexcept { return x; }
inline double widened(bf16 x) noexcept { return static_cast<float>(x); }
inline double widened(f16 x) noexcept { return static_cast<float>(x); }

// `count` elements from `offset` along the last index, as doubles; and back, each rounded once.
inline void load_row(const Strided& t, std::int64_t offset, std::int64_t count,
                     double* row) noexcept {
  with_type(t.type, [&]<class T>(T) {
    const T* from = reinterpret_cast<const T*>(t.data) + offset;
    for (std::int64_t x = 0; x < count; ++x) row[x] = widened(from[x * t.stride[3]]);
  });
}

inline void store_row(const Strided& t, std::int64_t offset, std::int64_t count,
                      const double* row) noexcept {
  with_type(t.type, [&]<class T>(T) {
    T* to = reinterpret_cast<T*>(t.data) + offset;
    for (std::int64_t x = 0; x < count; ++x) to[x * t.stride[3]] = static_cast<T>(row[x]);
  });
}

// The same for one element.
inline double load(const Strided& t, std::int64_t offset) noexcept {
  double value = 0;
  load_row(t, offset, 1, &value);
  return value;
}

inline void store(const Strided& t, std::int64_t offset, double value) noexcept {
  store_row(t, offset, 1, &value);
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

inline void store_integer(const Strided& t, std::int64_t offset, std::int64_t value) noexcept {
  reinterpret_cast<std::int64_t*>(t.data)[offset] = value;  // what is written is i64
}

}  // namespace attend
