#include <attend/distributed.h>

#include "distributed/time_limit.h"

#include <thread>

namespace attend::distributed {

// Without pauses for a millisecond, of all calls together, and while bytes move: most MPIs move
// some pieces of a large message each time they are called, and nothing in between, so that a pause
// is a loss then. Else somebody is late, and the processor is left to others: in pauses that grow.
bool Pending::wait(std::chrono::milliseconds at_most) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::nanoseconds kFirst = std::chrono::microseconds(20),
                                     kLast = std::chrono::milliseconds(1);
  Clock::time_point last = Clock::now();
  const Clock::time_point end = last + limited(at_most);
  while (!poll()) {
    Clock::time_point now = Clock::now();
    if (now >= end) return false;
    spin_ -= now - last;
    if (spin_.count() > 0 || moves()) {
      std::this_thread::yield();
    } else {
      pause_ = std::clamp(pause_ * 3 / 2, kFirst, kLast);
      std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(pause_, end - now));
      now = Clock::now();
    }
    last = now;
  }
  return true;
}

void Group::fail(std::string why) {
  if (failure_.empty())  // the first reason is the cause of others
    failure_ = why.empty() ? "an error without words" : std::move(why);
}

}  // namespace attend::distributed
