// What kernels may ask of the machine before they accept a problem.
#pragma once

#include "core/parallel.h"

#include <string_view>

namespace attend {

struct Machine {
  std::string_view architecture;  // "x86-64", "aarch64"
  int processors = 1;             // that this process may run on
};

inline Machine this_machine() noexcept {
#if defined(__x86_64__)
  constexpr std::string_view kArchitecture = "x86-64";
#elif defined(__aarch64__)
  constexpr std::string_view kArchitecture = "aarch64";
#else
  constexpr std::string_view kArchitecture = "unknown";
#endif
  return {kArchitecture, available_processors()};
}

}  // namespace attend
