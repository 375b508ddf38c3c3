// The threads of PyTorch, for attention between its products. Theirs wait for the next product by
// spinning, and a worker of a Context's own would have to take a processor from them first: with
// two of each on two processors, attention over 32 tokens took 1.6 times as long as on one thread.
//
// PyTorch has its own copy of GNU OpenMP, whose functions other names of the process see. What a
// compiler makes of `#pragma omp parallel` is one call of it, and that call is all that is needed.
#include "openmp.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cfenv>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

namespace attend::python {
namespace {

using Parallel = void (*)(void (*body)(void*), void* data, unsigned threads, unsigned flags);

struct Job {
  const std::function<void(int)>& body;
  int strands;
  const pthread_t caller = pthread_self();
  std::fenv_t environment{};  // the caller's
  std::atomic<int> next{1};
};

// Strand 0 is the caller's: it alone asks whether the call is to end, between its tasks.
void work(void* data) {
  Job& job = *static_cast<Job*>(data);
  const auto next = [&job] { return job.next.fetch_add(1, std::memory_order_relaxed); };
  std::fenv_t own;
  std::fegetenv(&own);
  std::fesetenv(&job.environment);
  for (int strand = pthread_equal(pthread_self(), job.caller) != 0 ? 0 : next();
       strand < job.strands; strand = next())
    job.body(strand);
  std::fesetenv(&own);
}

// In the child of a fork() there are none of those threads, and GNU OpenMP would wait for them for
// ever: it has others, of a Context.
bool in_a_child = false;
[[maybe_unused]] const int known = pthread_atfork(nullptr, nullptr, [] { in_a_child = true; });

class InAChild {
 public:
  explicit InAChild(int threads) : threads_(threads) {}
  void run(int strands, const std::function<void(int)>& body) {
    std::call_once(made_, [this] { context_.emplace(ContextOptions{.threads = threads_}); });
    context_->parallel_for(strands, [&](std::int64_t strand) { body(static_cast<int>(strand)); });
  }

 private:
  int threads_;
  std::once_flag made_;  // untouched before the fork
  std::optional<Context> context_;
};

}  // namespace

ParallelFor openmp_threads(int threads) {
  const auto parallel = reinterpret_cast<Parallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
  if (parallel == nullptr) return {};
  return [parallel, threads, child = std::make_shared<InAChild>(threads)](
             int strands, const std::function<void(int)>& body) {
    if (in_a_child) return child->run(strands, body);
    Job job{body, strands};
    std::fegetenv(&job.environment);
    // Always as many: GNU OpenMP ends threads that a smaller team has no use for.
    parallel(work, &job, static_cast<unsigned>(threads), 0);
  };
}

}  // namespace attend::python
