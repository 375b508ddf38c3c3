// Running a plan: the tasks of each stage over strands of execution.
#include "api/context.h"

#include <atomic>

namespace attend {
namespace {

// Takes tasks until none is left. Which strand takes which task never changes a bit.
struct Stage {
  const Decision& decision;
  const Call& call;
  std::byte* memory;
  int index;
  std::atomic<std::int64_t> next{0};

  void operator()(int strand) noexcept {
    const Workspace& workspace = decision.workspace;
    Task task{.stage = index, .index = 0, .shared = memory};
    task.scratch =
        memory + workspace.shared + static_cast<std::size_t>(strand) * workspace.per_strand;
    const std::int64_t tasks = decision.tasks[static_cast<std::size_t>(index)];
    while ((task.index = next.fetch_add(1, std::memory_order_relaxed)) < tasks)
      decision.kernel->run(decision.problem, decision.tiles, call, task);
  }
};

}  // namespace

void Context::State::execute(const Decision& decision, const Call& call) {
  struct Lease {  // gives the workspace back, also when a caller's parallel_for throws
    State& state;
    Memory memory;
    ~Lease() { state.release(memory); }
  };
  const Lease lease{*this, acquire(decision.workspace_bytes)};
  if (call.visited_blocks != nullptr) *call.visited_blocks = 0;  // not before memory was there
  for (int index = 0; index < decision.kernel->stages; ++index) {
    Stage stage{decision, call, lease.memory.data, index};
    if (decision.strands > 1) {
      if (parallel_for) parallel_for(decision.strands, [&stage](int strand) { stage(strand); });
      else pool.run(decision.strands, stage);
    }
    stage(0);  // everything, when alone; else whatever the caller's parallel_for left undone
  }
}

}  // namespace attend
