#include <attend/distributed.h>

#include <thread>

namespace attend::distributed {

// Most MPIs move a few pieces of a large message each time they are called, and nothing in
// between: a pause is a loss, until the wait has become so long that somebody must be late.
bool Pending::wait(std::chrono::milliseconds at_most) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  while (!poll()) {
    const auto waited = Clock::now() - begin;
    if (waited >= at_most) return false;
    if (waited < std::chrono::milliseconds(100)) std::this_thread::yield();
    else std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

void Group::fail(std::string why) {
  if (failure_.empty()) failure_ = std::move(why);  // the first reason is the cause of others
}

}  // namespace attend::distributed
