// Flags or input that a command cannot take.
#pragma once

#include <stdexcept>

namespace attend::cli {

// The message follows "attend NAME: "; the exit status is 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace attend::cli
