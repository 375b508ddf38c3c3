// The groups of the table, shared by its source files alone.
//
// Sizes are chosen so that heads != length != d (equal ones hide a swapped layout), lengths fall on
// both sides of every power of two that a kernel may use as a tile, and the whole table, forward
// and backward, costs a plain kernel a few seconds a type.
#pragma once

#include "cases.h"

namespace attend::cases {

using Cases = std::vector<Case>;

// Two sequences of grouped heads with uneven lengths: where options are tried one at a time.
inline Case small() {
  return {.batch = 2, .heads = 4, .kv_heads = 2, .q_length = 19, .k_length = 37, .d = 12, .dv = 10};
}

template <class Change>
void add(Cases& cases, Case problem, Change&& change) {
  change(problem);
  cases.push_back(problem);
}

void add_shapes(Cases& cases);   // lengths, head sizes, empty sizes, grouped heads, layouts
void add_options(Cases& cases);  // every option alone, and those that meet in the same step

}  // namespace attend::cases
