// An x86 instruction with a VEX or EVEX prefix, W0, of the opcode map 0F 38, taken apart: which one
// it is, its registers, and where its operand in memory lies.
#pragma once

#include "emulated/frame.h"

#include <optional>

namespace attend::test {

struct Instruction {
  bool evex = false;
  int prefix = 0;  // 0 none, 1 66, 2 F3, 3 F2
  int opcode = 0;
  int reg = 0, vvvv = 0, rm = 0;  // registers; of memory rm is -1
  int extension = 0;  // the three bits of reg, for instructions that have no such operand
  int vector_bytes = 16;
  int mask = 0;                          // number of the register of masks; 0: all lanes
  bool zeroing = false;                  // lanes that are masked off become 0
  bool broadcast = false;                // memory holds one element for all lanes
  std::uint64_t address = 0, index = 0;  // of memory, without the index; the index, multiplied
  int bytes = 0;                         // how long the instruction is
};

// The one at the frame's place; nothing if it is not of these.
inline std::optional<Instruction> decode(const Frame& frame) {
  const std::uint8_t* const code = frame.next_instruction();
  Instruction found;
  int at = 0, r = 0, x = 0, b = 0, high_r = 0, high_v = 0, compressed = 1;
  if (code[0] == 0xC4 && (code[1] & 31) == 2) {
    r = ~code[1] >> 7 & 1, x = ~code[1] >> 6 & 1, b = ~code[1] >> 5 & 1;
    found.prefix = code[2] & 3, found.vvvv = ~code[2] >> 3 & 15;
    found.vector_bytes = (code[2] & 4) != 0 ? 32 : 16;
    at = 3;
  } else if (code[0] == 0x62 && (code[1] & 7) == 2) {
    found.evex = true;
    r = ~code[1] >> 7 & 1, x = ~code[1] >> 6 & 1, b = ~code[1] >> 5 & 1, high_r = ~code[1] >> 4 & 1;
    found.prefix = code[2] & 3, found.vvvv = ~code[2] >> 3 & 15;
    high_v = ~code[3] >> 3 & 1;
    found.mask = code[3] & 7, found.zeroing = (code[3] & 0x80) != 0;
    found.broadcast = (code[3] & 0x10) != 0, found.vector_bytes = 16 << (code[3] >> 5 & 3);
    compressed = found.broadcast ? 4 : found.vector_bytes;  // a short displacement counts these
    at = 4;
  } else {
    return std::nullopt;
  }
  if ((code[2] & 0x80) != 0) return std::nullopt;  // W1: of other elements
  found.opcode = code[at++];
  const int modrm = code[at++], mod = modrm >> 6, low = modrm & 7;
  found.extension = modrm >> 3 & 7;
  found.reg = found.extension | r << 3 | high_r << 4;
  found.vvvv |= high_v << 4;
  if (mod == 3) {
    found.rm = low | b << 3 | (found.evex ? x << 4 : 0);
    found.bytes = at;
    return found;
  }
  found.rm = -1;
  bool from_next = false, has_base = true;
  int base = low | b << 3;
  if (low == 4) {  // a base, and an index that is multiplied
    const int sib = code[at++], index = (sib >> 3 & 7) | x << 3;
    base = (sib & 7) | b << 3;
    if (index != 4) found.index = frame.general(index) << (sib >> 6);
    has_base = mod != 0 || (sib & 7) != 5;
  } else if (low == 5 && mod == 0) {
    from_next = true, has_base = false;
  }
  std::int64_t displacement = 0;
  if (mod == 1) {
    displacement = static_cast<std::int8_t>(code[at++]) * static_cast<std::int64_t>(compressed);
  } else if (mod == 2 || !has_base) {
    std::int32_t wide = 0;
    std::memcpy(&wide, code + at, 4);
    displacement = wide, at += 4;
  }
  found.bytes = at;
  found.address = static_cast<std::uint64_t>(displacement) + (has_base ? frame.general(base) : 0) +
                  (from_next ? reinterpret_cast<std::uint64_t>(code + at) : 0);
  return found;
}

}  // namespace attend::test
