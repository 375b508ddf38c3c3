// Running a plan: the tasks of each stage over strands of execution, or a launch.
#include "api/context.h"
#include "api/launch.h"

#include "api/lease.h"
#include "core/interruption.h"
#include "core/text.h"

#include <algorithm>
#include <atomic>

namespace attend {
namespace {

// Takes tasks until none is left: an eighth of its share of them at once, neighbours, whose memory
// often lies side by side, and at last one by one. Which strand takes which task never changes a
// bit.
template <class Operation>
struct Stage {
  const Decision<Operation>& decision;
  const typename Operation::Call& call;
  std::byte* memory;
  int index, strands;
  Interrupt* interrupt;
  std::atomic<std::int64_t> next{0};

  void operator()(int strand) noexcept {
    if (decision.kernel->around == nullptr) return take_tasks(strand);
    auto tasks = [this, strand] { take_tasks(strand); };
    decision.kernel->around([](void* of) noexcept { (*static_cast<decltype(tasks)*>(of))(); },
                            &tasks);
  }

 private:
  void take_tasks(int strand) noexcept {
    const Workspace& workspace = decision.workspace;
    Task task{.stage = index, .index = 0, .shared = memory};
    task.interrupt = interrupt;
    const RunningTasks running(interrupt);
    task.scratch =
        memory + workspace.shared + static_cast<std::size_t>(strand) * workspace.per_strand;
    const std::int64_t tasks = decision.tasks[static_cast<std::size_t>(index)];
    for (;;) {
      const std::int64_t left = tasks - next.load(std::memory_order_relaxed);
      const std::int64_t some = std::max<std::int64_t>(left / (8 * strands), 1);
      task.index = next.fetch_add(some, std::memory_order_relaxed);
      if (task.index >= tasks) return;
      for (const std::int64_t end = std::min(task.index + some, tasks); task.index < end;
           ++task.index) {
        if (must_stop(interrupt)) return;
        decision.kernel->run(decision.problem, decision.tiles, call, task);
      }
    }
  }
};

// Calls body(strand) for every strand, or at least for strand 0: bodies take what is left to do.
template <class Body>
void on_strands(ContextState& state, int strands, Body& body, Interrupt* interrupt) {
  if (strands > 1) {
    if (state.parallel_for) state.parallel_for(strands, [&body](int strand) { body(strand); });
    else state.pool.run(strands, body, interrupt);
  }
  body(0);  // everything, when alone; else whatever the caller's parallel_for left undone
}

}  // namespace

Queue& queue_for(std::string_view function, Device device, Queue* queue) {
  if (queue == nullptr)
    throw InvalidArgument(
        text(function, ": the tensors are on ", device, "; a queue of it must be given"));
  if (queue->device() != device)
    throw InvalidArgument(text(function, ": the tensors are on ", device, ", the queue is of ",
                               queue->device(), "; both must be one device"));
  return *queue;
}

void check_launched(std::string_view function, Device device, const Status& status) {
  if (status.kind == Status::Kind::out_of_memory)
    throw OutOfMemory(text(function, ": ", device, " has no memory for it: ", status.what));
  if (!status)
    throw DeviceError(text(function, ": ", device, " failed: ", status.what,
                           status.earlier ? " (perhaps in an earlier call)" : ""));
}

void Context::parallel_for(std::int64_t n, const std::function<void(std::int64_t)>& body) const {
  std::atomic<std::int64_t> next{0};
  Interruption interruption(state_->interrupt);
  Interrupt* const interrupt = interruption.get();
  const auto take = [&](int) {
    const RunningTasks running(interrupt);
    for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) {
      if (must_stop(interrupt)) return;
      body(i);
    }
  };
  const auto strands = static_cast<int>(std::min<std::int64_t>(n, state_->threads));
  on_strands(*state_, strands, take, interrupt);
  interruption.finish("parallel_for");
}

template <class Operation>
void ContextState::execute(const char* function, const Decision<Operation>& decision,
                           const typename Operation::Call& call, Queue* queue) {
  if (decision.kernel->launch != nullptr)
    return launch(function, decision.problem.device, queue, [&](Queue& into) {
      return decision.kernel->launch(decision.problem, call, into);
    });
  const Lease workspace(*this, decision.workspace_bytes);
  if constexpr (std::is_same_v<Operation, Forward>)  // not before memory was there
    if (call.visited_blocks != nullptr) *call.visited_blocks = 0;
  Interruption interruption(interrupt);
  for (int index = 0; index < decision.kernel->stages; ++index) {
    const std::int64_t tasks = decision.tasks[static_cast<std::size_t>(index)];
    if (tasks == 0) continue;
    const int strands = static_cast<int>(std::min<std::int64_t>(decision.strands, tasks));
    Stage<Operation> stage{decision, call, workspace.data(), index, strands, interruption.get()};
    on_strands(*this, strands, stage, interruption.get());
    interruption.finish(function);
  }
}
template void ContextState::execute(const char*, const Decision<Forward>&, const ForwardCall&,
                                    Queue*);
template void ContextState::execute(const char*, const Decision<Backward>&, const BackwardCall&,
                                    Queue*);
template void ContextState::execute(const char*, const Decision<Merge>&, const MergeCall&, Queue*);
template void ContextState::execute(const char*, const Decision<Inspect>&, const InspectCall&,
                                    Queue*);
template void ContextState::execute(const char*, const Decision<Weights>&, const WeightsCall&,
                                    Queue*);

}  // namespace attend
