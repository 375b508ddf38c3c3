// What the library does with a Group: who calls it, what it notes there, how it waits, and the
// memory that an engine may still know.
#include "support/sanitized.h"

#include <attend/distributed.h>

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include <dlfcn.h>
#include <pthread.h>
#include <sys/resource.h>
#include <time.h>

// Of the threads that are begun from now on, how many can be; negative: all.
std::atomic<int> threads_that_start{-1};

// The C library's, but for that. A sanitizer has one of its own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*body)(void*), void* argument) {
  static const auto real =
      reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  if (threads_that_start == 0) return EAGAIN;
  if (threads_that_start > 0) --threads_that_start;
  return real(thread, attributes, body, argument);
}
#endif

namespace attend::test {
namespace {

using namespace distributed;

// A rank of a ThreadGroup, watched.
struct Watched : Group {
  explicit Watched(Group& of) : inner(of) {}
  int rank() const noexcept override { return inner.rank(); }
  int size() const noexcept override { return inner.size(); }

  struct WatchedPending : Pending {
    WatchedPending(std::unique_ptr<Pending> of, Watched& by) : held(std::move(of)), group(by) {}
    bool poll() override {
      group.note();
      ++group.polls;
      return held->poll();
    }
    bool wait(std::chrono::milliseconds most) override {
      group.note();
      ++group.waits;
      group.waiting = true;
      std::this_thread::sleep_for(group.pause);
      const bool done = held->wait(most);
      group.waiting = false;
      return done;
    }
    std::vector<int> missing() const override { return held->missing(); }
    std::unique_ptr<Pending> held;
    Watched& group;
  };

  std::unique_ptr<Pending> exchange(std::span<const std::span<const std::byte>> send,
                                    std::span<const std::span<std::byte>> receive) override {
    note();
    for (const auto& bytes : receive)
      if (transfers == breaks_at && !bytes.empty()) known.push_back(bytes);
    auto pending = std::make_unique<WatchedPending>(inner.exchange(send, receive), *this);
    if (transfers++ == breaks_at) throw PeerError("broken");
    return pending;
  }
  std::unique_ptr<Pending> broadcast(int root, std::span<std::byte> bytes) override {
    return inner.broadcast(root, bytes);
  }
  void note() { other |= std::this_thread::get_id() != caller; }
  using Group::take_kept;

  Group& inner;
  const std::thread::id caller = std::this_thread::get_id();
  std::chrono::milliseconds pause{0};  // of each wait
  int polls = 0, waits = 0, transfers = 0;
  int breaks_at = -1;                         // this transfer is begun, and then throws
  std::vector<std::span<std::byte>> known{};  // what it was to fill
  bool other = false;                         // another thread called
  bool waiting = false;
};

// A rank of a ThreadGroup whose transfers can be polled alone, as most engines have it.
struct Polled : Group {
  explicit Polled(Group& of) : inner(of) {}
  int rank() const noexcept override { return inner.rank(); }
  int size() const noexcept override { return inner.size(); }

  struct PolledPending : Pending {
    PolledPending(std::unique_ptr<Pending> of, Polled& by) : held(std::move(of)), group(by) {}
    bool poll() override {
      ++group.polls;
      return held->poll();
    }
    std::unique_ptr<Pending> held;
    Polled& group;
  };

  std::unique_ptr<Pending> exchange(std::span<const std::span<const std::byte>> send,
                                    std::span<const std::span<std::byte>> receive) override {
    return std::make_unique<PolledPending>(inner.exchange(send, receive), *this);
  }
  std::unique_ptr<Pending> broadcast(int root, std::span<std::byte> bytes) override {
    return std::make_unique<PolledPending>(inner.broadcast(root, bytes), *this);
  }

