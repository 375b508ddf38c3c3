#include "amx/tiles.h"

#include "cpu/amx.h"

namespace attend {
namespace test {

void multiply_tiles(TileOperands& x) {
  const TilesInUse tiles;
  tile_load<0>(x.c, 64);
  tile_load<1>(x.a, 64);
  tile_load<2>(x.b, 64);
  tile_multiply<0, 1, 2>();
  tile_store<0>(x.c, 64);
}

namespace {

// As LDTILECFG reads it: eight tiles of different shapes, one of them without rows.
struct alignas(64) Configuration {
  std::uint8_t bytes[64] = {};
};
constexpr int rows_of(int tile) { return tile == 5 ? 0 : 16 - tile; }
constexpr int bytes_of(int tile) { return tile == 5 ? 0 : 64 - 4 * tile; }

Configuration callers_own() {
  Configuration made;
  made.bytes[0] = 1;
  for (int tile = 0; tile < 8; ++tile) {
    made.bytes[16 + 2 * tile] = static_cast<std::uint8_t>(bytes_of(tile));
    made.bytes[48 + tile] = static_cast<std::uint8_t>(rows_of(tile));
  }
  return made;
}

CallersTiles read() {
  CallersTiles found;
  Configuration now;
  asm volatile("sttilecfg %0" : "=m"(now));
  found.configuration.assign(now.bytes, now.bytes + 64);
  if (now.bytes[0] == 0) return found;
  found.data.resize(8 * 1024);
  unrolled<8>(ATTEND_EACH(tile) {
    if (now.bytes[48 + tile] != 0) tile_store<tile>(found.data.data() + tile * 1024, 64);
  });
  return found;
}

}  // namespace

CallersTiles around(const std::function<void()>& work, CallersTiles& before) {
  const Configuration own = callers_own();
  std::uint8_t data[1024];
  asm volatile("ldtilecfg %0" ::"m"(own));
  unrolled<8>(ATTEND_EACH(tile) {
    for (int n = 0; n < 1024; ++n) data[n] = static_cast<std::uint8_t>(n * 7 + tile * 31 + 1);
    if constexpr (rows_of(tile) != 0) tile_load<tile>(data, 64);
  });
  before = read();
  work();
  CallersTiles after = read();
  asm volatile("tilerelease" ::);
  return after;
}

bool tiles_are_released() {
  Configuration now;
  asm volatile("sttilecfg %0" : "=m"(now));
  return now.bytes[0] == 0;
}

void release_tiles() { asm volatile("tilerelease" ::); }

}  // namespace test

}  // namespace attend
