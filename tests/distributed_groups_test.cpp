// What the library does with a Group: who calls it, what it notes there, and the memory that an
// engine may still know.
#include <attend/distributed.h>

#include <gtest/gtest.h>

#include <thread>

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
      std::this_thread::sleep_for(group.pause);
      return held->wait(most);
    }
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
};

// A causal problem of two ranks.
void attend_watched(Watched& group, std::int64_t length, Scheme scheme, Context& context) {
  const Layouts layouts{Layout::serpentine({length}, 2), Layout::serpentine({length}, 2)};
  const std::int64_t rows = layouts.queries.owned(group.rank());
  const Tensor q(Shape{1, 4, rows, 8}), k(Shape{1, 2, rows, 8});
  Tensor out(q.shape());
  distributed::attention(group, layouts, q, k, k, out, {.causal = true}, {},
                         {.scheme = scheme, .timeout = std::chrono::seconds(2)}, context);
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
