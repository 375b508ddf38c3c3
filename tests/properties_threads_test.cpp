// P20: the number of threads, who runs which strand and in which order change no bit. The textbook
// kernel is held to it as well.
#include "support/property_compare.h"
#include "support/property_memory.h"

#include <atomic>
#include <memory>
#include <thread>

namespace attend::test {
namespace {

using cases::Case;

// Enough work for eight strands, in a few milliseconds.
void with_work_for_many(Case& c) {
  c.batch = 2 + static_cast<std::int64_t>(c.seed % 2);
  c.kv_heads = 4;
  c.heads = 8;
  c.q_length = 63 + static_cast<std::int64_t>(c.seed % 7);
  c.k_length = c.addressing == cases::Addressing::packed_self ? c.q_length : 95;
  c.d = 12 + static_cast<std::int64_t>(c.seed % 5);
  c.dv = 16;
}

// Few heads of many queries: backward cuts these into segments, which one thread sums on its way
// and several leave to each other.
void with_segments(Case& c) {
  c.batch = 1;
  c.heads = c.kv_heads = 4 + static_cast<std::int64_t>(c.seed % 2);
  c.q_length = 290 + static_cast<std::int64_t>(c.seed % 23);
  c.k_length = c.addressing == cases::Addressing::packed_self ? c.q_length : 45;
  c.d = c.dv = 32;
  c.sinks = c.alibi = false;  // their gradients are always left to each other
}

ContextOptions with_threads(int threads) {
  ContextOptions options;
  options.threads = threads;
  return options;
}

// A Context of eight strands that are run in the caller's own way.
std::atomic<int> calls_with_many_strands{0};
ContextOptions with_parallel_for(ParallelFor parallel_for) {
  ContextOptions options = with_threads(8);
  options.parallel_for = [parallel_for](int n, const std::function<void(int)>& body) {
    calls_with_many_strands += n > 1;
    parallel_for(n, body);
  };
  return options;
}

void in_reverse(int n, const std::function<void(int)>& body) {
  for (int strand = n - 1; strand >= 0; --strand) body(strand);
}

void only_the_first(int n, const std::function<void(int)>& body) {
  if (n > 0) body(0);  // which takes every task
}

void only_the_last(int n, const std::function<void(int)>& body) { body(n - 1); }

void each_on_its_own_thread(int n, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int strand = 0; strand < n; ++strand) threads.emplace_back(body, strand);
  for (std::thread& thread : threads) thread.join();
}

void expect_same_bits_in(const std::vector<std::unique_ptr<Context>>& contexts, int first_seed,
                         int count, void (*adapt)(Case&) = with_work_for_many) {
  for_trials(every_kernel(), first_seed, count, adapt,
             [&](const Trial& trial, const KernelUnderTest& kernel, Written&) {
               Context alone(with_threads(1));
               const auto expected = trial.run(kernel, alone);
               ASSERT_TRUE(expected);
               for (std::size_t n = 0; n < contexts.size(); ++n) {
                 const auto results = trial.run(kernel, *contexts[n]);
                 ASSERT_TRUE(results);
                 EXPECT_TRUE(same_bits(*expected, *results)) << "context " << n;
               }
             });
}

TEST(Properties, p20_one_to_eight_threads_give_the_same_bits) {
  std::vector<std::unique_ptr<Context>> contexts;
  for (int threads = 2; threads <= 8; ++threads) {
    contexts.push_back(std::make_unique<Context>(with_threads(threads)));
    EXPECT_EQ(contexts.back()->threads(), threads);
  }
  expect_same_bits_in(contexts, 20000, 12);
}

TEST(Properties, p20_segments_of_few_heads_give_the_same_bits) {
  std::vector<std::unique_ptr<Context>> contexts;
  for (const int threads : {2, 3, 8})
    contexts.push_back(std::make_unique<Context>(with_threads(threads)));
  expect_same_bits_in(contexts, 20300, 12, with_segments);
}

TEST(Properties, p20_any_parallel_for_gives_the_same_bits) {
  std::vector<std::unique_ptr<Context>> contexts;
  for (const ParallelFor& parallel_for :
       {ParallelFor(in_reverse), ParallelFor(only_the_first), ParallelFor(only_the_last),
        ParallelFor(each_on_its_own_thread)})
    contexts.push_back(std::make_unique<Context>(with_parallel_for(parallel_for)));
  calls_with_many_strands = 0;
  expect_same_bits_in(contexts, 20500, 15);
  EXPECT_GT(calls_with_many_strands, 100);
}

// A parallel_for that fails after some strands: the call throws what it threw, and the Context
// still works.
TEST(Properties, p20_a_parallel_for_that_throws_leaves_the_context_whole) {
  std::atomic<bool> failing{true};
  Context context(with_parallel_for([&](int n, const std::function<void(int)>& body) {
    if (failing) throw std::runtime_error("no threads today");
    in_reverse(n, body);
  }));
  Case c = random_case(20900);
  with_work_for_many(c);
  const Trial trial = make_trial(c);
  const KernelUnderTest kernel = forward_kernels().front();
  EXPECT_THROW(trial.run(kernel, context), std::runtime_error);
  failing = false;
  const auto expected = trial.run(kernel), results = trial.run(kernel, context);
  ASSERT_TRUE(expected && results);
  EXPECT_TRUE(same_bits(*expected, *results)) << trial.line;
}

}  // namespace
}  // namespace attend::test
