// The loops of peak_loops.h for one instruction set: ATTEND_PEAK names the result,
// ATTEND_PEAK_BYTES is the size of a vector, and the compiler's flags say the instructions. Nothing
// is included that could leave code for other files here: it would be in instructions that not
// every processor has.
#include "peak_loops.h"

namespace attend::cli {
namespace {

// Elements of a vector, and a tile of vectors that fits into the registers with its operands.
constexpr int kLanes = ATTEND_PEAK_BYTES / 4;
constexpr int kRows = ATTEND_PEAK_ROWS, kColumns = ATTEND_PEAK_COLUMNS;
constexpr int kDepth = 16;  // of the panels; they stay in the first level cache
using Vec = float __attribute__((vector_size(ATTEND_PEAK_BYTES), may_alias));

float total(const Vec* vectors, int n) {
  float sum = 0;
  for (int i = 0; i < n; ++i)
    for (int lane = 0; lane < kLanes; ++lane) sum += vectors[i][lane];
  return sum;
}

float registers(std::int64_t rounds) {
  float start[kRows * kColumns];
  for (int i = 0; i < kRows * kColumns; ++i) start[i] = static_cast<float>(i);
  asm volatile("" : : "r"(start) : "memory");  // no compiler knows them: all are computed
  Vec tile[kRows * kColumns];
#pragma GCC unroll 32
  for (int i = 0; i < kRows * kColumns; ++i) tile[i] = Vec{} + start[i];
  const Vec x = Vec{} + 1e-9F;
  for (std::int64_t round = 0; round < rounds; ++round)
#pragma GCC unroll 32
    for (Vec& element : tile) element += element * x;
  return total(tile, kRows * kColumns);
}

float panels(std::int64_t rounds) {
  alignas(64) float left[kDepth * kRows], right[kDepth * kColumns * kLanes];
  for (float& x : left) x = 1e-3F;
  for (float& x : right) x = 1e-3F;
  asm volatile("" : : "r"(left), "r"(right) : "memory");
  Vec tile[kRows * kColumns] = {};
  for (std::int64_t round = 0; round < rounds; ++round) {
    const float* a = left;
    const float* b = right;
    asm volatile("" : "+r"(a), "+r"(b));  // some memory: it is read again
    for (int k = 0; k < kDepth; ++k, a += kRows, b += kColumns * kLanes) {
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 3
        for (int j = 0; j < kColumns; ++j)
          tile[i * kColumns + j] += a[i] * reinterpret_cast<const Vec*>(b)[j];
    }
  }
  return total(tile, kRows * kColumns);
}

float sum(const float* x, std::int64_t n) {
  constexpr int kChains = 8;
  Vec chains[kChains] = {};
  const Vec* vectors = reinterpret_cast<const Vec*>(x);
  for (std::int64_t i = 0; i < n / kLanes; i += kChains) {
#pragma GCC unroll 8
    for (int c = 0; c < kChains; ++c) chains[c] += vectors[i + c];
  }
  return total(chains, kChains);
}

constexpr double kTile = 2.0 * kRows * kColumns * kLanes;  // operations on a tile

}  // namespace

extern const PeakLoops ATTEND_PEAK;
const PeakLoops ATTEND_PEAK = {ATTEND_PEAK_NAME, registers, kTile, panels, kDepth* kTile, sum};

}  // namespace attend::cli
