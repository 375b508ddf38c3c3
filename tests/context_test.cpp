// Contexts: forced kernels, the plans they keep, the memory they keep, the strands they run.
#include "api/context.h"
#include "api/check.h"
#include "support/environment.h"
#include "support/option_changes.h"

#include <attend/plan.h>

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <set>
#include <thread>

namespace attend {
namespace {

using test::Environment;

template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing";
}

// Arguments of one length, filled with something.
struct Arguments {
  Tensor q, k, v, out;
  explicit Arguments(std::int64_t length, std::int64_t batch = 2)
      : q({batch, 4, length, 6}), k({batch, 2, 5, 6}), v({batch, 2, 5, 7}),
        out({batch, 4, length, 7}) {
    for (Tensor* t : {&q, &k, &v})
      for (std::int64_t n = 0; n < t->count(); ++n)
        t->data<float>()[n] = static_cast<float>(n * 37 % 101) / 50 - 1;
  }
  void run(Context& context, const AttentionOptions& options = {}) {
    attention(q, k, v, out, options, {}, context);
  }
  std::string kernel(Context& context) {
    return Plan::attention(q, k, v, out, {}, {}, {}, context).kernel();
  }
  std::string backward_kernel(Context& context) {
    const Tensor lse(Shape{q.size(0), q.size(1), q.size(2)});
    Tensor dq(q.shape());
    return Plan::attention_backward(q, k, v, out, lse, out, {.dq = dq}, {}, {}, {}, context)
        .kernel();
  }
  Problem problem(const AttentionOptions& options = {}) {
    return check(ForwardArguments{q, k, v, out, options, {}}).problem;
  }
  std::vector<float> result() const { return {out.data<float>(), out.data<float>() + out.count()}; }
};

// ---- Forced kernels ----------------------------------------------------------------------------

TEST(Kernels, are_listed_as_the_table_has_them) {
  const std::vector<KernelInfo> rows = Context::kernels();
  ASSERT_EQ(rows.size(), kernel_table().size());
  for (std::size_t n = 0; n < rows.size(); ++n) {
    EXPECT_EQ(rows[n].name, kernel_table()[n]->name);
    EXPECT_EQ(rows[n].operation, name_of(kernel_table()[n]->operation));
    EXPECT_EQ(rows[n].only_if_forced, kernel_table()[n]->only_if_forced);
  }
}

TEST(Kernels, the_planner_chooses_where_nothing_is_forced) {
  const Environment none("ATTEND_KERNEL", nullptr);
  Context context;
  EXPECT_TRUE(context.state().forced.empty());
  const Environment empty("ATTEND_KERNEL", "");
  Context other;
  EXPECT_TRUE(other.state().forced.empty());
}

TEST(Kernels, the_environment_is_read_when_a_context_is_made) {
  Arguments a(3);
  const Environment variable("ATTEND_KERNEL", "forward:textbook.forward");
  Context context;
  {
    const Environment changed("ATTEND_KERNEL", "forward:reference.forward");
    EXPECT_EQ(a.kernel(context), "textbook.forward") << "was read when the context was made";
    Context later;
    EXPECT_EQ(a.kernel(later), "reference.forward");
  }
  EXPECT_FALSE(context.state().forced_kernel(Operation::forward).empty());
  EXPECT_TRUE(context.state().forced_kernel(Operation::backward).empty()) << "one, not all";
}

TEST(Kernels, the_environment_may_force_several_operations) {
  Arguments a(3);
  for (const char* both : {"forward:textbook.forward,backward:textbook.backward",
                           "backward:textbook.backward,forward:textbook.forward,"}) {
    const Environment variable("ATTEND_KERNEL", both);
    Context context;
    EXPECT_EQ(a.kernel(context), "textbook.forward") << both;
    EXPECT_EQ(a.backward_kernel(context), "textbook.backward") << both;
    EXPECT_EQ(context.state().forced_kernel(Operation::merge), "") << both;
  }
}

TEST(Kernels, what_the_options_force_wins_over_the_environment) {
  Arguments a(3);
  const Environment variable("ATTEND_KERNEL", "no such kernel");
  Context context({.kernels = "forward:reference.forward,merge:reference.merge"});
  EXPECT_EQ(a.kernel(context), "reference.forward");
  EXPECT_EQ(context.state().forced_kernel(Operation::merge), "reference.merge");
  EXPECT_EQ(context.state().forced_kernel(Operation::backward), "");
}

TEST(Kernels, a_bad_environment_fails_the_context_and_names_the_variable) {
  for (const char* bad :
       {"forward", "forward:", ":reference.forward", "forward:fast", "decode:x",
        "reference.forward", " forward:reference.forward", "merge:reference.forward"}) {
    const Environment variable("ATTEND_KERNEL", bad);
    EXPECT_EQ(message_of([] { Context context; })
                  .find(std::string("context: the environment variable ATTEND_KERNEL has \"") +
                        bad + "\", which is not one of "),
              0U)
        << bad;
  }
}

TEST(Kernels, a_plan_may_force_what_the_context_does_not) {
  Arguments a(3);
  Context context({.kernels = "forward:reference.forward"});
  const Plan plan =
      Plan::attention(a.q, a.k, a.v, a.out, {}, {}, {.kernel = "textbook.forward"}, context);
  EXPECT_EQ(plan.kernel(), "textbook.forward");
  EXPECT_EQ(a.kernel(context), "reference.forward") << "and the context keeps its own";
}

// ---- Plans -------------------------------------------------------------------------------------

TEST(PlanCache, the_same_problem_has_one_plan) {
  Context context;
  Arguments a(3), b(3), other(4);
  const auto plan = context.state().plan_for(a.problem());
  EXPECT_EQ(context.state().plan_for(b.problem()), plan);
  EXPECT_NE(context.state().plan_for(other.problem()), plan);
  EXPECT_EQ(context.state().plans.size(), 2U);
  a.run(context);
  b.run(context);
  EXPECT_EQ(context.state().plans.size(), 2U);
}

TEST(PlanCache, every_option_has_a_plan_of_its_own) {
  Context context;
  Arguments a(3);
  std::set<const Decision*> plans;
  const auto plan_with = [&](const AttentionOptions& options) {
    return context.state().plan_for(a.problem(options)).get();
  };
  plans.insert(plan_with(test::start_options()));
  for (const auto& [name, apply] : test::option_changes()) {
    AttentionOptions options = test::start_options();
    apply(options);
    EXPECT_TRUE(plans.insert(plan_with(options)).second) << name << " shares another's plan";
    EXPECT_FALSE(plans.insert(plan_with(options)).second) << name << " has no plan that is kept";
  }
}

TEST(PlanCache, growing_lengths_do_not_fill_memory) {
  Context context;
  Problem p = Arguments(1).problem();
  for (p.q_length = 1; p.q_length <= 1000; ++p.q_length) {
    const auto plan = context.state().plan_for(p);
    ASSERT_EQ(plan->problem, p);
    ASSERT_EQ(context.state().plan_for(p), plan);
    ASSERT_LE(context.state().plans.size(), 256U);
  }
  EXPECT_GT(context.state().plans.size(), 100U);
}

TEST(PlanCache, first_calls_from_many_threads_make_one_plan) {
  for (int repeat = 0; repeat < 20; ++repeat) {
    Context context({.threads = 2});
    Arguments expected(3);
    Context alone({.threads = 1});
    expected.run(alone);
    std::atomic<int> wrong{0};
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 8; ++caller)
      callers.emplace_back([&] {
        Arguments a(3);
        a.run(context);
        wrong += a.result() != expected.result();
      });
    for (std::thread& caller : callers) caller.join();
    ASSERT_EQ(wrong, 0);
    ASSERT_EQ(context.state().plans.size(), 1U);
  }
}

