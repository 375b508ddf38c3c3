// What AVX512-BF16 adds to AVX-512, and VPERMB of VBMI: lanes of a vector, by the models of the
// tests.
#pragma once

#include "emulated/instruction.h"
#include "support/vdpbf16_model.h"

#include <bit>

namespace attend::test {

inline float float_of(std::uint16_t bf16_bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bf16_bits) << 16);
}

// To nearest, of two the even one; subnormal numbers become 0, and NaN quiet.
inline std::uint16_t bf16_of(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(taken(x));
  if (x != x) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// What an instruction reads and writes, as lanes.
template <class Lane>
struct Lanes {
  alignas(64) Lane lane[64 / sizeof(Lane)];
  Lane operator[](int n) const { return lane[n]; }
  Lane& operator[](int n) { return lane[n]; }
};
template <class Lane>
Lanes<Lane> register_of(const Frame& frame, int number) {
  std::uint8_t bytes[64];
  frame.read(number, bytes);
  Lanes<Lane> found;
  std::memcpy(found.lane, bytes, 64);
  return found;
}
// The last operand: a register, or memory, of which one element may be all lanes.
template <class Lane>
Lanes<Lane> operand(const Frame& frame, const Instruction& made) {
  if (made.rm >= 0) return register_of<Lane>(frame, made.rm);
  Lanes<Lane> found{};
  const auto* const from = reinterpret_cast<const std::uint8_t*>(made.address + made.index);
  const int bytes = made.broadcast ? 4 : made.vector_bytes;
  for (int n = 0; n < made.vector_bytes; ++n)
    reinterpret_cast<std::uint8_t*>(found.lane)[n] = from[n % bytes];
  return found;
}
// Lanes that are masked off keep what they were, or become 0; what lies behind the vector becomes
// 0.
template <class Lane>
void give(Frame& frame, const Instruction& made, int bytes, const Lanes<Lane>& result) {
  const std::uint64_t chosen = made.mask == 0 ? ~std::uint64_t{0} : frame.mask(made.mask);
  Lanes<Lane> all = register_of<Lane>(frame, made.reg);
  for (int n = 0; n < static_cast<int>(64 / sizeof(Lane)); ++n)
    if (n >= bytes / static_cast<int>(sizeof(Lane))) all[n] = 0;
    else if ((chosen >> n & 1) != 0) all[n] = result[n];
    else if (made.zeroing) all[n] = 0;
  std::uint8_t written[64];
  std::memcpy(written, all.lane, 64);
  frame.write(made.reg, written);
}

// Whether it is one of these, and then it is done.
inline bool run_vector(Frame& frame, const Instruction& made) {
  if (!made.evex) return false;
  const int pairs = made.vector_bytes / 4;
  const auto is = [&](int prefix, int opcode) {
    return made.prefix == prefix && made.opcode == opcode;
  };
  if (is(2, 0x52)) {  // VDPBF16PS
    auto sums = register_of<float>(frame, made.reg);
    const auto a = register_of<std::uint16_t>(frame, made.vvvv);
    const auto b = operand<std::uint16_t>(frame, made);
    for (int n = 0; n < pairs; ++n)
      sums[n] = vdpbf16(sums[n], float_of(a[2 * n]), float_of(b[2 * n]), float_of(a[2 * n + 1]),
                        float_of(b[2 * n + 1]));
    give(frame, made, made.vector_bytes, sums);
  } else if (is(3, 0x72)) {  // VCVTNE2PS2BF16
    const auto high = register_of<float>(frame, made.vvvv), low = operand<float>(frame, made);
    Lanes<std::uint16_t> rounded{};
    for (int n = 0; n < pairs; ++n)
      rounded[n] = bf16_of(low[n]), rounded[n + pairs] = bf16_of(high[n]);
    give(frame, made, made.vector_bytes, rounded);
  } else if (is(2, 0x72)) {  // VCVTNEPS2BF16
    const auto x = operand<float>(frame, made);
    Lanes<std::uint16_t> rounded{};
    for (int n = 0; n < pairs; ++n) rounded[n] = bf16_of(x[n]);
    give(frame, made, made.vector_bytes / 2, rounded);
  } else if (is(1, 0x8D)) {  // VPERMB
    const auto index = register_of<std::uint8_t>(frame, made.vvvv);
    const auto x = operand<std::uint8_t>(frame, made);
    Lanes<std::uint8_t> chosen{};
    for (int n = 0; n < made.vector_bytes; ++n) chosen[n] = x[index[n] & (made.vector_bytes - 1)];
    give(frame, made, made.vector_bytes, chosen);
  } else {
    return false;
  }
  return true;
}

}  // namespace attend::test
