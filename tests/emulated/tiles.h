// The tiles of AMX: a thread's configuration, its eight registers, and the instructions on them.
#pragma once

#include "emulated/instruction.h"
#include "support/amx_model.h"

namespace attend::test {

struct Tiles {
  struct Configuration {
    std::uint8_t palette, start, reserved[14];
    std::uint16_t row_bytes[16];
    std::uint8_t rows[16];
  } configuration{};
  alignas(64) std::uint8_t data[8][16][64]{};

  bool is_usable(int n) const {
    return n < 8 && configuration.palette == 1 && configuration.rows[n] > 0 &&
           configuration.rows[n] <= 16 && configuration.row_bytes[n] > 0 &&
           configuration.row_bytes[n] <= 64;
  }
};
inline Tiles& tiles_of_thread() {
  static thread_local Tiles tiles;
  return tiles;
}

// c += a b, of tiles that fit together; false if they do not.
template <class Element>
bool multiply(Tiles& tiles, int c, int a, int b) {
  const auto& of = tiles.configuration;
  for (const int tile : {a, b, c})
    if (!tiles.is_usable(tile)) return false;
  if (a == b || a == c || b == c || of.rows[c] != of.rows[a] ||
      of.row_bytes[c] != of.row_bytes[b] || of.rows[b] * 4 != of.row_bytes[a] ||
      of.row_bytes[c] % 4 != 0)
    return false;
  const auto wide = [&](int tile, int row, int n) {
    Element x;
    std::memcpy(&x, tiles.data[tile][row] + 2 * n, 2);
    return static_cast<float>(x);
  };
  const int columns = of.row_bytes[c] / 4, steps = of.row_bytes[a] / 2;
  float left[16][32], right[16][32];  // right: [column][step]
  for (int i = 0; i < of.rows[a]; ++i)
    for (int x = 0; x < steps; ++x) left[i][x] = wide(a, i, x);
  for (int x = 0; x < steps; ++x)
    for (int j = 0; j < columns; ++j) right[j][x] = wide(b, x / 2, 2 * j + x % 2);
  for (int i = 0; i < of.rows[c]; ++i)
    for (int j = 0; j < columns; ++j) {
      float sum = 0;
      std::memcpy(&sum, tiles.data[c][i] + 4 * j, 4);
      sum = tile_product(
          sum, steps, [&](std::int64_t x) { return left[i][x]; },
          [&](std::int64_t x) { return right[j][x]; });
      std::memcpy(tiles.data[c][i] + 4 * j, &sum, 4);
    }
  for (int i = of.rows[c]; i < 16; ++i) std::memset(tiles.data[c][i], 0, 64);
  return true;
}

// Rows of a tile, from memory or to it; on load what lies outside of the tile becomes 0.
inline bool move(Tiles& tiles, int tile, const Instruction& made, bool to_memory) {
  if (!tiles.is_usable(tile)) return false;
  const int bytes = tiles.configuration.row_bytes[tile];
  if (!to_memory) std::memset(tiles.data[tile], 0, sizeof(tiles.data[tile]));
  for (int i = 0; i < tiles.configuration.rows[tile]; ++i) {
    auto* const at =
        reinterpret_cast<std::uint8_t*>(made.address + made.index * static_cast<std::uint64_t>(i));
    std::uint8_t* const row = tiles.data[tile][i];
    std::memcpy(to_memory ? at : row, to_memory ? row : at, static_cast<std::size_t>(bytes));
  }
  return true;
}

// Whether it is one of these and may be done, and then it is.
inline bool run_tiles(const Instruction& made) {
  if (made.evex || made.vector_bytes != 16) return false;
  Tiles& tiles = tiles_of_thread();
  const bool memory = made.rm < 0;
  const auto is = [&](int prefix, int opcode) {
    return made.prefix == prefix && made.opcode == opcode;
  };
  auto* const at = reinterpret_cast<std::uint8_t*>(made.address + made.index);
  if (is(0, 0x49) && !memory) {  // TILERELEASE
    tiles = {};
  } else if (is(0, 0x49)) {  // LDTILECFG
    tiles = {};
    std::memcpy(&tiles.configuration, at, 64);
    if (tiles.configuration.palette == 0) tiles = {};
  } else if (is(1, 0x49) && memory) {  // STTILECFG
    std::memcpy(at, &tiles.configuration, 64);
  } else if (is(3, 0x49) && !memory) {  // TILEZERO
    if (!tiles.is_usable(made.reg)) return false;
    std::memset(tiles.data[made.reg], 0, sizeof(tiles.data[made.reg]));
  } else if (is(3, 0x4B) && memory) {  // TILELOADD
    return move(tiles, made.reg, made, false);
  } else if (is(2, 0x4B) && memory) {  // TILESTORED
    return move(tiles, made.reg, made, true);
  } else if (is(2, 0x5C) && !memory) {
    return multiply<bf16>(tiles, made.reg, made.rm, made.vvvv);
  } else if (is(3, 0x5C) && !memory) {
    return multiply<f16>(tiles, made.reg, made.rm, made.vvvv);
  } else {
    return false;
  }
  return true;
}

}  // namespace attend::test
