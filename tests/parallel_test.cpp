// The thread pool: who runs which strand, and what happens around it (nesting, concurrent callers,
// fork, signals, floating-point modes, threads that cannot be had). What hangs is a failure too:
// waiting here always has an end, and an alarm ends tests and children that do not end themselves.
#include "core/parallel.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cfenv>
#include <cfloat>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#if defined(__SANITIZE_THREAD__)
#define ATTEND_TEST_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define ATTEND_TEST_TSAN 1
#endif
#endif

// ThreadSanitizer ends a child that starts threads, if its parent had any.
#ifdef ATTEND_TEST_TSAN
#define SKIP_FORK_UNDER_TSAN() \
  GTEST_SKIP() << "ThreadSanitizer does not support threads in the child of a threaded process"
#else
#define SKIP_FORK_UNDER_TSAN() static_assert(true)
#endif

namespace attend {
namespace {

using namespace std::chrono_literals;

// Whether the condition came true within ten seconds.
template <class Condition>
bool wait_for(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + 10s;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

// A strand that meets the others proves that all of them run at the same time.
class Meeting {
 public:
  explicit Meeting(int expected) : expected_(expected) {}
  bool meet() {
    arrived_.fetch_add(1);
    return wait_for([&] { return arrived_.load() >= expected_; });
  }

 private:
  const int expected_;
  std::atomic<int> arrived_{0};
};

// Runs the pool once; whether every strand, and no other, ran exactly once. The counts are plain
// integers: the caller must see what the strands wrote. They are not on the heap, because a fork
// leaves the child of an AddressSanitizer build with the locks of other threads' allocations.
bool every_strand_ran_once(ThreadPool& pool, int strands) {
  std::array<int, 1000> counts{};
  pool.run(strands, [&](int strand) { ++counts.at(static_cast<std::size_t>(strand)); });
  const auto end = counts.begin() + strands;
  return std::count(counts.begin(), end, 1) == strands &&
         std::count(end, counts.end(), 0) == counts.end() - end;
}

// Whether the process comes to have so many workers, of all pools. They show by their name; a new one
// takes a moment to get it, and a joined one may stay listed for a moment.
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

pid_t fork_around(ThreadPool& pool) {
  std::fflush(nullptr);
  pool.before_fork();
  const pid_t child = fork();
  if (child == 0) {
    pool.after_fork_in_child();
    sigset_t alarm_signal;   // workers block it
    sigemptyset(&alarm_signal);
    sigaddset(&alarm_signal, SIGALRM);
    pthread_sigmask(SIG_UNBLOCK, &alarm_signal, nullptr);
    alarm(10);
  } else {
    pool.after_fork_in_parent();
  }
  return child;
}

// "" or how the child ended.
std::string failure_of(pid_t child) {
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return "no child";
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) return "the child hung";
  if (WIFSIGNALED(status)) return "the child died of signal " + std::to_string(WTERMSIG(status));
  if (WEXITSTATUS(status) != 0) return "the child exited " + std::to_string(WEXITSTATUS(status));
  return "";
}

// Processor time of the process while the caller sleeps.
std::chrono::microseconds used_in(std::chrono::milliseconds duration) {
  const auto used = [] {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return std::chrono::seconds(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           std::chrono::microseconds(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  };
  std::this_thread::sleep_for(20ms);   // workers that spin have gone to sleep then
  const auto before = used();
  std::this_thread::sleep_for(duration);
  return used() - before;
}

class Parallel : public testing::Test {
 protected:
  void SetUp() override { alarm(60); }
  void TearDown() override { alarm(0); }
};

TEST_F(Parallel, every_strand_runs_exactly_once) {
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

TEST_F(Parallel, strands_run_at_the_same_time) {
  for (const int threads : {2, 3, 5, 16}) {
    ThreadPool pool(threads);
    for (const auto idle : {0ms, 0ms, 2ms, 0ms, 2ms}) {   // workers new, spinning, asleep
      std::this_thread::sleep_for(idle);
      Meeting meeting(threads);
      std::atomic<int> met{0};
      pool.run(threads, [&](int) { met += meeting.meet(); });
      ASSERT_EQ(met, threads) << "ThreadPool(" << threads << ") after " << idle.count() << " ms";
    }
  }
}

TEST_F(Parallel, workers_start_at_first_use_and_end_with_the_pool) {
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

TEST_F(Parallel, a_pool_is_destroyed_right_after_use) {
  for (int repeat = 0; repeat < 300; ++repeat) {
    ThreadPool pool(2 + repeat % 3);
    ASSERT_TRUE(every_strand_ran_once(pool, 4)) << "pool " << repeat;
  }
}

TEST_F(Parallel, nested_runs_three_deep) {
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

TEST_F(Parallel, nested_runs_a_hundred_deep) {
  ThreadPool pool(3);
  std::atomic<int> count{0};
  nest(pool, 100, count);
  EXPECT_EQ(count, 200);
  EXPECT_TRUE(every_strand_ran_once(pool, 8));
}

TEST_F(Parallel, eight_callers_at_once) {
  for (const int threads : {2, 4}) {   // on two processors: spinning, and sleeping at once
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

// Two threads hold the pool's only worker until released; the third party is the test.
class HeldWorker {
 public:
  explicit HeldWorker(ThreadPool& pool) : caller_([this, &pool] {
    pool.run(2, [this](int) {
      arrived_ += 1;
      if (!wait_for([this] { return released_.load(); })) ADD_FAILURE() << "not released";
    });
  }) {}
  ~HeldWorker() {
    release();
    caller_.join();
  }
  bool holds() { return wait_for([this] { return arrived_ == 2; }); }
  void release() { released_ = true; }

 private:
  std::atomic<int> arrived_{0};
  std::atomic<bool> released_{false};
  std::thread caller_;   // last: it uses the others
};

TEST_F(Parallel, a_busy_worker_is_not_waited_for) {
  ThreadPool pool(2);
  HeldWorker held(pool);
  ASSERT_TRUE(held.holds());
  EXPECT_TRUE(every_strand_ran_once(pool, 8));   // would wait for ever, as nobody releases it
}

TEST_F(Parallel, a_worker_helps_the_next_job_when_it_is_free) {
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

TEST_F(Parallel, strands_have_the_callers_floating_point_modes) {
  ThreadPool pool(4);
  std::fenv_t usual;
  std::fegetenv(&usual);
  std::fesetround(FE_DOWNWARD);   // before the workers start, so that they inherit it
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

TEST_F(Parallel, fork_leaves_both_processes_a_working_pool) {
  SKIP_FORK_UNDER_TSAN();
  for (const bool used_before : {false, true}) {
    ThreadPool pool(4);
    if (used_before) pool.run(4, [](int) {});
    const pid_t child = fork_around(pool);
    if (child == 0) {
      bool good = true;
      for (int i = 0; i < 100; ++i) good = good && every_strand_ran_once(pool, 1 + i % 8);
      Meeting meeting(4);   // it has workers again
      std::atomic<int> met{0};
      pool.run(4, [&](int) { met += meeting.meet(); });
      _exit(good && met == 4 ? 0 : 1);
    }
    EXPECT_TRUE(every_strand_ran_once(pool, 8));
    EXPECT_EQ(failure_of(child), "") << "used before: " << used_before;
  }
}

TEST_F(Parallel, a_pool_without_workers_is_destroyed_after_fork) {
  auto pool = std::make_unique<ThreadPool>(4);
  pool->run(4, [](int) {});
  const pid_t child = fork_around(*pool);
  if (child == 0) {
    pool.reset();
    _exit(0);
  }
  EXPECT_EQ(failure_of(child), "");
}

TEST_F(Parallel, fork_while_other_threads_use_the_pool) {
  SKIP_FORK_UNDER_TSAN();
  ThreadPool pool(3);
  std::atomic<bool> enough{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      while (!enough) wrong += !every_strand_ran_once(pool, 4);
    });
  }
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

// Three threads are each in a strand when one of them forks, on the caller's thread or on a worker's,
// below a nested run or not. The child uses the pool in the body, then leaves the body, and goes on
// where there is a caller.
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
    std::atexit([] { _exit(0); });   // where the last thread ends it: no look for leaks
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
    if (getpid() == parent) met = met && after_fork.meet();   // keep the others inside till then
    if (!met) ADD_FAILURE() << "three strands did not meet";
  });
  if (getpid() != parent) {
    const bool good = every_strand_ran_once(pool, 8) && !on_worker;
    _exit(good ? 0 : 3);
  }
  EXPECT_TRUE(every_strand_ran_once(pool, 8));
  EXPECT_EQ(failure_of(child), "") << "on worker: " << on_worker << ", nested: " << nested;
}

TEST_F(Parallel, fork_inside_a_body) {
  SKIP_FORK_UNDER_TSAN();
  for (const bool on_worker : {false, true}) {
    for (const bool nested : {false, true}) fork_in_a_body(on_worker, nested);
  }
}

// Strands that nobody had begun are run in the child as well, and nothing of the job stays behind
// for its new workers to look for.
TEST_F(Parallel, a_child_forked_inside_a_body_finishes_the_other_strands) {
  SKIP_FORK_UNDER_TSAN();
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
    _exit(used_in(100ms) < 20ms ? 0 : 3);
  }
  EXPECT_EQ(failure_of(child), "");
  EXPECT_EQ(sum, 10);
}

// Each generation forks inside a body, more of them than the pool has room for jobs: what a child
// failed to clean up would add up. The last one wants both threads.
void fork_generations(ThreadPool& pool, int left) {
  const pid_t first = getpid();
  pool.run(2, [&](int strand) {
    if (strand != 0) return;
    const pid_t child = fork_around(pool);
    if (child != 0) {
      const std::string failure = failure_of(child);
      EXPECT_EQ(failure, "") << left << " generations before the last";
      return;
    }
    if (left > 1) {
      fork_generations(pool, left - 1);
    } else {
      Meeting meeting(2);
      std::atomic<int> met{0};
      pool.run(2, [&](int) { met += meeting.meet(); });
      EXPECT_EQ(met, 2);
    }
    _exit(testing::Test::HasFailure() ? 1 : 0);
  });
  if (getpid() != first) _exit(4);
}

TEST_F(Parallel, forty_generations_of_forks) {
  SKIP_FORK_UNDER_TSAN();
  ThreadPool pool(2);
  fork_generations(pool, 40);
}

TEST_F(Parallel, an_idle_pool_uses_no_processor_time) {
  ThreadPool few(2), many(8);
  few.run(2, [](int) {});
  many.run(8, [](int) {});
  EXPECT_LT(used_in(300ms) / 1us, 20'000);
}

std::atomic<int> signals_handled{0};

TEST_F(Parallel, workers_take_no_signals) {
  signals_handled = 0;
  ThreadPool pool(3);
  pool.run(3, [](int) {});
  struct sigaction action {}, action_before;
  action.sa_handler = [](int) { ++signals_handled; };
  sigaction(SIGUSR1, &action, &action_before);
  sigset_t user_signal, mask_before;
  sigemptyset(&user_signal);
  sigaddset(&user_signal, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &user_signal, &mask_before);

  kill(getpid(), SIGUSR1);   // to the process: to any thread that does not block it
  Meeting meeting(3);
  std::atomic<int> named{0};
  const auto caller = std::this_thread::get_id();
  pool.run(3, [&](int) {
    char name[16] = "";
    pthread_getname_np(pthread_self(), name, sizeof(name));
    if (meeting.meet() && std::this_thread::get_id() != caller) named += name == std::string("attend");
  });
  std::this_thread::sleep_for(10ms);
  EXPECT_EQ(signals_handled, 0);
  EXPECT_EQ(named, 2);

  pthread_sigmask(SIG_SETMASK, &mask_before, nullptr);
  EXPECT_TRUE(wait_for([] { return signals_handled == 1; }));   // it was sent
  sigaction(SIGUSR1, &action_before, nullptr);
}

TEST_F(Parallel, without_new_threads_the_caller_does_everything) {
  pthread_attr_t usual, greedy;
  ASSERT_EQ(pthread_getattr_default_np(&usual), 0);
  ASSERT_EQ(pthread_attr_init(&greedy), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&greedy, std::size_t{1} << 50), 0);   // a pebibyte each
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

TEST_F(Parallel, available_processors_follow_the_affinity_mask) {
  EXPECT_GE(available_processors(), 1);
  std::thread([] {   // a thread of its own: the mask goes with it
    const int processor = sched_getcpu();
    ASSERT_GE(processor, 0);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(processor), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_EQ(available_processors(), 1);
  }).join();
}

}  // namespace
}  // namespace attend
