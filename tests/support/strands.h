// What the tests of the thread pool share: strands that count, that meet, and that hold a worker.
#pragma once

#include "core/parallel.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <thread>

namespace attend::test {

// Whether the condition comes true: within ten minutes, as others may keep the processors busy.
template <class Condition>
bool wait_for(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(10);
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
inline bool every_strand_ran_once(ThreadPool& pool, int strands) {
  std::array<int, 1000> counts{};
  pool.run(strands, [&](int strand) { ++counts.at(static_cast<std::size_t>(strand)); });
  const auto end = counts.begin() + strands;
  return std::count(counts.begin(), end, 1) == strands &&
         std::count(end, counts.end(), 0) == counts.end() - end;
}

// Another caller and the only worker of a pool of two, held in a body until released.
class HeldWorker {
 public:
  explicit HeldWorker(ThreadPool& pool)
      : caller_([this, &pool] {
          pool.run(2, [this](int) {
            arrived_ += 1;
            if (!wait_for([this] { return released_.load(); })) ADD_FAILURE() << "not released";
          });
        }) {}
  ~HeldWorker() {
    release();
    caller_.join();
  }
  bool holds() {
    return wait_for([this] { return arrived_ == 2; });
  }
  void release() { released_ = true; }

 private:
  std::atomic<int> arrived_{0};
  std::atomic<bool> released_{false};
  std::thread caller_;  // last: it uses the others
};

// Whether the process comes to use hardly any processor time while the caller sleeps. Who spins
// goes to sleep first, which takes its while on a busy machine.
inline bool comes_to_rest() {
  const auto used = [] {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return std::chrono::seconds(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           std::chrono::microseconds(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  };
  return wait_for([&] {
    const auto before = used();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return used() - before < std::chrono::milliseconds(20);
  });
}

}  // namespace attend::test
