// The element types, and the two 16-bit floating-point types that C++20 does not have.
#pragma once

#include <attend/language.h>
#include <attend/version.h>

#include <bit>
#include <concepts>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace attend {

enum class DType : std::uint8_t { f64, f32, bf16, f16, i64, i32, i8, u8, boolean };

ATTEND_API std::int64_t size_of(DType type) noexcept;      // in bytes
ATTEND_API std::string_view name_of(DType type) noexcept;  // "f32", "bool"
ATTEND_API bool is_floating_point(DType type) noexcept;

// bfloat16: the upper half of an f32, 8 bits of precision. Storage only: convert, compute, convert.
struct bf16 {
  std::uint16_t bits = 0;

  bf16() = default;
  ATTEND_API explicit bf16(double value) noexcept;  // rounded once, to nearest even
  explicit operator float() const noexcept {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
  friend bool operator==(bf16, bf16) = default;  // of the bits
};

// IEEE binary16: 11 bits of precision, largest value 65504.
struct f16 {
  std::uint16_t bits = 0;

  f16() = default;
  ATTEND_API explicit f16(double value) noexcept;  // rounded once, to nearest even
  ATTEND_API explicit operator float() const noexcept;
  friend bool operator==(f16, f16) = default;  // of the bits
};

namespace internal {

template <class T>
concept ElementInteger = std::integral<T> && !std::same_as<T, char> &&
                         (sizeof(T) == 1 || (std::signed_integral<T> && sizeof(T) >= 4));

}  // namespace internal

// A C++ type that a tensor can hold.
template <class T>
concept Element = std::same_as<T, double> || std::same_as<T, float> || std::same_as<T, bf16> ||
    std::same_as<T, f16> || internal::ElementInteger<T>;

template <Element T>
constexpr DType dtype_of() noexcept {
  if constexpr (std::is_same_v<T, double>) return DType::f64;
  else if constexpr (std::is_same_v<T, float>) return DType::f32;
  else if constexpr (std::is_same_v<T, bf16>) return DType::bf16;
  else if constexpr (std::is_same_v<T, f16>) return DType::f16;
  else if constexpr (std::is_same_v<T, bool>) return DType::boolean;
  else if constexpr (sizeof(T) == 8) return DType::i64;
  else if constexpr (sizeof(T) == 4) return DType::i32;
  else if constexpr (std::is_signed_v<T>) return DType::i8;
  else return DType::u8;
}

}  // namespace attend
