// The statistics of a head as a list of numbers, to be compared or hashed as a whole.
#pragma once

#include <attend/inspect.h>

#include <vector>

namespace attend::test {

// All but the contribution, which a layer computes.
inline std::vector<double> numbers_of(const HeadStatistics& h) {
  return {static_cast<double>(h.rows),
          h.lse,
          h.entropy,
          h.evenness,
          h.maximum,
          h.distance,
          h.previous,
          h.first,
          h.diagonal,
          h.local,
          h.local_uniform,
          h.duplicate,
          h.induction};
}

}  // namespace attend::test
