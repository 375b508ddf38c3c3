#include "core/interruption.h"

#include "core/reporting.h"
#include "core/text.h"

#include <algorithm>

namespace attend {
namespace {

using Clock = std::chrono::steady_clock;

struct Thread {
  Interrupt* interrupt = nullptr;
  bool inside = false;       // a task
  Clock::time_point next{};  // when the hook may be asked again
  const std::function<void()>* poll = nullptr;
  Clock::time_point next_poll{};
};
thread_local Thread thread;

// The clock takes 25 ns. Where looks come faster than this, only one of so many looks at it.
constexpr std::chrono::microseconds kFast{2};
constexpr int kMostLooks = 16;

}  // namespace

Interruption::Interruption(const std::function<bool()>& hook) noexcept
    : Interrupt{ask_hook}, hook_(hook),
      active_((hook != nullptr || thread.poll != nullptr) && !thread.inside),
      caller_(pthread_self()) {}

bool Interruption::ask_hook(Interrupt& interrupt, bool waited) noexcept {
  if (interrupt.stopped.load(std::memory_order_relaxed)) return true;
  auto& self = static_cast<Interruption&>(interrupt);
  if (pthread_equal(pthread_self(), self.caller_) == 0) return false;
  if (--self.left_ > 0 && !waited) return false;
  const Clock::time_point now = Clock::now();
  self.looks_ =
      now - self.looked_ < kFast * self.looks_ ? std::min(2 * self.looks_, kMostLooks) : 1;
  self.left_ = self.looks_;
  self.looked_ = now;
  const bool polls = thread.poll != nullptr && now >= thread.next_poll;
  const bool asks = self.hook_ != nullptr && now >= thread.next;
  if (!polls && !asks) return false;
  // What the hook calls asks nobody. (Between tasks this thread runs none: it would be asked.)
  const RunningTasks asking(nullptr);
  try {
    if (polls) (*thread.poll)();
    if (asks) interrupt.stopped.store(self.hook_(), std::memory_order_relaxed);
  } catch (...) {
    self.thrown_ = std::current_exception();
    interrupt.stopped.store(true, std::memory_order_relaxed);
  }
  self.looked_ = Clock::now();
  if (polls) thread.next_poll = self.looked_ + kPollInterval;
  if (asks) thread.next = self.looked_ + kInterruptInterval;  // however long the hook took
  return interrupt.stopped.load(std::memory_order_relaxed);
}

void Interruption::finish(const char* function) const {
  if (!stopped.load(std::memory_order_relaxed)) return;
  if (thrown_) std::rethrow_exception(thrown_);
  throw Interrupted(text(function, kInterrupted));
}

RunningTasks::RunningTasks(Interrupt* interrupt) noexcept
    : outer_(thread.interrupt), outer_inside_(thread.inside) {
  thread.interrupt = interrupt;
  thread.inside = true;
}
RunningTasks::~RunningTasks() {
  thread.interrupt = outer_;
  thread.inside = outer_inside_;
}

Polling::Polling(const std::function<void()>& poll) noexcept : outer_(thread.poll) {
  thread.poll = &poll;
}
Polling::~Polling() { thread.poll = outer_; }

Interrupt* RunningTasks::interrupt() noexcept { return thread.interrupt; }

}  // namespace attend
