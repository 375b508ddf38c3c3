// A row of the kernel table. A kernel is told everything and asks nothing: run() reads its
// arguments only, does not allocate, print or throw, and writes into the caller's buffers. What it
// cannot do it does not list among the features that it takes, or declines beforehand, in words.
// On the host a row is tasks; on a device, a launch.
#pragma once

#include "core/features.h"
#include "core/interrupt.h"
#include "core/machine.h"
#include "core/operation.h"
#include "core/queue.h"

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
  // Few rows ask memory for keys and values twice: for a cache far away, and then for the nearest.
  bool asks_twice = false;
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

template <class Operation>
struct Kernel {
  using Problem = typename Operation::Problem;
  using Call = typename Operation::Call;

  std::string_view name;  // "cpu.neon.forward"
  bool only_if_forced;    // a yardstick, never chosen
  Features takes;         // the planner declines problems with others
  int stages = 0;         // run one after the other, each with its tasks in parallel

  // Why it cannot do a problem of features that it takes, or empty: no such instructions, numbers
  // beyond its range.
  std::string (*declines)(const Problem&, const Machine&);

  // Why it is not chosen on a machine where rows behind it are faster, though it can be forced;
  // or empty. Null: it is always faster.
  std::string (*slower)(const Machine&) = nullptr;

  // Tasks
  Tiles (*tiles)(const Problem&, const Machine&) = nullptr;
  std::int64_t (*tasks)(const Problem&, const Tiles&, int stage) = nullptr;  // 0 is started first
  Workspace (*workspace)(const Problem&, const Tiles&) = nullptr;
  void (*run)(const Problem&, const Tiles&, const Call&, const Task&) noexcept = nullptr;
  // Sets up what tasks need of the processor, calls tasks(of), which runs those of one strand, and
  // restores what was there; null where they need nothing. An interrupt is asked between tasks and
  // may change it: with one, run() sets it up again.
  void (*around)(void (*tasks)(void*) noexcept, void* of) noexcept = nullptr;

  // Or a launch. Problem and Call, and what they point to on the host, are gone when it returns:
  // what the work needs of them goes with it. visited_blocks, memory of the device, is not set to 0
  // before; q of a call without keys is none. Whatever it takes from the queue it gives back, also
  // if it fails.
  Status (*launch)(const Problem&, const Call&, Queue&) noexcept = nullptr;
};

}  // namespace attend
