// The tiles of AMX: eight registers of 16 rows of 64 bytes, and one instruction that multiplies
// them.
//
//   tile_multiply<c, a, b>()         c [16][16] f32 += a [16][32] bf16 * b [32][16] bf16
//   tile_multiply<c, a, b, f16>()    the same of f16
//
//                 b: pairs of steps side by side, [16 pairs][16 lanes][2]
//                 +----------------+
//       steps     |                |        c[m][n] += (even + odd), where
//       in pairs  |                |          even = sum over p of a[m][2p]     * b[p][n][0]
//                 +----------------+          odd  = sum over p of a[m][2p + 1] * b[p][n][1]
//     a           c                         each an ascending chain of 16 fused multiply-adds that
//     +--------+  +----------------+        begins with 0
//     |        |  |                |
//     +--------+  +----------------+
//
// Rounded to nearest, subnormal bf16 and f32 taken and given as 0, whatever the caller's modes are;
// no exceptions. (tests/support/amx_model.h has it in plain C++.)
//
// A multiplication takes 16 cycles of a unit of its own, a load of a tile 8 of the load ports.
#pragma once

#include "cpu/avx512.h"

#include <cstring>

namespace attend {
namespace {

inline constexpr int kTileRows = 16, kTileSteps = 32;  // of a bf16 operand a; b has as many steps

// Words of inline assembly: what the compiler's own functions leave out is that memory is read.
template <int kTile>
ATTEND_INLINE void tile_load(const void* from, std::int64_t row_bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(row_bytes), "i"(kTile) : "memory");
}
template <int kTile>
ATTEND_INLINE void tile_store(void* to, std::int64_t row_bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(row_bytes), "i"(kTile) : "memory");
}
template <int kTile>
ATTEND_INLINE void tile_zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
template <int kC, int kA, int kB, class Element = bf16>
ATTEND_INLINE void tile_multiply() {
  if constexpr (std::is_same_v<Element, bf16>)
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
  else  // TDPFP16PS, which clang 14 does not know
    asm volatile(".byte 0xC4, 0xE2, %c0, 0x5C, %c1" ::"i"((~kB & 15) << 3 | 3),
                 "i"(0xC0 | kC << 3 | kA));
}

// A unit that has had nothing to do for some 1000 cycles falls asleep, and its next multiplication
// takes 900 more (Xeon of 2024). One whose result nobody reads keeps it awake, where vectors
// compute for longer. Changes tile 7.
ATTEND_INLINE void stay_awake() { tile_multiply<7, 6, 5>(); }

// What LDTILECFG reads.
struct alignas(64) TileConfiguration {
  std::uint8_t palette = 0, start = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

// All eight tiles of 16 rows of 64 bytes, all 0.
ATTEND_INLINE void configure_tiles() {
  static constexpr TileConfiguration kWhole = [] {
    TileConfiguration all;
    all.palette = 1;
    for (int n = 0; n < 8; ++n) all.row_bytes[n] = 64, all.rows[n] = 16;
    return all;
  }();
  asm volatile("ldtilecfg %0" ::"m"(kWhole));
}

// While one lives, tiles are configured. A caller that has tiles of its own finds them as they
// were.
class TilesInUse {
 public:
  ATTEND_INLINE TilesInUse() noexcept {
    asm volatile("sttilecfg %0" : "=m"(callers_));
    if (callers_.palette != 0) save();
    configure_tiles();
  }
  ATTEND_INLINE ~TilesInUse() {
    if (callers_.palette != 0) restore();
    else asm volatile("tilerelease" ::);
  }
  TilesInUse(const TilesInUse&) = delete;
  TilesInUse& operator=(const TilesInUse&) = delete;

 private:
  [[gnu::noinline, gnu::cold]] void save() noexcept {
    unrolled<8>(ATTEND_EACH(n) {
      if (callers_.rows[n] != 0) tile_store<n>(data_[n], 64);
    });
  }
  [[gnu::noinline, gnu::cold]] void restore() noexcept {
    asm volatile("ldtilecfg %0" ::"m"(callers_));
    unrolled<8>(ATTEND_EACH(n) {
      if (callers_.rows[n] != 0) tile_load<n>(data_[n], 64);
    });
  }
  TileConfiguration callers_;
  alignas(64) std::uint8_t data_[8][1024];  // touched only if the caller has tiles
};

}  // namespace
}  // namespace attend
