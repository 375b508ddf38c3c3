#include <attend/distributed.h>

#include <algorithm>
#include <thread>

namespace attend::distributed {

bool Pending::wait(std::chrono::milliseconds at_most) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + at_most;
  std::chrono::microseconds pause{1};
  constexpr std::chrono::microseconds kLongest{1000};
  while (!poll()) {
    if (Clock::now() >= end) return false;
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongest);
  }
  return true;
}

void Group::fail(std::string why) {
  if (failure_.empty()) failure_ = std::move(why);  // the first reason is the cause of others
}

}  // namespace attend::distributed
