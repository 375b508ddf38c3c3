// One tensor of a call as kernels see it: an address, a type, and strides that already hold every
// broadcast (a repeated or missing dimension has stride 0). Sizes are the Problem's business.
#pragma once

#include "core/sixteen_bits.h"

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

  ATTEND_HOST_DEVICE explicit operator bool() const noexcept { return given; }
  ATTEND_HOST_DEVICE std::int64_t offset(std::int64_t b, std::int64_t h, std::int64_t i,
                                         std::int64_t x = 0) const noexcept {
    return b * stride[0] + h * stride[1] + i * stride[2] + x * stride[3];
  }
};

// Calls use(T{}) with the C++ type of a floating-point tensor. Always inlined: in a kernel compiled
// for an instruction set no copy of it may be left for others to call.
template <class Use>
[[gnu::always_inline]] ATTEND_HOST_DEVICE inline auto with_type(DType type, Use use) {
  switch (type) {
    case DType::f64: return use(double{});
    case DType::f32: return use(float{});
    case DType::bf16: return use(bf16{});
    default: return use(f16{});
  }
}

ATTEND_HOST_DEVICE inline double widened(double x) noexcept { return x; }
ATTEND_HOST_DEVICE inline double widened(float x) noexcept { return x; }
#ifdef __CUDACC__  // on a device the library's own conversions cannot be called
ATTEND_HOST_DEVICE inline double widened(bf16 x) noexcept { return widened_bf16(x.bits); }
ATTEND_HOST_DEVICE inline double widened(f16 x) noexcept { return widened_f16(x.bits); }
ATTEND_HOST_DEVICE inline void narrow(double x, bf16& to) noexcept { to.bits = bf16_bits(x); }
ATTEND_HOST_DEVICE inline void narrow(double x, f16& to) noexcept { to.bits = f16_bits(x); }
#else
inline double widened(bf16 x) noexcept { return static_cast<float>(x); }
inline double widened(f16 x) noexcept { return static_cast<float>(x); }
#endif
template <class T>
ATTEND_HOST_DEVICE inline void narrow(double x, T& to) noexcept {
  to = static_cast<T>(x);
}

// `count` elements from `offset` along the last index, as doubles; and back, each rounded once.
ATTEND_HOST_DEVICE inline void load_row(const Strided& t, std::int64_t offset, std::int64_t count,
                                        double* row) noexcept {
  with_type(t.type, [&]<class T>(T) {
    const T* from = reinterpret_cast<const T*>(t.data) + offset;
    for (std::int64_t x = 0; x < count; ++x) row[x] = widened(from[x * t.stride[3]]);
  });
}

// Always inlined: no copy compiled for an instruction set is left for others.
[[gnu::always_inline]] ATTEND_HOST_DEVICE inline void store_row(const Strided& t,
                                                                std::int64_t offset,
                                                                std::int64_t count,
                                                                const double* row) noexcept {
  with_type(t.type, [&]<class T>(T) {
    T* to = reinterpret_cast<T*>(t.data) + offset;
    for (std::int64_t x = 0; x < count; ++x) narrow(row[x], to[x * t.stride[3]]);
  });
}

// The same for one element.
ATTEND_HOST_DEVICE inline double load(const Strided& t, std::int64_t offset) noexcept {
  double value = 0;
  load_row(t, offset, 1, &value);
  return value;
}

ATTEND_HOST_DEVICE inline void store(const Strided& t, std::int64_t offset, double value) noexcept {
  store_row(t, offset, 1, &value);
}

// Any integer or bool element.
ATTEND_HOST_DEVICE inline std::int64_t load_integer(const Strided& t,
                                                    std::int64_t offset) noexcept {
  switch (t.type) {
    case DType::i64: return reinterpret_cast<const std::int64_t*>(t.data)[offset];
    case DType::i32: return reinterpret_cast<const std::int32_t*>(t.data)[offset];
    case DType::i8: return reinterpret_cast<const std::int8_t*>(t.data)[offset];
    default: return reinterpret_cast<const std::uint8_t*>(t.data)[offset];  // u8, bool
  }
}

ATTEND_HOST_DEVICE inline void store_integer(const Strided& t, std::int64_t offset,
                                             std::int64_t value) noexcept {
  reinterpret_cast<std::int64_t*>(t.data)[offset] = value;  // what is written is i64
}

}  // namespace attend
