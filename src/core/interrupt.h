// The one hook of a call: the thread that made it asks the Context's `interrupt` now and then,
// between tasks, inside long ones, and while it waits for other threads. If the answer is yes every
// strand stops at its next look, and the call throws. This is what a strand sees of it; who runs
// the tasks has an Interruption.
#pragma once

#include <atomic>

namespace attend {

struct Interrupt {
  bool (*ask)(Interrupt&, bool waited) noexcept;
  std::atomic<bool> stopped{false};
};

// To be asked outside of the innermost loops: it may read the clock. A kernel that must stop
// returns; what it has written means nothing. `waited`: this thread has slept since it last asked.
[[gnu::always_inline]] inline bool must_stop(Interrupt* interrupt, bool waited = false) noexcept {
  return interrupt != nullptr && interrupt->ask(*interrupt, waited);
}

}  // namespace attend
