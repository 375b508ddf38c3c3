// Covering arrays: rows of option values in which every pair of values of two options occurs.
//
// A fault that needs two options to meet is found by testing every pair; all combinations would be
// astronomically many, but all pairs fit into about a hundred rows.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace attend::test {

// levels[f] is the number of values of factor f. A row holds one level a factor, -1 if not chosen
// yet.
using CoveringRow = std::vector<int>;

// A greedy array; another seed gives another. `allowed` judges rows that may be incomplete: false
// means that no completion is feasible. A pair is given up if no allowed row holds it.
std::vector<CoveringRow> covering_array(const std::vector<int>& levels,
                                        const std::function<bool(const CoveringRow&)>& allowed,
                                        std::uint64_t seed);

}  // namespace attend::test
