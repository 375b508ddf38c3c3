// Running a plan: threads, a caller's parallel_for, the order of stages and the memory of strands.
#include "api/context.h"
#include "support/small_call.h"
#include "support/thrown_by.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace attend {
namespace {

using test::CountingAllocator;
using test::SmallCall;
using test::thrown_by;

// ---- Threads -----------------------------------------------------------------------------------

TEST(Threads, as_many_as_asked_for_and_always_the_same_bits) {
  EXPECT_EQ(Context().threads(), available_processors());
  SmallCall expected(2600);
  Context one({.threads = 1});
  expected.run(one);
  for (int threads = 1; threads <= 5; ++threads) {
    Context context({.threads = threads});
    EXPECT_EQ(context.threads(), threads);
    SmallCall a(2600);
    a.run(context);
    EXPECT_EQ(a.result(), expected.result()) << threads << " threads";
    EXPECT_EQ(ContextState::of(context).plan_for<Forward>(a.problem())->strands, threads)
        << "or threads show nothing";
  }
}

TEST(Threads, a_parallel_for_of_the_callers_runs_the_strands) {
  SmallCall expected(2600);
  Context one({.threads = 1});
  expected.run(one);
  std::vector<int> calls;
  Context context({.threads = 3, .parallel_for = [&](int n, const std::function<void(int)>& body) {
                     calls.push_back(n);
                     for (int strand = n - 1; strand >= 0; --strand) body(strand);
                   }});
  SmallCall a(2600);
  a.run(context);
  EXPECT_EQ(calls, std::vector<int>{3});
  EXPECT_EQ(a.result(), expected.result());
  SmallCall little(1);
  little.run(context);
  EXPECT_EQ(calls.size(), 1U) << "one strand needs no parallel_for";
}

TEST(Threads, parallel_for_calls_the_body_once_for_every_number) {
  Context one({.threads = 1}), three({.threads = 3});
  Context own({.threads = 3, .parallel_for = [](int n, const std::function<void(int)>& body) {
                 for (int strand = 0; strand < n; ++strand) body(strand);
               }});
  for (Context* context : {&one, &three, &own})
    for (const int n : {0, 1, 2, 1000}) {
      std::vector<std::atomic<int>> called(static_cast<std::size_t>(n));
      context->parallel_for(n, [&](std::int64_t i) { ++called[static_cast<std::size_t>(i)]; });
      for (const auto& times : called) EXPECT_EQ(times, 1) << n << " numbers";
    }
}

TEST(Threads, a_parallel_for_that_throws_gives_its_memory_back) {
  CountingAllocator memory;
  {
    Context context({.threads = 3,
                     .parallel_for =
                         [](int, const std::function<void(int)>&) {
                           throw std::runtime_error("no threads today");
                         },
                     .allocator = memory.allocator()});
    SmallCall a(2600);
    EXPECT_EQ(thrown_by([&] { a.run(context); }), "not an attend::Error: no threads today");
    EXPECT_EQ(ContextState::of(context).free_memory.size(), 1U);
  }
  EXPECT_EQ(memory.allocated, memory.deallocated);
}

// ---- Stages ------------------------------------------------------------------------------------

// What the made-up kernel below finds wrong. Its workspace: 128 shared bytes, 64 of each strand.
struct Watch {
  std::atomic<int> done[3] = {};       // tasks of each stage
  std::atomic<int> out_of_order{0};    // a task that began before the stage before it was done
  std::atomic<int> shared_scratch{0};  // two tasks at the same time on one strand's memory
  std::atomic<int> misplaced{0};       // memory outside the workspace, or not aligned
  std::vector<std::atomic<int>> runs[3] = {std::vector<std::atomic<int>>(700),
                                           std::vector<std::atomic<int>>(1),
                                           std::vector<std::atomic<int>>(50)};
  std::atomic<std::byte*> shared{nullptr};
};
Watch* watch = nullptr;

constexpr std::int64_t kStageTasks[] = {700, 1, 50};

void watched_run(const ForwardProblem&, const Tiles&, const ForwardCall&,
                 const Task& task) noexcept {
  Watch& w = *watch;
  for (int before = 0; before < task.stage; ++before)
    w.out_of_order += w.done[before] != kStageTasks[before];
  std::byte* expected = nullptr;
  if (!w.shared.compare_exchange_strong(expected, task.shared) && expected != task.shared)
    ++w.misplaced;
  const std::ptrdiff_t at = task.scratch - task.shared;
  if (at < 128 || at % 64 != 0 || at >= 128 + 64 * 4) ++w.misplaced;
  auto& busy = *reinterpret_cast<int*>(task.scratch);
  const std::atomic_ref<int> flag(busy);
  if (flag.exchange(1) == 1) ++w.shared_scratch;
  if (task.index % 16 == 0) std::this_thread::yield();
  flag.store(0);
  ++w.runs[task.stage][static_cast<std::size_t>(task.index)];
  ++w.done[task.stage];
}

const Kernel<Forward> kWatched{
    .name = "watched",
    .only_if_forced = false,
    .takes = kHostTypes | kLayouts,
    .stages = 3,
    .declines = [](const ForwardProblem&, const Machine&) { return std::string(); },
    .tiles = [](const ForwardProblem&, const Machine&) { return Tiles{}; },
    .tasks = [](const ForwardProblem&, const Tiles&, int stage) { return kStageTasks[stage]; },
    .workspace =
        [](const ForwardProblem&, const Tiles&) {
          return Workspace{128, 64};
        },
    .run = watched_run,
};

void run_watched(Context& context) {
  const Kernel<Forward>* table[] = {&kWatched};
  const ForwardProblem problem = SmallCall(2600).problem();
  const Decision<Forward> decision =
      decide<Forward>(problem, ContextState::of(context).machine, 4, "", table);
  ASSERT_EQ(decision.strands, 4);
  ASSERT_EQ(decision.workspace_bytes, 128U + 4 * 64);
  for (int repeat = 0; repeat < 50; ++repeat) {
    Watch w;
    watch = &w;
    ContextState::of(context).execute("attention", decision, ForwardCall{});
    ASSERT_EQ(w.out_of_order, 0);
    ASSERT_EQ(w.shared_scratch, 0);
    ASSERT_EQ(w.misplaced, 0);
    for (const auto& stage : w.runs)
      for (const std::atomic<int>& count : stage) ASSERT_EQ(count, 1);
  }
}

// Free memory of the context's own, zeroed: a strand's first word says whether it is in use.
Allocator zeroed() {
  return {[](std::size_t bytes, std::size_t alignment) {
            void* memory = std::aligned_alloc(alignment, (bytes + 63) / 64 * 64);
            std::memset(memory, 0, bytes);
            return memory;
          },
          [](void* memory, std::size_t) { std::free(memory); }};
}

TEST(Stages, follow_each_other_and_strands_have_memory_of_their_own) {
  Context context({.threads = 4, .allocator = zeroed()});
  run_watched(context);
}

TEST(Stages, the_same_with_a_parallel_for_of_the_callers) {
  const auto with_threads = [](int n, const std::function<void(int)>& body) {
    std::vector<std::thread> threads;
    for (int strand = 0; strand < n; ++strand) threads.emplace_back(body, strand);
    for (std::thread& thread : threads) thread.join();
  };
  Context context({.threads = 4, .parallel_for = with_threads, .allocator = zeroed()});
  run_watched(context);
}

TEST(Stages, a_parallel_for_that_does_less_still_gets_everything_done) {
  const auto lazy = [](int, const std::function<void(int)>& body) { body(2); };
  Context context({.threads = 4, .parallel_for = lazy, .allocator = zeroed()});
  run_watched(context);
  const auto idle = [](int, const std::function<void(int)>&) {};
  Context other({.threads = 4, .parallel_for = idle, .allocator = zeroed()});
  run_watched(other);
}

}  // namespace
}  // namespace attend
