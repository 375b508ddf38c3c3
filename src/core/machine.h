// What kernels may ask of the machine before they accept a problem.
#pragma once

#include "core/parallel.h"

#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace attend {

struct Machine {
  std::string_view architecture;  // "x86-64", "aarch64"
  int processors = 1;             // that this process may run on
  bool avx2 = false;              // with FMA and F16C
  bool avx512 = false;            // F, DQ, BW, VL
  bool neon = false;
};

inline Machine this_machine() noexcept {
  Machine machine{.architecture = "unknown", .processors = available_processors()};
#if defined(__x86_64__)
  machine.architecture = "x86-64";
  unsigned a = 0, b = 0, c = 0, d = 0;  // clang 14 does not know F16C by name
  machine.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                 __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  machine.avx512 = machine.avx2 && __builtin_cpu_supports("avx512f") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512vl");
#elif defined(__aarch64__)
  machine.architecture = "aarch64";
  machine.neon = true;  // every aarch64 has it
#endif
  return machine;
}

}  // namespace attend
