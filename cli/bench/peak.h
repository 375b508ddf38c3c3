// What this machine can do at best, measured: multiply-adds between registers, and reading memory.
// The speed of a kernel is told as a share of it.
#pragma once

#include "peak_loops.h"

#include <attend/context.h>
#include <attend/dtype.h>

#include <cstddef>

namespace attend::cli {

// The widest that this processor and its operating system know.
const PeakLoops& peak_loops();

struct PeakFlops {
  const char* instructions;
  DType type;   // of the numbers that were multiplied
  double rate;  // 1 / second
};

// Of all the threads of the Context at once; the best of several tries. Of bf16 and f16 where AMX
// multiplies tiles of them, else of f32.
PeakFlops measure_flops(Context& context, DType type, double seconds);
// Bytes that all of them read in a second from an array of `bytes`, over and over.
double measure_reading(Context& context, std::size_t bytes, double seconds);

}  // namespace attend::cli
