// The bits of the two 16-bit types, from and to wider numbers.
#pragma once

#include "core/host_device.h"

#include <bit>
#include <cmath>
#include <cstdint>

namespace attend {

// x as an f32 whose last bit is set if x was cut ("round to odd"). Rounding that once more to 8 or
// 11 bits gives what rounding x itself would have given, in every rounding mode of the caller.
ATTEND_HOST_DEVICE inline std::uint32_t to_odd_f32(double x) noexcept {
  const auto f = static_cast<float>(x);
  auto bits = std::bit_cast<std::uint32_t>(f);
  const auto widened = static_cast<double>(f);
  if (widened == x || x != x || (bits & 1) != 0) return bits;
  // Even and not exact: the neighbour towards x is odd. Away from zero is +1 in the bits.
  return std::abs(widened) < std::abs(x) ? bits + 1 : bits - 1;
}

// Drops the low `drop` bits, to nearest, ties to even.
ATTEND_HOST_DEVICE inline std::uint32_t round_off(std::uint32_t bits, int drop) noexcept {
  const std::uint32_t half = 1U << (drop - 1);
  return (bits + half - 1 + ((bits >> drop) & 1)) >> drop;
}

ATTEND_HOST_DEVICE inline std::uint16_t bf16_bits(double value) noexcept {
  const std::uint32_t f = to_odd_f32(value);
  const bool nan = value != value;
  return static_cast<std::uint16_t>(nan ? (f >> 16) | 0x40 : round_off(f, 16));
}

ATTEND_HOST_DEVICE inline std::uint16_t f16_bits(double value) noexcept {
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
  return static_cast<std::uint16_t>(sign | half);
}

ATTEND_HOST_DEVICE inline float widened_bf16(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

ATTEND_HOST_DEVICE inline float widened_f16(std::uint16_t bits) noexcept {
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
