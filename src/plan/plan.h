// The planner: which kernel solves a Problem, cut how, with how much workspace. Decided here, once.
#pragma once

#include "core/kernel.h"

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace attend {

// All kernels, of each operation the best first; the reference is the last that may be chosen.
std::span<const Kernel* const> kernel_table() noexcept;

// A finished decision.
struct Decision {
  Problem problem;
  const Kernel* kernel = nullptr;
  bool forced = false;
  std::vector<std::pair<std::string_view, std::string>> declined;  // kernel, reason
  Tiles tiles;
  std::vector<std::int64_t> tasks;  // of each stage
  Workspace workspace;
  int strands = 1;                  // how many may run at the same time
  std::size_t workspace_bytes = 0;  // shared + strands * per_strand
};

// Walks the table. With `forced` (a kernel's name) only that row is asked, and its refusal is
// final. Throws InvalidArgument for an unknown name, Unsupported when every row declines.
Decision decide(const Problem& problem, const Machine& machine, int threads,
                std::string_view forced, std::span<const Kernel* const> table = kernel_table());

std::string_view name_of(Operation operation) noexcept;  // "forward"
std::string describe(const Problem& problem);            // one line: type, sizes, options
std::string describe(const Decision& decision);          // a few lines

}  // namespace attend