// ---- Memory ------------------------------------------------------------------------------------

// Counts what it gives and takes, and fills memory with NaN.
struct CountingAllocator {
  std::atomic<int> allocated{0}, deallocated{0};
  std::atomic<std::size_t> bytes{0};
  bool exhausted = false;

  Allocator allocator() {
    return {[this](std::size_t size, std::size_t alignment) -> void* {
              EXPECT_EQ(alignment, 64U);
              ++allocated;
              bytes += size;
              if (exhausted) return nullptr;
              void* memory = std::aligned_alloc(alignment, (size + 63) / 64 * 64);
              std::memset(memory, 0xFF, size);
              return memory;
            },
            [this](void* memory, std::size_t size) {
              ++deallocated;
              bytes -= size;
              std::free(memory);
            }};
  }
};

TEST(Workspace, is_taken_once_and_used_again) {
  CountingAllocator memory;
  {
    Context context({.threads = 1, .allocator = memory.allocator()});
    Arguments a(3), shorter(2);
    a.run(context);
    const int first = memory.allocated;
    EXPECT_EQ(first, 1);
    EXPECT_EQ(memory.bytes,
              Plan::attention(a.q, a.k, a.v, a.out, {}, {}, {}, context).workspace_bytes());
    for (int repeat = 0; repeat < 10; ++repeat) {
      a.run(context);
      shorter.run(context);
    }
    EXPECT_EQ(memory.allocated, first) << "the same and smaller problems need no new memory";
    EXPECT_EQ(memory.deallocated, 0);
  }
  EXPECT_EQ(memory.deallocated, memory.allocated);
  EXPECT_EQ(memory.bytes, 0U) << "sizes are given back as they were asked for";
}

