#include "signals.h"

#include <atomic>

namespace attend::cli {
namespace {

std::atomic<int> came = 0;  // any thread may be the one that is interrupted
static_assert(std::atomic<int>::is_always_lock_free);

}  // namespace

HeldSignals::HeldSignals() {
  came = 0;
  struct sigaction action {};
  action.sa_handler = [](int signal) { came = signal; };
  action.sa_flags = SA_RESTART;
  for (std::size_t n = 0; n < kHeld.size(); ++n) {
    ::sigaction(kHeld[n], nullptr, &before_[n]);
    // What is ignored, as under nohup, stays so.
    if (before_[n].sa_handler != SIG_IGN) ::sigaction(kHeld[n], &action, nullptr);
  }
}

HeldSignals::~HeldSignals() {
  for (std::size_t n = 0; n < kHeld.size(); ++n) ::sigaction(kHeld[n], &before_[n], nullptr);
  if (const int signal = came.exchange(0)) ::raise(signal);
}

bool HeldSignals::waiting() noexcept { return came != 0; }

}  // namespace attend::cli
