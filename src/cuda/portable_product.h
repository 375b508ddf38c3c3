// What the host hands to the portable kernel of products (portable_product.cu).
#pragma once

#include "core/product.h"

namespace attend::cuda {

inline constexpr int kProductTile = 64;  // rows and columns of c that a block of threads makes
inline constexpr int kProductThreads = 256;
inline constexpr int kSumThreads = 128;  // columns, where a is ones

struct PortableProduct {
  ProductProblem problem;
  ProductCall call;
  std::int64_t across;  // tiles in a row of them
  std::int64_t tiles;
  // Where a is ones: sums of kSumBlock rows of b each, [blocks, n].
  double* sums;
  std::int64_t blocks;
};

}  // namespace attend::cuda
