// The words of src/cpu/amx.h as functions. To be called on a machine that has them alone.
#pragma once

#include <attend/dtype.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace attend::test {

struct TileOperands {
  float c[16][16];
  bf16 a[16][32];
  bf16 b[16][16][2];  // pairs of steps
};
void multiply_tiles(TileOperands& x);  // c += a b

// Tiles of a caller's own, of any shapes and numbers, before and after somebody else's work.
struct CallersTiles {
  std::vector<std::uint8_t> configuration, data;
  friend bool operator==(const CallersTiles&, const CallersTiles&) = default;
};
CallersTiles around(const std::function<void()>& work, CallersTiles& before);
bool tiles_are_released();  // nobody's
void release_tiles();       // whosesoever they are

}  // namespace attend::test
