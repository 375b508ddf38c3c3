// Threads. A ThreadPool runs a body once for each of a few strands; what a strand does (take the
// next task until none is left) is the caller's business.
#pragma once

#include "core/interrupt.h"

#include <memory>
#include <type_traits>

namespace attend {

// Reference to a callable, without the allocation of std::function. It does not keep a temporary
// alive: meant for arguments, where the temporary lives until the call returns.
class StrandBody {
 public:
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, StrandBody>)
      StrandBody(F&& f)  // NOLINT: meant to convert
      : object_(std::addressof(f)), call_([](const void* object, int strand) {
          using Callable = std::remove_reference_t<F>;
          (*static_cast<Callable*>(const_cast<void*>(object)))(strand);
        }) {}
  void operator()(int strand) const { call_(object_, strand); }

 private:
  const void* object_;
  void (*call_)(const void*, int);
};

class ThreadPool {
 public:
  // `threads` counts the caller: a pool of one never starts a thread. Workers start at first use.
  explicit ThreadPool(int threads);
  ~ThreadPool();  // no run() may be under way
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const noexcept;

  // Calls body(0) ... body(strands - 1), the caller taking part, and returns when all are done.
  // From inside a body (nested) and from many threads at once (concurrent) it works as well, and
  // never waits for a strand that no thread will run. Workers run with the caller's floating-point
  // environment. body must not throw. Strands may run one after the other on one thread: a body
  // must not wait for another strand to begin. While the caller waits for others it asks the
  // interrupt, if there is one; to stop is the strands' business.
  void run(int strands, StrandBody body, Interrupt* interrupt = nullptr);

  // To be called around fork(): the child starts with no workers and makes new ones when needed.
  // Where the body itself forks, the child has lost the strands that other threads were running:
  // its run() finishes the strands that nobody had begun, and returns. A body that forked on a
  // worker has no caller to return to in the child: when it returns its thread ends, and with the
  // last thread the child does.
  void before_fork() noexcept;
  void after_fork_in_parent() noexcept;
  void after_fork_in_child() noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// How many processors the process may run on, by its affinity mask; at least 1.
int available_processors() noexcept;

}  // namespace attend
