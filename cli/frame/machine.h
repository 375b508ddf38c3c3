// What the operating system says of the machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace attend::cli {

struct MachineInfo {
  std::string architecture;  // "x86-64", "aarch64"
  std::string model;         // of the processor; empty if it is not said
  int processors = 1;        // that are online
  int allowed = 1;           // of them, by the affinity mask
  std::int64_t memory_bytes = 0;
  std::vector<std::string> simd;  // instruction sets that matter here, as the kernel names them
};

MachineInfo machine_info();

// The most memory that this process could ever have, in bytes: the machine's with its swap, what
// its control group allows, or its own limit (ulimit -v).
std::int64_t memory_limit();

// Throws OutOfMemory if that is less than `bytes`, which is the least that `what` takes: at once
// and in words, where the work would go on for hours or until the system ends the process.
void check_memory(double bytes, const std::string& what);

}  // namespace attend::cli
