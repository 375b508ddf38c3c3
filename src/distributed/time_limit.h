// Time limits that no clock overflows by: the caller's may be milliseconds::max().
#pragma once

#include <algorithm>
#include <chrono>

namespace attend::distributed {

inline std::chrono::milliseconds limited(std::chrono::milliseconds time) noexcept {
  constexpr std::chrono::milliseconds kCentury = std::chrono::hours(24 * 365 * 100);
  return std::min(time, kCentury);
}

}  // namespace attend::distributed
