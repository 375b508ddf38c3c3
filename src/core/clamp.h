// Lengths, offsets and starts of sequences in memory of a device were not checked by the host:
// numbers out of range are brought into it, so that nothing outside of the tensors is read or
// written, whatever they say.
#pragma once

#include "core/problem.h"

namespace attend {

inline constexpr std::int64_t kFarthestPosition = std::int64_t{1} << 62;

[[gnu::always_inline]] ATTEND_HOST_DEVICE inline std::int64_t between(std::int64_t low,
                                                                      std::int64_t x,
                                                                      std::int64_t high) noexcept {
  return x < low ? low : x > high ? high : x;
}

// Start n of packed sequences: not before the last one, no farther from it than the longest is
// long, within all of them.
[[gnu::always_inline]] ATTEND_HOST_DEVICE inline std::int64_t clamped_start(
    std::int64_t x, std::int64_t n, std::int64_t last, std::int64_t longest,
    std::int64_t total) noexcept {
  const std::int64_t most = n == 0 || total - last < longest ? total : last + longest;
  return between(last, x, most);
}

// The length of a sequence's keys; stored: of packed ones.
[[gnu::always_inline]] ATTEND_HOST_DEVICE inline std::int64_t clamped_length(
    const Problem& p, std::int64_t x, std::int64_t stored) noexcept {
  if (p.keys == KeyAddressing::packed) return between(0, x, stored);
  return between(0, x, p.keys == KeyAddressing::paged && p.pages == 0 ? 0 : p.k_length);
}

[[gnu::always_inline]] ATTEND_HOST_DEVICE inline std::int64_t clamped_offset(
    std::int64_t x, std::int64_t limit) noexcept {
  return between(-limit, x, limit);
}

}  // namespace attend
