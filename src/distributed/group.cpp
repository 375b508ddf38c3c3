#include <attend/distributed.h>

#include "distributed/time_limit.h"

#include <ctime>
#include <thread>

namespace attend::distributed {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;

constexpr nanoseconds kSpin = std::chrono::milliseconds(1);
constexpr nanoseconds kFirstPause = microseconds(20), kLastPause = std::chrono::milliseconds(1);

// What a poll takes beside what the cheapest takes, if it moves bytes; the first after a pause
// finds the caches cold.
constexpr nanoseconds kMoves = microseconds(2), kMovesAfterPause = microseconds(20);

nanoseconds processor_time() noexcept {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + nanoseconds(time.tv_nsec);
}

}  // namespace

// Without pauses for a millisecond, of all calls together, or since bytes last moved. After that
// somebody is late, and the processor is left to others: in pauses that grow.
//
// Most MPIs move some pieces of a large message each time they are called, and nothing in between,
// so that a pause would be a loss while they do. They do not say whether they do, but a poll that
// copies takes many times as long as one that finds nothing. (In processor time, which does not
// pass while others have the processor.)
bool Pending::wait(std::chrono::milliseconds at_most) {
  using Clock = std::chrono::steady_clock;
  Clock::time_point last = Clock::now();
  const Clock::time_point end = last + limited(at_most);
  bool paused = false;
  for (;;) {
    const bool is_late = pause_.count() > 0;
    const nanoseconds before = is_late ? processor_time() : nanoseconds(0);
    if (poll()) return true;
    const Clock::time_point now = Clock::now();
    if (now >= end) return false;
    if (is_late) {
      const nanoseconds taken = processor_time() - before;
      cheapest_ = std::min(cheapest_, taken);
      if (taken > 4 * cheapest_ + (paused ? kMovesAfterPause : kMoves)) {
        spin_ = kSpin;
        pause_ = kFirstPause;
      }
    }
    spin_ -= now - last;
    last = now;
    paused = spin_.count() <= 0;
    if (!paused) {
      std::this_thread::yield();
      continue;
    }
    pause_ = std::clamp(pause_ * 3 / 2, kFirstPause, kLastPause);
    std::this_thread::sleep_for(std::min<nanoseconds>(pause_, end - now));
    last = Clock::now();
  }
}

void Group::fail(std::string why) {
  if (failure_.empty()) failure_ = std::move(why);  // the first reason is the cause of others
}

}  // namespace attend::distributed
