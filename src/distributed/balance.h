// How much work there is where, counted in pairs of a query and a key that may be seen by position.
#pragma once

#include "distributed/whole.h"

namespace attend::distributed {

// Pairs of sequence b and one head, of each granule of its queries, or of its keys.
std::vector<double> pairs_by_granule(const WholeProblem& whole, std::int64_t b, bool queries,
                                     std::int64_t granule);

// A sequence and a key head: what one rank computes at a time in the scheme `heads`.
struct Item {
  std::int64_t b = 0, kv_head = 0;
};
// Of each rank, so that all have about as many pairs.
std::vector<std::vector<Item>> items_of(const WholeProblem& whole, int ranks);

}  // namespace attend::distributed
