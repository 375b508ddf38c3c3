// What kernels may ask of the machine before they accept a problem.
#pragma once

#include "core/parallel.h"

#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace attend {

struct Machine {
  std::string_view architecture;  // "x86-64", "aarch64"
  int processors = 1;             // that this process may run on
  bool avx2 = false;              // with FMA and F16C
  bool avx512 = false;            // F, DQ, BW, VL
  bool avx512_bf16 = false;       // these, and BF16
  bool avx512_bf16_pays = false;  // whose products are faster than those of f32
  bool amx_bf16 = false;          // these, VBMI, and tiles of bf16
  bool amx_fp16 = false;          // and of f16
  bool amx_permitted = false;     // the tiles' registers, by the operating system
  bool neon = false;
  bool neon_bf16 = false;  // with BFMMLA, BFDOT and BFCVTN
};

#if defined(__x86_64__)
// Tiles are 8 KiB of registers that Linux saves for those processes alone that have asked for them.
// To ask again does no harm. Refused: by a system that does not know them, by a sandbox, or if a
// thread has an alternate stack for signals that is too small for them.
inline bool ask_for_amx() noexcept {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, in xfeatures
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

// What this one is, found out anew.
inline Machine detected_machine() noexcept {
  Machine machine{.architecture = "unknown", .processors = available_processors()};
#if defined(__x86_64__)
  machine.architecture = "x86-64";
  unsigned a = 0, b = 0, c = 0, d = 0;  // clang 14 does not know F16C by name
  machine.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                 __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  machine.avx512 = machine.avx2 && __builtin_cpu_supports("avx512f") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512vl");
  machine.avx512_bf16 =
      machine.avx512 && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & 1U << 5) != 0;
  // AMD's cores, and Intel's of the one kind that has BF16 without AMX. Those with AMX take four
  // times as long for VDPBF16PS as for a multiply-add of f32. Whether they show AMX is the
  // hypervisor's business: so the question is who made them.
  machine.avx512_bf16_pays =
      machine.avx512_bf16 && (__builtin_cpu_is("amd") || __builtin_cpu_is("cooperlake"));
  machine.amx_bf16 = machine.avx512_bf16 && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 &&
                     (c & 1U << 1) != 0 && (d & 1U << 22) != 0 && (d & 1U << 24) != 0;
  machine.amx_fp16 =
      machine.amx_bf16 && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & 1U << 21) != 0;
  machine.amx_permitted = machine.amx_bf16 && ask_for_amx();
#elif defined(__aarch64__)
  machine.architecture = "aarch64";
  machine.neon = true;                        // every aarch64 has it
#if defined(__linux__)
  constexpr unsigned long kBf16 = 1UL << 14;  // HWCAP2_BF16
  machine.neon_bf16 = (getauxval(AT_HWCAP2) & kBf16) != 0;
#endif
#endif
  return machine;
}

// The same. Tests of instructions that this machine has not have one of their own
// (tests/emulated/machine.cpp).
Machine this_machine() noexcept;

}  // namespace attend
