// A row of the kernel table. A kernel is told everything and asks nothing: run() reads its
// arguments only, does not allocate, print or throw, and writes into the caller's buffers. What it
// cannot do it declines beforehand, in words.
#pragma once

#include "core/call.h"
#include "core/interrupt.h"
#include "core/machine.h"
#include "core/problem.h"

#include <cstddef>
#include <string>
#include <string_view>

namespace attend {

// How a kernel cuts the problem. Chosen from the type, d, options and machine, never from the
// batch, the lengths or the threads: that keeps a row's bits the same whatever stands beside it.
struct Tiles {
  std::int64_t queries = 1;
  std::int64_t keys = 1;
  int threads = 1;  // that share the tasks: said to the kernel, which may choose among cuts that
                    // give the same bits
};

// Bytes of scratch memory, all multiples of kWorkspaceAlignment.
struct Workspace {
  std::size_t shared = 0;      // one for the whole call, for what one stage leaves to the next
  std::size_t per_strand = 0;  // one for each strand of execution
};
inline constexpr std::size_t kWorkspaceAlignment = 64;

struct Task {
  int stage = 0;
  std::int64_t index = 0;
  std::byte* shared = nullptr;
  std::byte* scratch = nullptr;    // this strand's
  Interrupt* interrupt = nullptr;  // asked by tasks that may last longer than some milliseconds
};

// What every kernel for host memory says of tensors on a device.
inline std::string declines_device(const Problem& problem) {
  if (problem.device == Device{}) return {};
  return "reads host memory, the tensors are on " + to_string(problem.device);
}

struct Kernel {
  std::string_view name;  // "cpu.neon.forward"
  Operation operation;
  bool only_if_forced;  // a yardstick, never chosen
  int stages;           // run one after the other, each with its tasks in parallel

  std::string (*declines)(const Problem&, const Machine&);  // the reason, or empty
  Tiles (*tiles)(const Problem&, const Machine&);
  std::int64_t (*tasks)(const Problem&, const Tiles&, int stage);  // index 0 is started first
  Workspace (*workspace)(const Problem&, const Tiles&);
  void (*run)(const Problem&, const Tiles&, const Call&, const Task&) noexcept;
};

}  // namespace attend
