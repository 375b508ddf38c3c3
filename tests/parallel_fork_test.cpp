// The thread pool and fork(): between runs, during runs of other threads, and inside a body.
// Children answer by their exit status.
#include "support/fork.h"
#include "support/strands.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace attend {
namespace {

using test::comes_to_rest;
using test::every_strand_ran_once;
using test::failure_of;
using test::HeldWorker;
using test::Meeting;

pid_t fork_around(ThreadPool& pool) {
  std::fflush(nullptr);
  pool.before_fork();
  const pid_t child = fork();
  child == 0 ? pool.after_fork_in_child() : pool.after_fork_in_parent();
  return child;
}

// Whether as many strands as the pool has threads run at the same time. Tests begin with it: a fork
// while a thread still starts would leave AddressSanitizer's locks locked in the child.
bool all_threads_meet(ThreadPool& pool) {
  Meeting meeting(pool.threads());
  std::atomic<int> met{0};
  pool.run(pool.threads(), [&](int) { met += meeting.meet(); });
  return met == pool.threads();
}

TEST(ParallelFork, fork_leaves_both_processes_a_working_pool) {
  if (const char* why = test::why_no_threads_after_fork()) GTEST_SKIP() << why;
  for (const bool used_before : {false, true}) {
    ThreadPool pool(4);
    if (used_before) {
      EXPECT_TRUE(all_threads_meet(pool));
    }
    const pid_t child = fork_around(pool);
    if (child == 0) {
      bool good = true;
      for (int i = 0; i < 100; ++i) good = good && every_strand_ran_once(pool, 1 + i % 8);
      if (!good) _exit(1);
      _exit(all_threads_meet(pool) ? 0 : 2);  // it has workers again
    }
    EXPECT_TRUE(every_strand_ran_once(pool, 8));
    EXPECT_EQ(failure_of(child), "") << "used before: " << used_before;
  }
}

TEST(ParallelFork, a_pool_without_workers_is_destroyed_after_fork) {
  auto pool = std::make_unique<ThreadPool>(4);
  EXPECT_TRUE(all_threads_meet(*pool));
  const pid_t child = fork_around(*pool);
  if (child == 0) {
    pool.reset();
    _exit(0);
  }
  EXPECT_EQ(failure_of(child), "");
}

TEST(ParallelFork, fork_while_other_threads_use_the_pool) {
  if (const char* why = test::why_no_threads_after_fork()) GTEST_SKIP() << why;
  ThreadPool pool(3);
  EXPECT_TRUE(all_threads_meet(pool));
  Meeting start(4);
  std::atomic<bool> enough{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      wrong += !start.meet();
      while (!enough) wrong += !every_strand_ran_once(pool, 4);
    });
  }
  wrong += !start.meet();
  for (int repeat = 0; repeat < 50; ++repeat) {
    const pid_t child = fork_around(pool);
    if (child == 0) {
      bool good = true;
      for (int i = 0; i < 50; ++i) good = good && every_strand_ran_once(pool, 1 + i % 8);
      _exit(good ? 0 : 1);
    }
    EXPECT_EQ(failure_of(child), "") << "fork " << repeat;
  }
  enough = true;
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

// Three threads are each in a strand when one of them forks, on the caller's thread or on a
// worker's, below a nested run or not. The child uses the pool in the body, then leaves the body,
// and goes on where there is a caller.
void fork_in_a_body(bool on_worker, bool nested) {
  ThreadPool pool(3);
  const auto caller = std::this_thread::get_id();
  const pid_t parent = getpid();
  std::atomic<bool> chosen{false};
  pid_t child = -1;
  Meeting all(3), after_fork(3);
  const auto fork_here = [&](int strand) {
    if (strand != 0) return;
    child = fork_around(pool);
    if (child != 0) return;
    if (!every_strand_ran_once(pool, 8)) _exit(2);
    std::atexit([] { _exit(0); });  // where the last thread ends it: no look for leaks
  };
  pool.run(3, [&](int) {
    bool met = all.meet();
    const bool mine = (std::this_thread::get_id() != caller) == on_worker;
    if (mine && !chosen.exchange(true)) {
      if (nested) {
        pool.run(2, fork_here);
      } else {
        fork_here(0);
      }
    }
    if (getpid() == parent) met = met && after_fork.meet();  // keep the others inside till then
    if (!met) ADD_FAILURE() << "three strands did not meet";
  });
  if (getpid() != parent) {
    const bool good = every_strand_ran_once(pool, 8) && !on_worker;
    _exit(good ? 0 : 3);
  }
  EXPECT_TRUE(every_strand_ran_once(pool, 8));
  EXPECT_EQ(failure_of(child), "") << "on worker: " << on_worker << ", nested: " << nested;
}

TEST(ParallelFork, fork_inside_a_body) {
  if (const char* why = test::why_no_threads_after_fork()) GTEST_SKIP() << why;
  for (const bool on_worker : {false, true}) {
    for (const bool nested : {false, true}) fork_in_a_body(on_worker, nested);
  }
}

// Strands that nobody had begun are run in the child as well, and nothing of the job stays behind
// for its new workers to look for.
TEST(ParallelFork, a_child_forked_inside_a_body_finishes_the_other_strands) {
  if (const char* why = test::why_no_threads_after_fork()) GTEST_SKIP() << why;
  ThreadPool pool(2);
  HeldWorker held(pool);
  ASSERT_TRUE(held.holds());
  pid_t child = -1;
  int sum = 0;
  pool.run(5, [&](int strand) {
    if (strand == 1) child = fork_around(pool);
    sum += strand;
  });
  if (child == 0) {
    if (sum != 10) _exit(1);
    if (!every_strand_ran_once(pool, 4)) _exit(2);
    _exit(comes_to_rest() ? 0 : 3);
  }
  EXPECT_EQ(failure_of(child), "");
  EXPECT_EQ(sum, 10);
}

// Each generation forks inside a body, more of them than the pool has room for jobs: what a child
// failed to clean up would add up. Each one wants both threads.
void fork_generations(ThreadPool& pool, int left) {
  EXPECT_TRUE(all_threads_meet(pool)) << left << " generations before the last";
  if (left == 0) return;
  const pid_t first = getpid();
  pool.run(2, [&](int strand) {
    if (strand != 0) return;
    const pid_t child = fork_around(pool);
    if (child != 0) {
      EXPECT_EQ(failure_of(child), "") << left << " generations before the last";
      return;
    }
    fork_generations(pool, left - 1);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  });
  if (getpid() != first) _exit(4);
}

TEST(ParallelFork, forty_generations_of_forks) {
  if (const char* why = test::why_no_threads_after_fork()) GTEST_SKIP() << why;
  ThreadPool pool(2);
  fork_generations(pool, 40);
}

}  // namespace
}  // namespace attend
