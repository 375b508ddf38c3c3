// Signals that end a process, held back while files are being put in place: whoever presses Ctrl-C
// then finds all of them or none, and nothing half-made beside them.
#pragma once

#include <signal.h>

#include <array>

namespace attend::cli {

// While it lives, SIGINT, SIGTERM and SIGHUP are remembered; at its end the one that came is raised
// again, and does what it would have done. One at a time.
class HeldSignals {
 public:
  HeldSignals();
  ~HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  // Whether one waits: long work should end.
  static bool waiting() noexcept;

 private:
  static constexpr std::array kHeld{SIGINT, SIGTERM, SIGHUP};
  std::array<struct sigaction, kHeld.size()> before_{};
};

}  // namespace attend::cli
