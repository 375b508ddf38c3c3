// What happens to a call of many ranks when one of them stops, throws, is slow, or has other
// kernels or no memory: in every phase, that is, before each of its transfers. Nobody waits for
// ever, and all know of it. Times are limits only: a slow machine makes these tests slower, not
// wrong. (What is said of other arguments: distributed_arguments_test.cpp.)
#include "support/three_ranks.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace attend::test {
namespace {

struct Phase {
  Call call;
  Whole whole;
  DistributedOptions options;
  std::int64_t transfers = 0;  // of each rank, in one call

  void make(Group& group, Context& context) const {
    const Layouts layouts = whole.layouts();
    try {
      Mine(layouts, group.rank(), whole)
          .call(call, group, layouts, whole.options(group.rank()), options, context);
    } catch (const InvalidArgument& error) {
      if (!whole.other || std::string_view(error.what()).find("sinks[0]") == std::string::npos)
        throw;
    }
  }
};

// Every kind of call, with the number of its transfers. (Bits::fast is something else backward
// alone, and in the scheme `gather`.)
std::vector<Phase> phases(std::chrono::milliseconds timeout) {
  std::vector<Phase> all;
  for (const Call call : {Call::forward, Call::backward})
    for (const Scheme scheme : {Scheme::gather, Scheme::heads})
      for (const Bits bits : {Bits::one_process, Bits::fast}) {
        if (bits == Bits::fast && (scheme == Scheme::heads || call == Call::forward)) continue;
        all.push_back({call, {}, {scheme, bits, timeout}});
        if (call == Call::backward && bits == Bits::one_process)
          all.push_back({call, {.sums = Sums::both}, {scheme, bits, timeout}});
        // So many runs of positions that they travel in messages.
        if (scheme == Scheme::gather)
          all.push_back({call, {.granule = 1}, {scheme, bits, timeout}});
      }
  const DistributedOptions gather{Scheme::gather, Bits::one_process, timeout};
  // Queries go to the keys, and states come back.
  all.push_back({Call::forward, {.queries = 1}, gather});
  // Sums alone, after those of fast, and in messages.
  all.push_back({Call::backward, {.sums = Sums::dbias, .rows = false}, gather});
  all.push_back({Call::backward, {.sums = Sums::dsinks, .rows = false}, gather});
  all.push_back({Call::backward, {.sums = Sums::both}, {Scheme::gather, Bits::fast, timeout}});
  all.push_back({Call::backward, {.granule = 1, .sums = Sums::both, .rows = false}, gather});
  // Lists that differ.
  all.push_back({Call::forward, {.other = true}, gather});
  Context context({.threads = 1});
  for (Phase& phase : all) {
    std::atomic<std::int64_t> count{0};
    const ThreadGroup group(kRanks, [&](int rank, std::int64_t) { count += rank == kBad; });
    phase.options.timeout = std::chrono::minutes(2);
    for (const auto& error : group.run([&](Group& mine) { phase.make(mine, context); }))
      EXPECT_EQ(what(error), "nothing");
    phase.options.timeout = timeout;
    phase.transfers = count;
  }
  return all;
}

// Runs `scenario(phase, transfer)` for every transfer of every phase, all at once: most of their
// time is waiting.
template <class Scenario>
void in_every_phase(std::chrono::milliseconds timeout, Scenario scenario) {
  std::vector<std::thread> threads;
  for (const Phase& phase : phases(timeout)) {
    EXPECT_GE(phase.transfers, phase.whole.other ? 2 : 3);
    for (std::int64_t n = 0; n < phase.transfers; ++n)
      threads.emplace_back([=] { scenario(phase, n); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(faults, a_rank_that_throws_ends_the_call_of_all) {
  in_every_phase(std::chrono::seconds(2), [](const Phase& phase, std::int64_t at) {
    Context context({.threads = 1});
    const ThreadGroup group(kRanks, [=](int rank, std::int64_t transfer) {
      if (rank == kBad && transfer == at) throw std::runtime_error("broken");
    });
    const auto thrown = group.run([&](Group& mine) { phase.make(mine, context); });
    // Where the machine is so slow that the others lost patience before, it hears of that.
    const std::string own = what(thrown[kBad]);
    EXPECT_TRUE(own == "broken" || own.starts_with("PeerError: ")) << own << at;
    expect_refused(group.rank(kBad), context);
    // In the last transfer others may have all that they need of it.
    for (const int r : {0, 2}) {
      if (at + 1 == phase.transfers && !thrown[static_cast<std::size_t>(r)]) continue;
      EXPECT_EQ(what(thrown[static_cast<std::size_t>(r)]).find("PeerError: "), 0U) << at;
      expect_refused(group.rank(r), context);
    }
  });
}

// An engine's error may be without words.
TEST(faults, a_group_that_failed_without_words_takes_no_more_calls) {
  Context context({.threads = 1});
  const ThreadGroup group(kRanks, [](int rank, std::int64_t transfer) {
    if (rank == kBad && transfer == 1) throw PeerError("");
  });
  const auto thrown = group.run([&](Group& mine) {
    Mine(layouts(), mine.rank())
        .call(Call::forward, mine, layouts(), {}, {.timeout = std::chrono::seconds(2)}, context);
  });
  EXPECT_TRUE(thrown[kBad]);
  expect_refused(group.rank(kBad), context);
}

// What the others say if rank 1 stops there until they are done.
std::vector<std::string> said_of_one_that_stops(const Phase& phase, std::int64_t at) {
  Context context({.threads = 1});
  std::mutex mutex;
  std::condition_variable changed;
  int done = 0;
  const ThreadGroup group(kRanks, [&](int rank, std::int64_t transfer) {
    if (rank != kBad || transfer != at) return;
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done == kRanks - 1; });
  });
  const auto thrown = group.run([&](Group& mine) {
    const auto finished = [&] {
      const std::lock_guard lock(mutex);
      done += mine.rank() != kBad;
      changed.notify_all();
    };
    try {
      phase.make(mine, context);
    } catch (...) {
      finished();
      throw;
    }
    finished();
  });
  return {what(thrown[0]), what(thrown[2])};
}

TEST(faults, a_rank_that_stops_is_named_within_the_time) {
  in_every_phase(std::chrono::milliseconds(500), [](Phase phase, std::int64_t at) {
    // Where the machine is busy, the other one may be so late that it is named: then once more.
    for (bool again = true; again; phase.options.timeout *= 4) {
      again = false;
      const std::string end = " 1 within " + std::to_string(phase.options.timeout.count()) + " ms";
      for (const std::string& said : said_of_one_that_stops(phase, at)) {
        if (at + 1 == phase.transfers && said == "nothing") continue;
        EXPECT_EQ(said.find("PeerError: "), 0U) << said;
        again = again || !said.ends_with("no answer from rank" + end);
        EXPECT_TRUE(!again || phase.options.timeout < std::chrono::minutes(1)) << said;
      }
      again = again && phase.options.timeout < std::chrono::minutes(1);
    }
  });
}

TEST(faults, a_slow_rank_changes_no_bit) {
  for (const Phase& phase : phases(std::chrono::minutes(2))) {
    if (phase.whole.other) continue;  // writes nothing
    const auto run = [&](const ThreadGroup::BeforeTransfer& before) {
      Context context({.threads = 1});
      const ThreadGroup group(kRanks, before);
      std::vector<std::vector<Tensor>> results(kRanks);
      const auto thrown = group.run([&](Group& mine) {
        const Layouts cut = phase.whole.layouts();
        Mine t(cut, mine.rank(), phase.whole);
        fill_gaussian(t.q, 1);
        fill_gaussian(t.k, 2);
        fill_gaussian(t.v, 3);
        if (phase.call == Call::backward) fill_gaussian(t.out, 4), fill_gaussian(t.dout, 5);
        t.call(phase.call, mine, cut, phase.whole.options(mine.rank()), phase.options, context);
        results[static_cast<std::size_t>(mine.rank())] = {t.out, t.lse,   t.dq,    t.dk,
                                                          t.dv,  t.dbias, t.dsinks};
      });
      for (const auto& error : thrown) EXPECT_EQ(what(error), "nothing");
      return results;
    };
    const auto fast = run({});
    const auto slow = run([](int rank, std::int64_t transfer) {
      if ((rank + transfer) % 2 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
    });
    for (std::size_t r = 0; r < fast.size(); ++r)
      for (std::size_t n = 0; n < fast[r].size(); ++n)
        EXPECT_TRUE(!fast[r][n] || same_bits(fast[r][n], slow[r][n])) << r << ", " << n;
  }
}

// A call that one rank makes alone: it waits for the others, and when they come, they for it.
TEST(faults, a_call_of_one_rank_alone_ends_for_all_within_the_time) {
  Context context({.threads = 1});
  const ThreadGroup group(kRanks);
  for (const bool others : {false, true}) {
    const auto thrown = group.run([&](Group& mine) {
      if ((mine.rank() == kBad) == others) return;
      Mine(layouts(), mine.rank())
          .call(Call::forward, mine, layouts(), {}, {.timeout = std::chrono::milliseconds(200)},
                context);
    });
    for (int r = 0; r < kRanks; ++r) {
      const std::string said = what(thrown[static_cast<std::size_t>(r)]);
      if ((r == kBad) == others) {
        EXPECT_EQ(said, "nothing");
      } else {
        EXPECT_TRUE(said.starts_with("PeerError: attention: no answer from rank")) << said;
      }
    }
  }
  for (int r = 0; r < kRanks; ++r) expect_refused(group.rank(r), context);
}

// Others have other bits. In Bits::fast too: it promises those of out, lse and dq.
TEST(faults, other_kernels_of_one_rank_are_named_by_all) {
  Context plain({.threads = 1}),
      other({.threads = 1, .kernels = "forward:reference.forward,backward:reference.backward"});
  const ThreadGroup group(kRanks);
  for (const Phase& phase : phases(std::chrono::minutes(2))) {
    if (phase.whole.granule == 1 || phase.whole.other) continue;
    const auto thrown =
        group.run([&](Group& mine) { phase.make(mine, mine.rank() == kBad ? other : plain); });
    const std::string function = phase.call == Call::forward ? "attention" : "attention_backward",
                      kernel = phase.call == Call::forward ? "forward" : "backward";
    for (const auto& error : thrown) {
      const std::string said = what(error);
      EXPECT_TRUE(said.starts_with("InvalidArgument: " + function +
                                   ": rank 1 computes with reference." + kernel +
                                   ", rank 0 with cpu."))
          << said;
      EXPECT_TRUE(said.ends_with(
          "; all ranks must use the same kernels (their Contexts can be told which)"))
          << said;
    }
  }
  expect_goes_on(group, other);
}

// The rank's Context has no memory: what is told to the others is not made of it.
TEST(faults, memory_that_one_rank_has_not_is_an_error_of_all) {
  std::atomic<bool> none{false};
  const Allocator allocator{
      .allocate = [&](std::size_t bytes, std::size_t alignment) -> void* {
        return none ? nullptr : ::operator new (bytes, std::align_val_t{alignment}, std::nothrow);
      },
      .deallocate = [](void* memory,
                       std::size_t) { ::operator delete (memory, std::align_val_t{64}); }};
  Context plain({.threads = 1}), poor({.threads = 1, .allocator = allocator});
  const ThreadGroup group(kRanks);
  for (const Phase& phase : phases(std::chrono::minutes(2))) {
    const auto call = [&](Group& mine) { phase.make(mine, mine.rank() == kBad ? poor : plain); };
    none = true;
    for (const auto& error : group.run(call))
      EXPECT_EQ(what(error).find("OutOfMemory: rank 1: "), 0U) << what(error);
    none = false;
    for (const auto& error : group.run(call)) EXPECT_EQ(what(error), "nothing");
  }
}

TEST(faults, an_interrupted_rank_ends_the_call_of_all) {
  Context plain({.threads = 1});
  Context interrupted({.threads = 1, .interrupt = [] { return true; }});
  const ThreadGroup group(kRanks, [](int rank, std::int64_t transfer) {
    // The others are late, so that the rank waits, which is when it asks.
    if (rank != kBad && transfer == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  });
  const auto thrown = group.run([&](Group& mine) {
    Mine(layouts(), mine.rank())
        .call(Call::forward, mine, layouts(), {},
              {.scheme = Scheme::gather, .timeout = std::chrono::seconds(2)},
              mine.rank() == kBad ? interrupted : plain);
  });
  EXPECT_EQ(what(thrown[kBad]),
            "Interrupted: attention: interrupted; what it was to write is not complete");
  expect_refused(group.rank(kBad), plain);
}

}  // namespace
}  // namespace attend::test
