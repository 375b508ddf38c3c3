// Which keys a query sees, by position.
#pragma once

namespace attend::cuda {

// Positions are below 2^28 in size: what is farther away is clamped to kNoLimit by the host, and
// longer sequences are declined.
inline constexpr int kNoLimit = 1 << 29;

// Keys, queries, or tiles of them: [begin, end).
struct KeyRange {
  int begin, end;
};

}  // namespace attend::cuda
