// Multiplications of AMX's tiles and nothing else: [16][32] * [32][16] into [16][16] f32, 16 cycles
// each. Four results wait for nothing but themselves, which hides what one takes to be ready (52).
#include "peak_tiles.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>

namespace attend::cli {
namespace {

constexpr double kFlops = 4 * 2.0 * 16 * 16 * 32;

// What LDTILECFG reads: eight tiles of 16 rows of 64 bytes.
struct alignas(64) Configuration {
  std::uint8_t palette = 1, start = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Results are tiles 0 to 3, operands 4 to 7, full of `element`, the bits of a small number.
template <class Multiply>
void loop(std::int64_t rounds, std::uint16_t element, Multiply multiply) {
  const Configuration configuration;
  alignas(64) std::uint16_t operand[16 * 32];
  std::fill(std::begin(operand), std::end(operand), element);
  asm volatile(
      "ldtilecfg %0\n"
      "tileloadd (%1,%2,1), %%tmm4\n"
      "tileloadd (%1,%2,1), %%tmm5\n"
      "tileloadd (%1,%2,1), %%tmm6\n"
      "tileloadd (%1,%2,1), %%tmm7\n" ::"m"(configuration),
      "r"(operand), "r"(std::int64_t{64})
      : "memory");
  for (std::int64_t round = 0; round < rounds; ++round) multiply();
  asm volatile("tilerelease" ::);
}

void multiply_bf16(std::int64_t rounds) {
  loop(rounds, 0x3A83, [] {
    asm volatile(
        "tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n"
        "tdpbf16ps %%tmm7, %%tmm4, %%tmm1\n"
        "tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n"
        "tdpbf16ps %%tmm7, %%tmm5, %%tmm3\n" ::);
  });
}

void multiply_f16(std::int64_t rounds) {
  loop(rounds, 0x1419, [] {
    asm volatile(  // the same of TDPFP16PS, which clang 14 does not know
        ".byte 0xC4, 0xE2, 0x4B, 0x5C, 0xC4\n"
        ".byte 0xC4, 0xE2, 0x43, 0x5C, 0xCC\n"
        ".byte 0xC4, 0xE2, 0x4B, 0x5C, 0xD5\n"
        ".byte 0xC4, 0xE2, 0x43, 0x5C, 0xDD\n" ::);
  });
}

bool processor_has(DType type) {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & 1U << 24) == 0) return false;
  if (type == DType::bf16) return (d & 1U << 22) != 0;
  return type == DType::f16 && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & 1U << 21) != 0;
}

// Linux saves the tiles for those processes alone that have asked for them. To ask again, after the
// library has, does no harm.
bool system_permits() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, in xfeatures
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

const TileLoop* tile_loop(DType type) {
  static constexpr TileLoop kBf16 = {"AMX", multiply_bf16, kFlops};
  static constexpr TileLoop kF16 = {"AMX", multiply_f16, kFlops};
  if (!processor_has(type) || !system_permits()) return nullptr;
  return type == DType::bf16 ? &kBf16 : &kF16;
}

}  // namespace attend::cli
