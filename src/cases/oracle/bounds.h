// How far from the truth a kernel may be, and which blocks it may enter.
#pragma once

#include "truth.h"

namespace attend::oracle {

// Sizes of the terms that rounding errors are proportional to, element by element: every sum taken
// over absolute values, with p_ij counted in one of three ways.
//
//   accumulated  1 + E_ij + max_j E_ij times, E_ij = scale |q_i| . |k_j| + |bias| + |alibi|. A
//                score with the error e_ij changes p_ij by the factor exp(e_ij - mean of e), so
//                this, times the unit roundoff of the accumulator, bounds what computing the
//                scores costs while the errors are small. Where scores are stored in 16 bits they
//                are not: `roundoff`, if given, is what E_ij is multiplied by in the end, and p_ij
//                is taken as far as such an error can carry it.
//   stored       once. Times the unit roundoff of the tensors' type, it bounds what rounding p, ds,
//                out and the like to that type costs.
//   vanished     as 1. Times the smallest number of the type, or the smallest normal one of the
//                accumulator, it bounds what their underflow costs.
//
// largest is the largest score, dP or dS that storing them one by one may meet: beyond the largest
// number of the type, whatever comes of them may be infinite or NaN.
struct Bounds {
  Results<double> accumulated, stored, vanished;
  double largest = 0;
};
Bounds bounds(const Reader& reader, double roundoff = 0);

// Pairs (query, key block) that must be entered, because a visible key lies in them, and that may
// be, because the block is visible and begins before the last key.
struct VisitedBlocks {
  std::int64_t least = 0, most = 0;
};
VisitedBlocks visited_blocks(const Reader& reader);

}  // namespace attend::oracle
