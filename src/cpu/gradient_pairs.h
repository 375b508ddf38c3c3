// What a matrix instruction is given of backward's bands (score_gradients.h): P or dS of a group of
// keys, against rows of some tiles of queries.
#pragma once

#include "cpu/tiles.h"

namespace attend {
namespace {

template <class V>
struct GradientPairs {
  static constexpr int kTile = TilesOf<V>::kScores * V::kLanes;  // rows of a tile
  const SumOf<V>* at;                                            // [key][kTile] of each tile
  std::int64_t stride, next;  // from key to key, and from tile to tile
  int rows;                   // those of the last tile may be fewer than kTile
  int keys;
  bool marks;  // -inf is a mark of what is hidden

  const SumOf<V>* from(int row) const noexcept { return at + row / kTile * next + row % kTile; }
  // Whether `count` rows from `row` on are there, and none is marked.
  bool all(int row, int count) const noexcept { return rows - row >= count && !marks; }
};

// Of operands that need no powers of two (amx_gradients.h says which do).
struct NoUnits {};

}  // namespace
}  // namespace attend
