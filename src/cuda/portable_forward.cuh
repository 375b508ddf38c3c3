// What the kernels of the portable forward pass share.
#pragma once

#include "portable.cuh"
#include "portable_forward.h"

namespace attend::cuda {

// The queries and columns that a block of threads has.
struct ForwardItem {
  Sequence sequence;
  std::int64_t h, first, column, chunk;
  bool writes_rows;  // lse and what else there is of a row once

  __device__ ForwardItem(const PortableForward& a, std::int64_t index) {
    const std::int64_t chunks = a.apart ? a.chunks : 1;
    chunk = index % chunks;
    index /= chunks;
    const std::int64_t block = index / a.columns, head = block / a.row_blocks;
    sequence = sequence_of(a.problem, a.call, head / a.problem.heads);
    h = head % a.problem.heads;
    first = block % a.row_blocks * kRows;
    column = index % a.columns * kColumns + threadIdx.x;
    writes_rows = index % a.columns == 0;
  }
};

template <class Real>
struct ForwardShared {
  ProductTiles<Real> tiles;
  Factors<Real> weights;
  KeyRanges ranges;
  std::int64_t q_at[kRows], k_at[kLanes], v_at[kLanes];
  Real rescale[kRows];               // of a chunk's sums
  double mine[kRows], other[kRows];  // what the sums so far weigh, and the chunk's
  double l[kRows];
};

}  // namespace attend::cuda
