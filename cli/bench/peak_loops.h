// The loops that peak.h measures with, for one instruction set; peak_loops.cpp is compiled once for
// each.
#pragma once

#include <cstdint>

namespace attend::cli {

struct PeakLoops {
  const char* name;
  // Two loops of nothing but independent fused multiply-adds: on registers alone, and with operands
  // read from the first level cache, as the innermost loop of a matrix product does it. The first
  // is the faster on most cores; Neoverse N1 runs it at half its rate, and only the second at all
  // of it. `flops` are those of a round; the result must be used.
  float (*registers)(std::int64_t rounds);
  double registers_flops;
  float (*panels)(std::int64_t rounds);
  double panels_flops;
  float (*sum)(const float* x, std::int64_t n);  // n: a multiple of 256; x: aligned to 64 bytes
};

}  // namespace attend::cli
