// Where calls run: a Context (threads, workspaces, kernels) and, on a device, one of its queues.
// The last argument of every function says so; without it, it is the shared default_context(). A
// Context may be used from any number of threads and survives fork().
#pragma once

#include <attend/tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace attend {

// Memory for workspaces and for the tensors that layers make. allocate returns null when it has
// none; neither function throws. Tensors may outlive the Context, and then so must these.
struct Allocator {
  std::function<void*(std::size_t bytes, std::size_t alignment)> allocate{};
  std::function<void(void* memory, std::size_t bytes)> deallocate{};
};

// Calls body(0) ... body(n - 1), in any order, on any threads. It returns, or throws, only when no
// body is running any more.
using ParallelFor = std::function<void(int n, const std::function<void(int)>& body)>;

struct ContextOptions {
  // 0: the environment variable ATTEND_THREADS, read now; else as many as the calling thread may
  // run on (its affinity mask).
  int threads = 0;
  ParallelFor parallel_for{};  // instead of the Context's own threads
  Allocator allocator{};       // instead of the C++ runtime's
  // Kernels to use, one per operation: "forward:reference.forward,backward:reference.backward".
  // Not given: the environment variable ATTEND_KERNEL, read now; else the planner chooses.
  std::string kernels{};
  // Asked while a call runs, by the thread that made it and by no other, every 20 ms or so, between
  // tasks and inside long ones. True ends the call with Interrupted, and an exception with that
  // exception: within some ten milliseconds, and the Context can be used again. With a parallel_for
  // of your own it is asked where that runs a body on the calling thread. If several threads use
  // the Context, each of them asks during its own calls, possibly at once. Calls of the library
  // from inside it do not ask.
  std::function<bool()> interrupt{};
};

// A row of the kernel table.
struct KernelInfo {
  std::string name;       // "reference.forward"
  std::string operation;  // "forward", "backward", "merge", "inspect", "weights", "product", ...
  bool only_if_forced = false;  // never chosen by the planner
};

class ATTEND_API Context {
 public:
  explicit Context(const ContextOptions& options = {});
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  int threads() const noexcept;

  // Calls body(0) ... body(n - 1), each once, in any order, over the Context's threads, and returns
  // when all are done, or throws Interrupted when `interrupt` has said so and no body is running.
  // body must not throw. It may itself call any function of the library; such calls do not ask
  // `interrupt`, which is asked between bodies.
  void parallel_for(std::int64_t n, const std::function<void(std::int64_t)>& body) const;

  // A tensor of any contents, in memory of the Context's allocator. Where it is large, that is kept
  // for the next one when the tensor is gone (up to 128 MiB). The tensor may outlive the Context.
  Tensor make_tensor(const Shape& shape, DType type = DType::f32) const;

  static std::vector<KernelInfo> kernels();  // operation by operation, the best first

 private:
  friend struct ContextState;
  std::unique_ptr<struct ContextState> state_;
};

ATTEND_API Context& default_context();

class Queue;  // of a device: work is done in its order. The header of the device makes them.

// Calls on tensors of a device put their work into the queue and return; the tensors must live
// until it is done. For tensors in host memory a Context is enough.
class Where {
 public:
  Where(Context& context) noexcept : context_(&context) {}  // NOLINT: reads as the Context
  Where(Context& context, Queue& queue) noexcept : context_(&context), queue_(&queue) {}
  Where(Queue& queue) : Where(default_context(), queue) {}  // NOLINT: or as the queue

  Context& context() const noexcept { return *context_; }
  Queue* queue() const noexcept { return queue_; }          // null: none
  operator Context&() const noexcept { return *context_; }  // NOLINT: where a Context is enough

 private:
  Context* context_;
  Queue* queue_ = nullptr;
};

}  // namespace attend