TEST(Workspace, the_smallest_block_that_is_large_enough_is_used) {
  CountingAllocator memory;
  Context context({.threads = 1, .allocator = memory.allocator()});
  Context::State& state = context.state();
  const auto large = state.acquire(1024), small = state.acquire(256), middle = state.acquire(512);
  for (const auto& block : {large, small, middle}) state.release(block);
  EXPECT_EQ(state.acquire(300).data, middle.data);
  EXPECT_EQ(state.acquire(300).data, large.data);
  const auto fresh = state.acquire(300);
  EXPECT_NE(fresh.data, small.data);
  EXPECT_EQ(fresh.bytes, 300U);
  EXPECT_EQ(state.acquire(0).data, nullptr);
  EXPECT_EQ(memory.allocated, 4);
  for (const auto& block : {large, middle, fresh}) state.release(block);
}

TEST(Workspace, only_a_few_free_blocks_are_kept) {
  CountingAllocator memory;
  {
    Context context({.threads = 1, .allocator = memory.allocator()});
    std::vector<Context::State::Memory> blocks;
    for (int n = 0; n < 100; ++n) blocks.push_back(context.state().acquire(64));
    for (const auto& block : blocks) context.state().release(block);
    EXPECT_LE(context.state().free_memory.size(), 16U);
    EXPECT_GE(memory.deallocated, 84);
  }
  EXPECT_EQ(memory.deallocated, 100);
}

TEST(Workspace, no_memory_is_an_error_and_the_next_call_works) {
  CountingAllocator memory;
  Context context({.threads = 1, .allocator = memory.allocator()});
  Arguments a(3);
  memory.exhausted = true;
  EXPECT_THROW(a.run(context), OutOfMemory);
  EXPECT_EQ(a.result(), std::vector<float>(a.result().size(), 0));
  memory.exhausted = false;
  EXPECT_EQ(message_of([&] { a.run(context); }), "nothing");
}

TEST(Workspace, a_size_that_overflowed_is_not_even_asked_for) {
  CountingAllocator memory;
  Context context({.threads = 1, .allocator = memory.allocator()});
  for (const std::size_t bytes : {~std::size_t{0}, std::size_t{1} << 63})
    EXPECT_EQ(message_of([&] { context.state().acquire(bytes); }),
              "context: no memory for a workspace of " + std::to_string(bytes) + " bytes");
  EXPECT_EQ(memory.allocated, 0);
}

// ---- Threads -----------------------------------------------------------------------------------

TEST(Threads, as_many_as_asked_for_and_always_the_same_bits) {
  EXPECT_EQ(Context().threads(), available_processors());
  Arguments expected(500);
  Context one({.threads = 1});
  expected.run(one);
  for (int threads = 1; threads <= 5; ++threads) {
    Context context({.threads = threads});
    EXPECT_EQ(context.threads(), threads);
    Arguments a(500);
    a.run(context);
    EXPECT_EQ(a.result(), expected.result()) << threads << " threads";
    EXPECT_EQ(context.state().plan_for(a.problem())->strands, threads) << "or threads show nothing";
  }
}

TEST(Threads, a_parallel_for_of_the_callers_runs_the_strands) {
  Arguments expected(500);
  Context one({.threads = 1});
  expected.run(one);
  std::vector<int> calls;
  Context context({.threads = 3, .parallel_for = [&](int n, const std::function<void(int)>& body) {
                     calls.push_back(n);
                     for (int strand = n - 1; strand >= 0; --strand) body(strand);
                   }});
  Arguments a(500);
  a.run(context);
  EXPECT_EQ(calls, std::vector<int>{3});
  EXPECT_EQ(a.result(), expected.result());
  Arguments little(1);
  little.run(context);
  EXPECT_EQ(calls.size(), 1U) << "one strand needs no parallel_for";
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
    Arguments a(500);
    EXPECT_EQ(message_of([&] { a.run(context); }), "no threads today");
    EXPECT_EQ(context.state().free_memory.size(), 1U);
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

void watched_run(const Problem&, const Tiles&, const Call&, const Task& task) noexcept {
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

const Kernel kWatched{
    .name = "watched",
    .operation = Operation::forward,
    .only_if_forced = false,
    .stages = 3,
    .declines = [](const Problem&, const Machine&) { return std::string(); },
    .tiles = [](const Problem&, const Machine&) { return Tiles{}; },
    .tasks = [](const Problem&, const Tiles&, int stage) { return kStageTasks[stage]; },
    .workspace =
        [](const Problem&, const Tiles&) {
          return Workspace{128, 64};
        },
    .run = watched_run,
};

void run_watched(Context& context) {
  const Kernel* table[] = {&kWatched};
  const Problem problem = Arguments(500).problem();
  const Decision decision = decide(problem, context.state().machine, 4, "", table);
  ASSERT_EQ(decision.strands, 4);
  ASSERT_EQ(decision.workspace_bytes, 128U + 4 * 64);
  for (int repeat = 0; repeat < 50; ++repeat) {
    Watch w;
    watch = &w;
    context.state().execute(decision, {});
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
