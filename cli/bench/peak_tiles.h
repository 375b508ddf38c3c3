// The loop that peak.h measures with where AMX multiplies matrices of a 16-bit type.
#pragma once

#include <attend/dtype.h>

#include <cstdint>

namespace attend::cli {

struct TileLoop {
  const char* name;
  void (*multiply)(std::int64_t rounds);
  double flops;  // of a round
};

// Nothing where the processor has no such instruction, or the operating system does not permit it.
const TileLoop* tile_loop(DType type);

}  // namespace attend::cli
