// What a Context owns: the pool of threads, free workspaces, the plans made so far, forced kernels.
#pragma once

#include "core/parallel.h"
#include "plan/plan.h"

#include <attend/context.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <tuple>
#include <unordered_map>
#include <vector>

namespace attend {

class TensorPool;  // api/tensor_memory.h

// Of the sizes: == does the rest.
struct ProblemHash {
  std::size_t operator()(const Problem& problem) const noexcept;
  std::size_t operator()(const MergeProblem& problem) const noexcept;
};

// The plans of one operation that were made so far.
template <class Operation>
struct Plans {
  std::unordered_map<typename Operation::Problem, std::shared_ptr<const Decision<Operation>>,
                     ProblemHash>
      made;
};
template <class... Operations>
using PlansOf = std::tuple<Plans<Operations>...>;

// The rows of one operation that were chosen so far for host tensors, by type and variant; null:
// not asked for yet.
inline constexpr std::size_t kTypeCount = static_cast<std::size_t>(DType::boolean) + 1;
template <class Operation>
struct ChosenRows {
  std::atomic<const Kernel<Operation>*> of[kTypeCount][Operation::Problem::kVariants]{};
};
template <class... Operations>
using ChosenRowsOf = std::tuple<ChosenRows<Operations>...>;

struct ContextState {
  explicit ContextState(const ContextOptions& options);
  ~ContextState();
  ContextState(const ContextState&) = delete;
  ContextState& operator=(const ContextState&) = delete;

  static ContextState& of(const Context& context) noexcept { return *context.state_; }

  // The plan for a problem, from the cache or newly made.
  template <class Operation>
  std::shared_ptr<const Decision<Operation>> plan_for(const typename Operation::Problem& problem);
  std::string_view forced_kernel(std::string_view operation) const noexcept;
  // The row for problems of this type and variant.
  template <class Operation>
  const Kernel<Operation>& row_for(const typename Operation::Problem& problem) const;

  // Runs every stage of the plan; memory for its workspace is kept for the next call. Or, on a
  // device, launches it into the queue, which nobody else needs. The function is the one that was
  // called, for messages.
  template <class Operation>
  void execute(const char* function, const Decision<Operation>& decision,
               const typename Operation::Call& call, Queue* queue = nullptr);

  struct Allocation {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
  };
  Allocation acquire(std::size_t bytes);
  void release(Allocation memory) noexcept;

  const int threads;
  const Machine machine = this_machine();
  const ParallelFor parallel_for;
  const Allocator allocator;
  const std::shared_ptr<TensorPool> tensors;
  const std::function<bool()> interrupt;
  std::vector<std::pair<std::string, std::string>> forced;  // operation, kernel
  ThreadPool pool;

  std::mutex mutex;  // of the two below
  WithTasks<PlansOf> plans;
  std::vector<Allocation> free_memory;

  mutable ChosenOnce<ChosenRowsOf> chosen;
};

}  // namespace attend
