// The thread pool: who runs which strand, and what happens around it: nesting, concurrent callers,
// signals, floating-point modes, threads that cannot be had. parallel_fork_test.cpp is about
// fork().
#include "support/strands.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <cfloat>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace attend {
namespace {

using namespace std::chrono_literals;
using test::comes_to_rest;
using test::every_strand_ran_once;
using test::HeldWorker;
using test::Meeting;
using test::wait_for;

// Whether the process comes to have so many workers, of all pools. They show by their name; a new
// one takes a moment to get it, and a joined one may stay listed for a moment.
bool workers_become(int expected) {
  return wait_for([=] {
    int count = 0;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      std::string name;
      std::getline(std::ifstream(task.path() / "comm"), name);
      count += name == "attend";
    }
    return count == expected;
  });
}

TEST(Parallel, every_strand_runs_exactly_once) {
  for (const int threads : {-1, 0, 1, 2, 3, 4, 7, 16}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), std::max(threads, 1));
    for (const int strands : {0, 1, 2, 3, 5, 16, 64, 1000}) {
      for (int repeat = 0; repeat < 20; ++repeat) {
        ASSERT_TRUE(every_strand_ran_once(pool, strands))
            << "ThreadPool(" << threads << ").run(" << strands << "), repeat " << repeat;
      }
    }
  }
}

TEST(Parallel, strands_run_at_the_same_time) {
  for (const int threads : {2, 3, 5, 16}) {
    ThreadPool pool(threads);
    for (const auto idle : {0ms, 0ms, 2ms, 0ms, 2ms}) {  // workers new, spinning, asleep
      std::this_thread::sleep_for(idle);
      Meeting meeting(threads);
      std::atomic<int> met{0};
      pool.run(threads, [&](int) { met += meeting.meet(); });
      ASSERT_EQ(met, threads) << "ThreadPool(" << threads << ") after " << idle.count() << " ms";
    }
  }
}

TEST(Parallel, workers_start_at_first_use_and_end_with_the_pool) {
  for (int repeat = 0; repeat < 100; ++repeat) {
    ThreadPool pool(4);
    const ThreadPool never_used(4);
    pool.run(1, [](int) {});
    ASSERT_TRUE(workers_become(0)) << "not yet used, pool " << repeat;
    pool.run(2, [](int) {});
    ASSERT_TRUE(workers_become(3)) << "used, pool " << repeat;
  }
  EXPECT_TRUE(workers_become(0));
}

TEST(Parallel, a_pool_is_destroyed_right_after_use) {
  for (int repeat = 0; repeat < 300; ++repeat) {
    ThreadPool pool(2 + repeat % 3);
    ASSERT_TRUE(every_strand_ran_once(pool, 4)) << "pool " << repeat;
  }
}

TEST(Parallel, nested_runs_three_deep) {
  for (const int threads : {2, 4}) {
    ThreadPool pool(threads);
    for (int repeat = 0; repeat < 100; ++repeat) {
      std::vector<int> counts(5 * 4 * 3, 0);
      pool.run(5, [&](int a) {
        pool.run(4, [&](int b) {
          pool.run(3, [&](int c) { ++counts[static_cast<std::size_t>((a * 4 + b) * 3 + c)]; });
        });
      });
      ASSERT_EQ(counts, std::vector<int>(5 * 4 * 3, 1)) << threads << " threads";
    }
  }
}

// Deeper than the pool has room for jobs.
void nest(ThreadPool& pool, int depth, std::atomic<int>& count) {
  pool.run(2, [&](int strand) {
    ++count;
    if (strand == 0 && depth > 1) nest(pool, depth - 1, count);
  });
}

TEST(Parallel, nested_runs_a_hundred_deep) {
  ThreadPool pool(3);
  std::atomic<int> count{0};
  nest(pool, 100, count);
  EXPECT_EQ(count, 200);
  EXPECT_TRUE(every_strand_ran_once(pool, 8));
}

TEST(Parallel, eight_callers_at_once) {
  for (const int threads : {2, 4}) {  // on two processors: spinning, and sleeping at once
    ThreadPool pool(threads);
    std::atomic<int> wrong{0};
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 8; ++caller) {
      callers.emplace_back([&, caller] {
        for (int i = 0; i < 5000; ++i) wrong += !every_strand_ran_once(pool, 2 + (i + caller) % 4);
      });
    }
    for (std::thread& caller : callers) caller.join();
    EXPECT_EQ(wrong, 0) << threads << " threads";
  }
}

TEST(Parallel, a_busy_worker_is_not_waited_for) {
  ThreadPool pool(2);
  HeldWorker held(pool);
  ASSERT_TRUE(held.holds());
  EXPECT_TRUE(every_strand_ran_once(pool, 8));  // would wait for ever, as nobody releases it
}

