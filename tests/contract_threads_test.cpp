// The contract's sixth point: threads, fork, rounding modes.
#include "support/fork.h"
#include "support/property_truth.h"

#include <atomic>
#include <cfenv>
#include <cstdio>
#include <memory>
#include <thread>

namespace attend::test {
namespace {

// Problems of every kind, large enough for several strands, with what they give.
struct Workload {
  std::vector<Trial> trials;
  std::vector<Written> expected;
  explicit Workload(int count) {
    for (int n = 0; n < count; ++n) {
      cases::Case c = random_case(static_cast<std::uint64_t>(600 + n));
      c.batch = c.addressing == cases::Addressing::dense ? 3 : c.batch;
      c.heads = 4;
      c.kv_heads = 2;
      c.q_length = 24;
      c.k_length = c.addressing == cases::Addressing::packed_self ? 24 : 40;
      trials.push_back(make_trial(c));
      Context alone({.threads = 1});
      expected.push_back(results(trials.back(), alone));
    }
  }

  // Forward and backward, the way that users call it.
  static Written results(const Trial& trial, Context& context) {
    const Arguments a = trial.arguments();
    Written written = trial.empty_results(true);
    AttentionOutputs outputs;
    outputs.lse = written.lse;
    attention(a.q, a.k, a.v, written.out, a.options, outputs, context);
    attention_backward({.q = a.q,
                        .k = a.k,
                        .v = a.v,
                        .out = written.out,
                        .lse = written.lse,
                        .dout = a.dout,
                        .dlse = a.dlse},
                       a.options, written.views().gradients, context);
    return written;
  }

  bool right(std::size_t n, Context& context) const {
    return static_cast<bool>(same_bits(expected[n], results(trials[n], context)));
  }
};

void expect_right_from_eight_threads(Context& context) {
  const Workload work(12);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < 8; ++thread)
    threads.emplace_back([&, thread] {
      for (std::size_t n = 0; n < 24; ++n)
        wrong += !work.right((n + thread) % work.trials.size(), context);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Contract, contract_6_one_context_from_eight_threads) {
  Context context({.threads = 3});
  expect_right_from_eight_threads(context);
}

TEST(Contract, contract_6_the_default_context_from_eight_threads) {
  expect_right_from_eight_threads(default_context());
}

TEST(Contract, contract_6_contexts_come_and_go_while_others_work) {
  const Workload work(4);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < 4; ++thread)
    threads.emplace_back([&, thread] {
      for (std::size_t n = 0; n < 16; ++n) {
        Context own({.threads = 2});
        wrong += !work.right((n + thread) % 4, n % 2 == 0 ? own : default_context());
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// A call from inside a strand of another call.
TEST(Contract, contract_6_a_call_inside_a_parallel_for) {
  const Workload work(3);
  std::atomic<int> wrong{0}, inside{0};
  Context context({.threads = 4, .parallel_for = [&](int n, const std::function<void(int)>& body) {
                     for (int strand = 0; strand < n; ++strand) {
                       wrong += !work.right(1, default_context());
                       ++inside;
                       body(strand);
                     }
                   }});
  EXPECT_TRUE(work.right(0, context));
  EXPECT_TRUE(work.right(2, context));
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(inside, 2);
}

// ---- fork() ------------------------------------------------------------------------------------

// "" or how the child that ran body ended.
std::string outcome_in_child(const std::function<bool()>& body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) _exit(body() ? 0 : 1);
  return failure_of(child);
}

TEST(Contract, contract_6_the_default_context_works_after_fork) {
  if (const char* why = why_no_threads_after_fork()) GTEST_SKIP() << why;
  const Workload work(6);
  Context own({.threads = 4});
  const auto all_right = [&] {
    bool right = true;
    for (std::size_t n = 0; n < work.trials.size(); ++n)
      right = right && work.right(n, default_context()) && work.right(n, own);
    Context made_after({.threads = 3});
    return right && work.right(0, made_after);
  };
  EXPECT_EQ(outcome_in_child(all_right), "") << "before the first use";
  EXPECT_TRUE(all_right());
  EXPECT_EQ(outcome_in_child(all_right), "") << "after use";
  EXPECT_EQ(outcome_in_child([&] { return outcome_in_child(all_right).empty() && all_right(); }),
            "")
      << "in a child of a child";
  EXPECT_TRUE(all_right());
}

TEST(Contract, contract_6_fork_while_other_threads_work) {
  if (const char* why = why_no_threads_after_fork()) GTEST_SKIP() << why;
  if (const char* why = why_no_fork_beside_threads()) GTEST_SKIP() << why;
  const Workload work(4);
  Context own({.threads = 3});
  std::atomic<bool> enough{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < 3; ++thread)
    threads.emplace_back([&, thread] {
      for (std::size_t n = thread; !enough; ++n)
        wrong += !work.right(n % 4, n % 2 == 0 ? own : default_context());
    });
  for (int repeat = 0; repeat < 10; ++repeat)
    EXPECT_EQ(
        outcome_in_child([&] { return work.right(0, default_context()) && work.right(1, own); }),
        "")
        << "fork " << repeat;
  enough = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// Whatever the other threads were doing with its memory when the process forked.
TEST(Contract, contract_6_a_context_is_destroyed_after_fork_while_others_make_tensors) {
  if (const char* why = why_no_fork_beside_threads()) GTEST_SKIP() << why;
  auto own = std::make_unique<Context>(ContextOptions{.threads = 1});
  const Context& context = *own;
  const auto large = [&] { return context.make_tensor({256, 256}); };  // memory that is kept
  {
    std::vector<Tensor> many;  // a long list of it takes long to search
    for (int n = 0; n < 400; ++n) many.push_back(large());
  }
  std::atomic<bool> enough{false};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread)
    threads.emplace_back([&] {
      while (!enough) large();
    });
  bool ended = true;
  for (int repeat = 0; repeat < 100 && ended; ++repeat) {
    const std::string outcome = outcome_in_child([&] {
      own.reset();
      return true;
    });
    EXPECT_EQ(outcome, "") << "fork " << repeat;
    ended = outcome.empty();
  }
  enough = true;
  for (std::thread& thread : threads) thread.join();
}

// ---- Rounding ----------------------------------------------------------------------------------

TEST(Contract, contract_6_workers_take_the_callers_rounding_mode) {
  const Trial trial = make_trial({.type = DType::f64,
                                  .batch = 2,
                                  .heads = 4,
                                  .kv_heads = 4,
                                  .q_length = 40,
                                  .k_length = 50,
                                  .d = 16,
                                  .dv = 16});
  Context one({.threads = 1}), four({.threads = 4});
  const int usual = std::fegetround();
  const Written nearest = Workload::results(trial, one);
  for (const int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    for (int repeat = 0; repeat < 5; ++repeat) {
      std::fesetround(mode);
      const Written alone = Workload::results(trial, one);
      const Written together = Workload::results(trial, four);
      std::fesetround(usual);
      EXPECT_TRUE(same_bits(alone, together)) << "rounding mode " << mode;
      EXPECT_FALSE(same_bits(nearest, alone)) << "the mode had no effect: " << mode;
    }
    EXPECT_TRUE(same_bits(nearest, Workload::results(trial, four))) << "after mode " << mode;
  }
}

}  // namespace
}  // namespace attend::test
