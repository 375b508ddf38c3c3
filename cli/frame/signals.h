// What the system may do to a process that writes. Signals that end it are held back while files
// are being put in place: whoever presses Ctrl-C then finds all of them or none, and nothing
// half-made beside them.
#pragma once

#include <signal.h>

#include <array>

namespace attend::cli {

// At the beginning of the program. A file that grows past the limit of its size (SIGXFSZ) becomes
// an error of the write, like a full disk. Where standard input, output or error are closed, no
// file that is opened later takes their place, to be written over by what is printed. The stack
// gets the size that it will need: where it could not grow later (ulimit -v), the system would end
// the process. And where memory runs out in a destructor that may not fail (those of JSON objects
// take some), the end is the same as elsewhere: one line, its status, and no temporary file. Throws
// std::bad_alloc.
void prepare_process();

// Called before such an end; nothing, if there is nothing to remove.
void set_clean_up(void (*clean_up)());

// While it lives, the signals below are remembered; at its end the one that came is raised
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
  static constexpr std::array kHeld{SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGXCPU};
  std::array<struct sigaction, kHeld.size()> before_{};
};

}  // namespace attend::cli