  Group& inner;
  std::int64_t polls = 0;
};

double seconds_of(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// How often this thread has slept. (To yield is no sleep.)
std::int64_t sleeps() {
  rusage use{};
  getrusage(RUSAGE_THREAD, &use);
  return use.ru_nvcsw;
}

// A causal problem of two ranks.
void attend_watched(Group& group, std::int64_t length, Scheme scheme, Context& context,
                    std::chrono::milliseconds timeout = std::chrono::seconds(2)) {
  const Layouts layouts{Layout::serpentine({length}, 2), Layout::serpentine({length}, 2)};
  const std::int64_t rows = layouts.queries.owned(group.rank());
  const Tensor q(Shape{1, 4, rows, 8}), k(q);
  Tensor out(q.shape());
  distributed::attention(group, layouts, q, k, k, out, {.causal = true}, {},
                         {.scheme = scheme, .timeout = timeout}, context);
}

// The transfer goes on while the call computes.
TEST(groups, transfers_are_polled_by_the_calling_thread_alone) {
  const ThreadGroup group(2);
  const auto thrown = group.run([&](Group& mine) {
    Context context({.threads = 2});
    Watched watched(mine);
    attend_watched(watched, 4096, Scheme::gather, context);
    EXPECT_FALSE(watched.other);
    EXPECT_GT(watched.polls, 0);
  });
  for (const auto& error : thrown) EXPECT_FALSE(error);
}

TEST(groups, know_how_long_calls_have_waited) {
  const ThreadGroup group(2);
  const auto thrown = group.run([&](Group& mine) {
    Context context({.threads = 1});
    Watched watched(mine);
    EXPECT_EQ(watched.waited().count(), 0);
    watched.pause = std::chrono::milliseconds(5);
    attend_watched(watched, 1024, Scheme::heads, context);
    EXPECT_GT(watched.waits, 0);
    EXPECT_GE(watched.waited(), watched.waits * watched.pause);
  });
  for (const auto& error : thrown) EXPECT_FALSE(error);
}

// Whoever is late, the others leave the processor to it, also while they ask the Context's hook.
TEST(groups, a_rank_that_waits_needs_little_of_the_processor) {
  const ThreadGroup group(2);
  const auto thrown = group.run([&](Group& mine) {
    Context context({.threads = 1, .interrupt = [] { return false; }});
    Polled polled(mine);
    if (mine.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(2));
    const double began = seconds_of(CLOCK_MONOTONIC), used = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    attend_watched(polled, 512, Scheme::gather, context, std::chrono::minutes(2));
    if (mine.rank() == 1) return;
    const double wall = seconds_of(CLOCK_MONOTONIC) - began;
    EXPECT_GT(wall, 1.5);
    EXPECT_LT(seconds_of(CLOCK_THREAD_CPUTIME_ID) - used, wall / 4);
    EXPECT_GT(polled.polls, 100) << "it must look often enough";
  });
  for (const auto& error : thrown) EXPECT_FALSE(error);
}

// What is there in less than a millisecond is found without a pause. (Of a machine that is busy
// nothing is learnt.)
TEST(groups, a_short_wait_has_no_pause) {
  struct Soon : Pending {
    bool poll() override { return --polls == 0; }
    int polls = 50;
  };
  for (int n = 0; n < 1000; ++n) {
    Soon soon;
    const auto before = sleeps();
    const double began = seconds_of(CLOCK_MONOTONIC);
    EXPECT_TRUE(soon.wait(std::chrono::seconds(100)));
    const auto after = sleeps();
    const bool was_short = seconds_of(CLOCK_MONOTONIC) - began < 0.001;
    EXPECT_TRUE(!was_short || after == before) << after - before;
  }
}

// Nor is there one while bytes move, however long that takes.
TEST(groups, a_wait_has_no_pause_while_bytes_move) {
  struct Moving : Pending {
    bool poll() override { return std::chrono::steady_clock::now() > end; }
    bool moves() const override { return all_have_begun; }
    const std::chrono::steady_clock::time_point end =
        std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
    bool all_have_begun = false;
  };
  for (const bool moves : {true, false}) {
    Moving moving;
    moving.all_have_begun = moves;
    const auto before = sleeps();
    EXPECT_TRUE(moving.wait(std::chrono::seconds(100)));
    EXPECT_EQ(sleeps() > before, !moves);
  }
}

TEST(groups, no_time_limit_is_too_long) {
  constexpr auto kForever = std::chrono::milliseconds::max();
  const ThreadGroup group(2);
  for (const bool polls : {false, true}) {
    const auto thrown = group.run([&](Group& mine) {
      Context context({.threads = 1});
      Polled polled(mine);
      if (mine.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      attend_watched(polls ? static_cast<Group&>(polled) : mine, 512, Scheme::gather, context,
                     kForever);
      const std::span<const std::byte> nothing[2];
      const std::span<std::byte> nowhere[2];
      const auto pending = (polls ? static_cast<Group&>(polled) : mine).exchange(nothing, nowhere);
      if (mine.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      EXPECT_TRUE(pending->wait(kForever));
    });
    for (const auto& error : thrown) EXPECT_FALSE(error);
  }
}

TEST(groups, ranks_without_threads_are_told) {
  if (kSanitized) GTEST_SKIP() << "its threads are the sanitizer's";
  const ThreadGroup group(4);
  std::atomic<int> ran{0};
  for (const int start : {0, 2, 3}) {
    threads_that_start = start;
    std::string said;
    try {
      group.run([&](Group&) { ++ran; });
    } catch (const Error& error) {
      said = error.what();
    }
    threads_that_start = -1;
    EXPECT_EQ(said.find("ThreadGroup: of 4 threads only " + std::to_string(start) +
                        " could be started: "),
              0U)
        << said;
  }
  EXPECT_EQ(ran, 0);
  for (const auto& error : group.run([&](Group&) { ++ran; })) EXPECT_FALSE(error);
  EXPECT_EQ(ran, 4);
}

TEST(groups, a_rank_that_is_interrupted_while_it_computes_ends_the_call_of_all) {
  for (const Scheme scheme : {Scheme::gather, Scheme::heads}) {
    const ThreadGroup group(2);
    const auto thrown = group.run([&](Group& mine) {
      Watched watched(mine);
      const bool ends = mine.rank() == 1;
      int asked = 0;
      Context context({.threads = 1, .interrupt = [&] {
                         if (watched.waiting) return false;
                         ++asked;
                         return ends;
                       }});
      try {
        attend_watched(watched, 4096, scheme, context, std::chrono::milliseconds(500));
        ADD_FAILURE() << "rank " << mine.rank() << " ended well";
      } catch (const Interrupted& error) {
        EXPECT_TRUE(ends);
        EXPECT_GT(asked, 0);
        EXPECT_GT(watched.transfers, 1);
        EXPECT_STREQ(error.what(), "attention: interrupted; what it was to write is not complete");
      } catch (const PeerError& error) {
        EXPECT_FALSE(ends);
        EXPECT_NE(std::string(error.what()).find("rank 1 within 500 ms"), std::string::npos)
            << error.what();
      }
      EXPECT_THROW(attend_watched(watched, 512, scheme, context), PeerError);
    });
    for (const auto& error : thrown) EXPECT_FALSE(error);
  }
}

// An engine that fails in the middle of a start may have begun to write.
TEST(groups, keep_the_memory_of_a_transfer_that_began_and_threw) {
  for (const Scheme scheme : {Scheme::gather, Scheme::heads}) {
    const ThreadGroup group(2);
    const auto thrown = group.run([&](Group& mine) {
      Context context({.threads = 1});
      Watched watched(mine);
      watched.breaks_at = 1;  // the first after the record
      EXPECT_THROW(attend_watched(watched, 1024, scheme, context), PeerError);
      ASSERT_FALSE(watched.known.empty());
      for (const auto& bytes : watched.known)  // under the address sanitizer: it is there still
        std::fill(bytes.begin(), bytes.end(), std::byte{1});
      EXPECT_FALSE(watched.take_kept().empty());
    });
    for (const auto& error : thrown) EXPECT_FALSE(error);
  }
}

}  // namespace
}  // namespace attend::test
