// The Interrupt of one call, from the hook of its Context.
#pragma once

#include "core/interrupt.h"

#include <chrono>
#include <exception>
#include <functional>

#include <pthread.h>

namespace attend {

// The hook is asked so often at most, by each thread.
inline constexpr std::chrono::milliseconds kInterruptInterval{20};

// What a call does beside its work, while this lives: the thread that made it asks `poll` where it
// would ask the hook, every 200 us or so. Transfers between processes move on by it. What it throws
// ends the call.
inline constexpr std::chrono::microseconds kPollInterval{200};
class Polling {
 public:
  explicit Polling(const std::function<void()>& poll) noexcept;
  ~Polling();
  Polling(const Polling&) = delete;
  Polling& operator=(const Polling&) = delete;

 private:
  const std::function<void()>* const outer_;
};

// Of one call, on the stack of the thread that makes it.
class Interruption : private Interrupt {
 public:
  // A call from inside a task has none: nobody could stop the tasks around it.
  explicit Interruption(const std::function<bool()>& hook) noexcept;
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  Interrupt* get() noexcept { return active_ ? this : nullptr; }
  // After the tasks: throws Interrupted, or what the hook threw, if they were stopped.
  void finish(const char* function) const;

 private:
  static bool ask_hook(Interrupt& interrupt, bool waited) noexcept;

  const std::function<bool()>& hook_;
  const bool active_;
  const pthread_t caller_;
  std::chrono::steady_clock::time_point looked_{};  // at the clock
  int looks_ = 1, left_ = 0;                        // one of so many looks at the clock
  std::exception_ptr thrown_;
};

// Says for as long as it lives that this thread runs tasks that this interrupts (or nothing does).
class RunningTasks {
 public:
  explicit RunningTasks(Interrupt* interrupt) noexcept;
  ~RunningTasks();
  RunningTasks(const RunningTasks&) = delete;
  RunningTasks& operator=(const RunningTasks&) = delete;
  static Interrupt* interrupt() noexcept;  // of the tasks that this thread runs at the moment

 private:
  Interrupt* const outer_;
  const bool outer_inside_;
};

}  // namespace attend
