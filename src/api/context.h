// What a Context owns: the pool of threads, free workspaces, the plans made so far, forced kernels.
#pragma once

#include "core/parallel.h"
#include "plan/plan.h"

#include <attend/context.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace attend {

struct ProblemHash {
  std::size_t operator()(const Problem& problem) const noexcept;  // of the sizes: == does the rest
};

struct Context::State {
  explicit State(const ContextOptions& options);
  ~State();

  // The plan for a problem, from the cache or newly made.
  std::shared_ptr<const Decision> plan_for(const Problem& problem);
  std::string_view forced_kernel(Operation operation) const noexcept;

  // Runs every stage of the plan; memory for its workspace is kept for the next call. The function
  // is the one that was called, for messages.
  void execute(const char* function, const Decision& decision, const Call& call);

  struct Memory {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
  };
  Memory acquire(std::size_t bytes);
  void release(Memory memory) noexcept;

  const int threads;
  const Machine machine = this_machine();
  const ParallelFor parallel_for;
  const Allocator allocator;
  const std::function<bool()> interrupt;
  std::vector<std::pair<Operation, std::string>> forced;
  ThreadPool pool;

  std::mutex mutex;  // of the two below
  std::unordered_map<Problem, std::shared_ptr<const Decision>, ProblemHash> plans;
  std::vector<Memory> free_memory;
};

}  // namespace attend