TEST(Parallel, a_worker_helps_the_next_job_when_it_is_free) {
  ThreadPool pool(2);
  HeldWorker held(pool);
  ASSERT_TRUE(held.holds());
  Meeting meeting(2);
  std::atomic<int> met{0};
  pool.run(2, [&](int) {
    held.release();
    met += meeting.meet();
  });
  EXPECT_EQ(met, 2);
}

// Flushing subnormal numbers to zero is part of the floating-point environment.
void flush_to_zero() {
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8000);
#elif defined(__aarch64__)
  std::uint64_t control;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  asm volatile("msr fpcr, %0" ::"r"(control | (1u << 24)));
#endif
}

bool flushes_to_zero() {
  volatile double smallest = DBL_MIN;
  return smallest * 0.5 == 0;
}

// Runs with a strand on each thread, and has each look at its own modes.
void expect_modes(ThreadPool& pool, int rounding, bool flushes) {
  Meeting meeting(pool.threads());
  std::atomic<int> right{0};
  pool.run(pool.threads(), [&](int) {
    right += meeting.meet() && std::fegetround() == rounding && flushes_to_zero() == flushes;
  });
  EXPECT_EQ(right, pool.threads()) << "rounding mode " << rounding << ", flush " << flushes;
}

TEST(Parallel, strands_have_the_callers_floating_point_modes) {
  ThreadPool pool(4);
  std::fenv_t usual;
  std::fegetenv(&usual);
  std::fesetround(FE_DOWNWARD);  // before the workers start, so that they inherit it
  flush_to_zero();
  expect_modes(pool, FE_DOWNWARD, true);
  std::fesetenv(&usual);
  expect_modes(pool, FE_TONEAREST, false);
  for (const int rounding : {FE_UPWARD, FE_TOWARDZERO}) {
    std::fesetround(rounding);
    expect_modes(pool, rounding, false);
    std::fesetenv(&usual);
    expect_modes(pool, FE_TONEAREST, false);
  }
}

TEST(Parallel, an_idle_pool_uses_no_processor_time) {
  ThreadPool few(2), many(8);
  few.run(2, [](int) {});
  many.run(8, [](int) {});
  EXPECT_TRUE(comes_to_rest());
}

std::atomic<int> signals_handled{0};

TEST(Parallel, workers_take_no_signals) {
  signals_handled = 0;
  ThreadPool pool(3);
  pool.run(3, [](int) {});
  struct sigaction action = {}, action_before;
  action.sa_handler = [](int) { ++signals_handled; };
  sigaction(SIGUSR1, &action, &action_before);
  sigset_t user_signal, mask_before;
  sigemptyset(&user_signal);
  sigaddset(&user_signal, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &user_signal, &mask_before);

  kill(getpid(), SIGUSR1);  // to the process: to any thread that does not block it
  Meeting meeting(3);
  std::atomic<int> named{0};
  const auto caller = std::this_thread::get_id();
  pool.run(3, [&](int) {
    char name[16] = "";
    pthread_getname_np(pthread_self(), name, sizeof(name));
    if (meeting.meet() && std::this_thread::get_id() != caller)
      named += name == std::string("attend");
  });
  std::this_thread::sleep_for(10ms);  // for one who would take it late
  EXPECT_EQ(signals_handled, 0);
  EXPECT_EQ(named, 2);

  pthread_sigmask(SIG_SETMASK, &mask_before, nullptr);
  EXPECT_TRUE(wait_for([] { return signals_handled == 1; }));  // it was sent
  sigaction(SIGUSR1, &action_before, nullptr);
}

TEST(Parallel, without_new_threads_the_caller_does_everything) {
  pthread_attr_t usual, greedy;
  ASSERT_EQ(pthread_getattr_default_np(&usual), 0);
  ASSERT_EQ(pthread_attr_init(&greedy), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&greedy, std::size_t{1} << 50), 0);  // a pebibyte each
  ASSERT_EQ(pthread_setattr_default_np(&greedy), 0);
  {
    ThreadPool pool(4);
    EXPECT_TRUE(every_strand_ran_once(pool, 8));
    EXPECT_TRUE(every_strand_ran_once(pool, 8));
    EXPECT_TRUE(workers_become(0));
  }
  EXPECT_EQ(pthread_setattr_default_np(&usual), 0);
  pthread_attr_destroy(&greedy);
  pthread_attr_destroy(&usual);
}

TEST(Parallel, available_processors_follow_the_affinity_mask) {
  EXPECT_GE(available_processors(), 1);
  std::thread pinned([] {  // a thread of its own: the mask goes with it
    const int processor = sched_getcpu();
    ASSERT_GE(processor, 0);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(processor), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_EQ(available_processors(), 1);
  });
  pinned.join();
}

}  // namespace
}  // namespace attend
