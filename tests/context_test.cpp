// Contexts: forced kernels, the plans they keep, the memory they keep.
#include "api/context.h"
#include "support/environment.h"
#include "support/option_changes.h"
#include "support/small_call.h"
#include "support/thrown_by.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <set>
#include <thread>

namespace attend {
namespace {

using test::CountingAllocator;
using test::Environment;
using test::SmallCall;
using test::thrown_by;

// ---- Forced kernels ----------------------------------------------------------------------------

TEST(Kernels, are_listed_as_the_table_has_them) {
  const std::vector<KernelInfo> rows = Context::kernels();
  std::size_t n = 0;
  for_each_operation([&]<class Operation>(Operation) {
    for (const Kernel<Operation>* kernel : kernel_table<Operation>()) {
      ASSERT_LT(n, rows.size());
      EXPECT_EQ(rows[n].name, kernel->name);
      EXPECT_EQ(rows[n].operation, Operation::kName);
      EXPECT_EQ(rows[n++].only_if_forced, kernel->only_if_forced);
    }
  });
  EXPECT_EQ(n, rows.size());
}

TEST(Kernels, the_planner_chooses_where_nothing_is_forced) {
  const Environment none("ATTEND_KERNEL", nullptr);
  Context context;
  EXPECT_TRUE(ContextState::of(context).forced.empty());
  const Environment empty("ATTEND_KERNEL", "");
  Context other;
  EXPECT_TRUE(ContextState::of(other).forced.empty());
}

TEST(Kernels, the_environment_is_read_when_a_context_is_made) {
  SmallCall a(3);
  const Environment variable("ATTEND_KERNEL", "forward:textbook.forward");
  Context context;
  {
    const Environment changed("ATTEND_KERNEL", "forward:reference.forward");
    EXPECT_EQ(a.kernel(context), "textbook.forward") << "was read when the context was made";
    Context later;
    EXPECT_EQ(a.kernel(later), "reference.forward");
  }
  EXPECT_FALSE(ContextState::of(context).forced_kernel("forward").empty());
  EXPECT_TRUE(ContextState::of(context).forced_kernel("backward").empty()) << "one, not all";
}

TEST(Kernels, the_environment_may_force_several_operations) {
  SmallCall a(3);
  for (const char* both : {"forward:textbook.forward,backward:textbook.backward",
                           "backward:textbook.backward,forward:textbook.forward,"}) {
    const Environment variable("ATTEND_KERNEL", both);
    Context context;
    EXPECT_EQ(a.kernel(context), "textbook.forward") << both;
    EXPECT_EQ(a.backward_kernel(context), "textbook.backward") << both;
    EXPECT_EQ(ContextState::of(context).forced_kernel("merge"), "") << both;
  }
}

TEST(Kernels, what_the_options_force_wins_over_the_environment) {
  SmallCall a(3);
  const Environment variable("ATTEND_KERNEL", "no such kernel");
  Context context({.kernels = "forward:reference.forward,merge:reference.merge"});
  EXPECT_EQ(a.kernel(context), "reference.forward");
  EXPECT_EQ(ContextState::of(context).forced_kernel("merge"), "reference.merge");
  EXPECT_EQ(ContextState::of(context).forced_kernel("backward"), "");
}

TEST(Kernels, a_bad_environment_fails_the_context_and_names_the_variable) {
  for (const char* bad :
       {"forward", "forward:", ":reference.forward", "forward:fast", "decode:x",
        "reference.forward", " forward:reference.forward", "merge:reference.forward"}) {
    const Environment variable("ATTEND_KERNEL", bad);
    EXPECT_EQ(
        thrown_by([] { Context context; })
            .find(std::string(
                      "InvalidArgument: context: the environment variable ATTEND_KERNEL has \"") +
                  bad + "\", which is not one of "),
        0U)
        << bad;
  }
}

TEST(Kernels, a_plan_may_force_what_the_context_does_not) {
  SmallCall a(3);
  Context context({.kernels = "forward:reference.forward"});
  const Plan plan =
      Plan::attention(a.q, a.k, a.v, a.out, {}, {}, {.kernel = "textbook.forward"}, context);
  EXPECT_EQ(plan.kernel(), "textbook.forward");
  EXPECT_EQ(a.kernel(context), "reference.forward") << "and the context keeps its own";
}

// ---- Plans -------------------------------------------------------------------------------------

TEST(PlanCache, the_same_problem_has_one_plan) {
  Context context;
  SmallCall a(3), b(3), other(4);
  const auto plan = ContextState::of(context).plan_for<Forward>(a.problem());
  EXPECT_EQ(ContextState::of(context).plan_for<Forward>(b.problem()), plan);
  EXPECT_NE(ContextState::of(context).plan_for<Forward>(other.problem()), plan);
  EXPECT_EQ(std::get<Plans<Forward>>(ContextState::of(context).plans).made.size(), 2U);
  a.run(context);
  b.run(context);
  EXPECT_EQ(std::get<Plans<Forward>>(ContextState::of(context).plans).made.size(), 2U);
}

TEST(PlanCache, every_option_has_a_plan_of_its_own) {
  Context context;
  SmallCall a(3);
  std::set<const Decision<Forward>*> plans;
  const auto plan_with = [&](const AttentionOptions& options) {
    return ContextState::of(context).plan_for<Forward>(a.problem(options)).get();
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
  ForwardProblem p = SmallCall(1).problem();
  const auto& plans = std::get<Plans<Forward>>(ContextState::of(context).plans).made;
  for (p.q_length = 1; p.q_length <= 1000; ++p.q_length) {
    const auto plan = ContextState::of(context).plan_for<Forward>(p);
    ASSERT_EQ(plan->problem, p);
    ASSERT_EQ(ContextState::of(context).plan_for<Forward>(p), plan);
    ASSERT_LE(plans.size(), 256U);
  }
  EXPECT_GT(plans.size(), 100U);
}

TEST(PlanCache, first_calls_from_many_threads_make_one_plan) {
  for (int repeat = 0; repeat < 20; ++repeat) {
    Context context({.threads = 2});
    SmallCall expected(3);
    Context alone({.threads = 1});
    expected.run(alone);
    std::atomic<int> wrong{0};
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 8; ++caller)
      callers.emplace_back([&] {
        SmallCall a(3);
        a.run(context);
        wrong += a.result() != expected.result();
      });
    for (std::thread& caller : callers) caller.join();
    ASSERT_EQ(wrong, 0);
    ASSERT_EQ(std::get<Plans<Forward>>(ContextState::of(context).plans).made.size(), 1U);
  }
}

// ---- Memory ------------------------------------------------------------------------------------

TEST(Workspace, is_taken_once_and_used_again) {
  CountingAllocator memory;
  {
    Context context({.threads = 1, .allocator = memory.allocator()});
    SmallCall a(3), shorter(2);
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
  ContextState& state = ContextState::of(context);
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
    std::vector<ContextState::Allocation> blocks;
    for (int n = 0; n < 100; ++n) blocks.push_back(ContextState::of(context).acquire(64));
    for (const auto& block : blocks) ContextState::of(context).release(block);
    EXPECT_LE(ContextState::of(context).free_memory.size(), 16U);
    EXPECT_GE(memory.deallocated, 84);
  }
  EXPECT_EQ(memory.deallocated, 100);
}

TEST(Workspace, no_memory_is_an_error_and_the_next_call_works) {
  CountingAllocator memory;
  Context context({.threads = 1, .allocator = memory.allocator()});
  SmallCall a(3);
  memory.exhausted = true;
  EXPECT_THROW(a.run(context), OutOfMemory);
  EXPECT_EQ(a.result(), std::vector<float>(a.result().size(), 0));
  memory.exhausted = false;
  EXPECT_EQ(thrown_by([&] { a.run(context); }), "nothing");
}

TEST(Workspace, a_size_that_overflowed_is_not_even_asked_for) {
  CountingAllocator memory;
  Context context({.threads = 1, .allocator = memory.allocator()});
  for (const std::size_t bytes : {~std::size_t{0}, std::size_t{1} << 63})
    EXPECT_EQ(
        thrown_by([&] { ContextState::of(context).acquire(bytes); }),
        "OutOfMemory: context: no memory for a workspace of " + std::to_string(bytes) + " bytes");
  EXPECT_EQ(memory.allocated, 0);
}

// ---- Tensors -----------------------------------------------------------------------------------

const Shape kLarge{512, 512}, kSmall{3, 5};  // a large one is kept

TEST(Tensors, are_made_in_memory_of_the_context) {
  CountingAllocator memory;
  {
    Context context({.threads = 1, .allocator = memory.allocator()});
    { const Tensor small = context.make_tensor(kSmall), other = context.make_tensor(kSmall); }
    EXPECT_EQ(memory.allocated, 2);
    EXPECT_EQ(memory.deallocated, 2);
    SmallCall a(3);
    const Tensor out = attention(a.q, a.k, a.v, {}, context);
    EXPECT_GT(memory.allocated, 2);
  }
  EXPECT_EQ(memory.deallocated, memory.allocated);
}

TEST(Tensors, give_large_memory_to_the_next_one) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the address sanitizer shall see what is freed";
#endif
  CountingAllocator memory;
  {
    Context context({.threads = 1, .allocator = memory.allocator()});
    for (int n = 0; n < 5; ++n) {
      Tensor tensor = context.make_tensor(kLarge);
      tensor.at<float>({511, 511}) = 1;
    }
    EXPECT_EQ(memory.allocated, 1);
    EXPECT_EQ(memory.deallocated, 0);
    const Tensor larger = context.make_tensor({1024, 512});
    EXPECT_EQ(memory.allocated, 2) << "the one that is kept is too small";
    for (int n = 0; n < 200; ++n) {  // each of another size: 128 MiB are kept in all
      const Tensor some = context.make_tensor({1024 + 20 * n, 512});
    }
    EXPECT_GT(memory.deallocated, 100);
  }
  EXPECT_EQ(memory.deallocated, memory.allocated);
}

TEST(Tensors, outlive_their_context) {
  CountingAllocator memory;
  Tensor large, small;
  {
    Context context({.threads = 1, .allocator = memory.allocator()});
    large = context.make_tensor(kLarge);
    small = context.make_tensor(kSmall);
    const Tensor kept = context.make_tensor(kLarge);
  }
  EXPECT_EQ(memory.deallocated, memory.allocated - 2) << "what was kept went with the context";
  large.at<float>({0, 0}) = 1;
  large = Tensor();
  small = Tensor();
  EXPECT_EQ(memory.deallocated, memory.allocated);
}

// Also when tensors of other threads are dropped at the moment it goes.
TEST(Tensors, of_a_context_that_is_gone_are_not_kept) {
  std::atomic<int> living{0};
  const Allocator counted{[&](std::size_t bytes, std::size_t alignment) -> void* {
                            ++living;
                            return std::aligned_alloc(alignment, (bytes + 63) / 64 * 64);
                          },
                          [&](void* memory, std::size_t) {
                            --living;
                            std::free(memory);
                          }};
  for (int repeat = 0; repeat < 200; ++repeat) {
    auto context = std::make_unique<Context>(ContextOptions{.threads = 1, .allocator = counted});
    std::vector<Tensor> dropped[3];
    const Tensor last = context->make_tensor(kSmall);  // so that the pool lives on
    for (std::vector<Tensor>& some : dropped)
      for (int n = 0; n < 20; ++n) some.push_back(context->make_tensor({256, 256}));
    std::atomic<bool> begun{false};
    std::vector<std::thread> threads;
    for (std::vector<Tensor>& some : dropped)
      threads.emplace_back([&] {
        some.pop_back();
        begun = true;
        some.clear();
      });
    while (!begun) std::this_thread::yield();
    context.reset();
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(living, 1) << "repeat " << repeat;
  }
}

TEST(Tensors, without_memory_are_an_error) {
  CountingAllocator memory;
  Context context({.threads = 1, .allocator = memory.allocator()});
  { const Tensor kept = context.make_tensor(kLarge); }
  memory.exhausted = true;
  EXPECT_EQ(thrown_by([&] {
              context.make_tensor({2, 3});
            }),
            "OutOfMemory: tensor: no memory for the 24 bytes of [2, 3] f32");
#if !defined(__SANITIZE_ADDRESS__)
  EXPECT_EQ(memory.deallocated, 1) << "what was kept was given up first";
#endif
  EXPECT_THROW(context.make_tensor({-1}), InvalidArgument);
}

}  // namespace
}  // namespace attend
