// Do the bytes of a Group over MPI arrive, of every size, many at once, and is what goes wrong
// told? Run by mpirun with any number of ranks.
#include "ranks.h"

#include <algorithm>
#include <array>
#include <functional>
#include <thread>

#include <sys/resource.h>

namespace attend {
namespace {

using distributed::PeerError;
using distributed::Pending;

constexpr std::int64_t kPiece = 1 << 20;
constexpr std::array<std::size_t, 9> kSizes = {0,          1,      7,          4096,          65537,
                                               kPiece - 1, kPiece, kPiece + 1, 3 * kPiece + 5};

// A different one for each pair of ranks, in both directions.
std::size_t size_of(int from, int to, int n) {
  return kSizes[static_cast<std::size_t>(3 * from + 5 * to + n) % kSizes.size()];
}

// The nth exchange of all ranks: what is sent, what should come, and what does.
class Exchange {
 public:
  Exchange(distributed::Group& group, int n) {
    std::vector<std::span<const std::byte>> send;
    std::vector<std::span<std::byte>> receive;
    sent_.resize(static_cast<std::size_t>(group.size()));
    wanted_.resize(sent_.size());
    found_.resize(sent_.size());
    for (int r = 0; r < group.size(); ++r) {
      const auto at = static_cast<std::size_t>(r);
      if (r != group.rank()) {
        sent_[at] = message(group.rank(), r, n, size_of(group.rank(), r, n));
        wanted_[at] = message(r, group.rank(), n, size_of(r, group.rank(), n));
        found_[at].resize(wanted_[at].size());
      }
      send.emplace_back(sent_[at]);
      receive.emplace_back(found_[at]);
    }
    pending_ = group.exchange(send, receive);
  }
  void finish() {
    ASSERT_TRUE(pending_->wait(kLong));
    EXPECT_TRUE(pending_->poll());
    EXPECT_EQ(found_, wanted_);
  }

 private:
  std::vector<Bytes> sent_, wanted_, found_;
  std::unique_ptr<Pending> pending_;
};

class Broadcast {
 public:
  Broadcast(distributed::Group& group, int root, int n)
      : wanted_(message(root, root, n, kSizes[static_cast<std::size_t>(n) % kSizes.size()])),
        found_(group.rank() == root ? wanted_ : Bytes(wanted_.size())),
        pending_(group.broadcast(root, found_)) {}
  void finish() {
    ASSERT_TRUE(pending_->wait(kLong));
    EXPECT_EQ(found_, wanted_);
  }

 private:
  Bytes wanted_, found_;
  std::unique_ptr<Pending> pending_;
};

TEST(Transfers, every_size_arrives) {
  mpi::Group group(MPI_COMM_WORLD, {.piece = kPiece});
  for (int n = 0; n < static_cast<int>(kSizes.size()); ++n) Exchange(group, n).finish();
}

TEST(Transfers, everyone_gets_what_a_root_broadcasts) {
  mpi::Group group(MPI_COMM_WORLD, {.piece = kPiece});
  for (int n = 0; n < static_cast<int>(kSizes.size()); ++n)
    Broadcast(group, n % group.size(), n).finish();
}

TEST(Transfers, many_in_flight_arrive_and_may_be_awaited_in_any_order) {
  mpi::Group group(MPI_COMM_WORLD, {.piece = 1 << 16});
  std::vector<Exchange> exchanges;
  std::vector<Broadcast> broadcasts;
  for (int n = 0; n < 10; ++n) {
    exchanges.emplace_back(group, n);
    broadcasts.emplace_back(group, n % group.size(), n);
  }
  for (std::size_t n = 10; n-- > 0;) {
    broadcasts[n].finish();
    exchanges[9 - n].finish();
  }
}

TEST(Transfers, more_transfers_than_there_are_tags) {
  mpi::Group group(MPI_COMM_WORLD);
  constexpr std::size_t kAtOnce = 100;
  std::array<std::array<std::byte, 1>, kAtOnce> bytes{};
  for (std::size_t begin = 0; begin < 33000; begin += kAtOnce) {
    std::vector<std::unique_ptr<Pending>> pending;
    const int root = static_cast<int>(begin / kAtOnce) % group.size();
    for (std::size_t n = 0; n < kAtOnce; ++n) {
      if (group.rank() == root) bytes[n][0] = static_cast<std::byte>((begin + n) % 251);
      pending.push_back(group.broadcast(root, bytes[n]));
    }
    for (std::size_t n = 0; n < kAtOnce; ++n) {
      ASSERT_TRUE(pending[n]->wait(kLong));
      ASSERT_EQ(bytes[n][0], static_cast<std::byte>((begin + n) % 251));
    }
  }
}

TEST(Transfers, nothing_meets_the_messages_of_the_caller) {
  int rank = 0, size = 0, found = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Irecv(&found, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &request);
  mpi::Group group(MPI_COMM_WORLD);
  Exchange(group, 3).finish();
  MPI_Send(&rank, 1, MPI_INT, (rank + 1) % size, 0, MPI_COMM_WORLD);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  EXPECT_EQ(found, (rank + size - 1) % size);
}

TEST(Transfers, two_groups_of_the_same_ranks_do_not_meet) {
  mpi::Group one(MPI_COMM_WORLD), other(MPI_COMM_WORLD);
  Exchange first(one, 2), second(other, 5);
  second.finish();
  first.finish();
}

TEST(Transfers, a_part_of_the_ranks_is_a_group) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
  {
    mpi::Group group(half);
    for (int n = 0; n < 5; ++n) Exchange(group, n).finish();
  }
  MPI_Comm_free(&half);
}

TEST(Transfers, a_rank_alone_waits_for_nobody) {
  mpi::Group group(MPI_COMM_SELF);
  EXPECT_EQ(group.size(), 1);
  const std::span<const std::byte> nothing;
  const std::span<std::byte> nowhere;
  EXPECT_TRUE(group.exchange({&nothing, 1}, {&nowhere, 1})->poll());
  Bytes own = message(0, 0, 0, 100);
  EXPECT_TRUE(group.broadcast(0, own)->poll());
  EXPECT_EQ(own, message(0, 0, 0, 100));
}

TEST(Transfers, a_wait_ends_after_its_time_and_the_transfer_goes_on) {
  mpi::Group group(MPI_COMM_WORLD);
  Bytes bytes = message(0, 0, 1, 100);
  const Bytes wanted = bytes;
  if (group.rank() != 0) bytes.assign(bytes.size(), {});
  std::unique_ptr<Pending> pending;
  if (group.rank() != 0) {
    pending = group.broadcast(0, bytes);
    EXPECT_FALSE(pending->wait(std::chrono::milliseconds(20)));
    EXPECT_EQ(pending->missing(), std::vector<int>{0});
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (group.rank() == 0) pending = group.broadcast(0, bytes);
  EXPECT_TRUE(pending->wait(kLong));
  EXPECT_EQ(bytes, wanted);
  EXPECT_EQ(pending->missing(), std::vector<int>{});
}

double processor_seconds() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

// Whoever waits for one that is late leaves the processor to it. (And no time limit is too long.)
TEST(Transfers, a_wait_for_a_late_rank_needs_little_of_the_processor) {
  using Clock = std::chrono::steady_clock;
  mpi::Group group(MPI_COMM_WORLD);
  if (group.size() == 1) return;
  Bytes bytes = message(0, 0, 1, 5000000);
  const Bytes wanted = bytes;
  MPI_Barrier(MPI_COMM_WORLD);
  if (group.rank() == 0) {
    std::this_thread::sleep_for(std::chrono::seconds(2));
    EXPECT_TRUE(group.broadcast(0, bytes)->wait(kLong));
    return;
  }
  bytes.assign(bytes.size(), {});
  const double used = processor_seconds();
  const Clock::time_point begin = Clock::now();
  EXPECT_TRUE(group.broadcast(0, bytes)->wait(std::chrono::milliseconds::max()));
  const double wall = std::chrono::duration<double>(Clock::now() - begin).count();
  EXPECT_GT(wall, 1.5);
  EXPECT_LT(processor_seconds() - used, wall / 4);
  EXPECT_EQ(bytes, wanted);
}

// Each in turn sends a few bytes: by wait(), and by nothing but poll(). Of many rounds the fastest
// are compared, which nothing else has disturbed.
TEST(Transfers, short_messages_are_waited_for_as_fast_as_they_are_polled) {
  mpi::Group group(MPI_COMM_WORLD);
  if (group.size() == 1) return;
  const auto fastest_round = [&](auto&& finish) {
    std::chrono::nanoseconds least = std::chrono::hours(1);
    Bytes bytes(100);
    for (int n = 0; n < 2000; ++n) {
      const auto begin = std::chrono::steady_clock::now();
      for (int root = 0; root < 2; ++root) finish(*group.broadcast(root, bytes));
      least = std::min<std::chrono::nanoseconds>(least, std::chrono::steady_clock::now() - begin);
    }
    return least;
  };
  const auto polled = fastest_round([](Pending& pending) {
    while (!pending.poll()) std::this_thread::yield();
  });
  const auto waited = fastest_round([](Pending& pending) { EXPECT_TRUE(pending.wait(kLong)); });
  EXPECT_LT(waited, 2 * polled + std::chrono::microseconds(20));
}

// Sender and receiver cut a message alike, whatever each of them was given.
TEST(Transfers, ranks_agree_on_the_size_of_pieces) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  mpi::Group group(MPI_COMM_WORLD, {.timeout = std::chrono::milliseconds::max(),
                                    .piece = std::int64_t{5000} << rank});
  for (int n = 0; n < static_cast<int>(kSizes.size()); ++n) Exchange(group, n).finish();
}

// Of large messages it is known: whoever waits makes no pause any more.
TEST(Transfers, large_messages_move_when_all_ranks_have_begun) {
  mpi::Group group(MPI_COMM_WORLD);
  if (group.size() == 1) return;
  for (const std::size_t size : {std::size_t{1000}, std::size_t{4000000}}) {
    Bytes bytes(size);
    std::unique_ptr<Pending> pending;
    if (group.rank() != 0) {
      pending = group.broadcast(0, bytes);
      EXPECT_FALSE(pending->wait(std::chrono::milliseconds(20)));
      EXPECT_FALSE(pending->moves());
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (group.rank() == 0) pending = group.broadcast(0, bytes);
    bool moved = false;
    while (!pending->poll()) moved = moved || pending->moves();
    EXPECT_FALSE(pending->moves());
    EXPECT_TRUE(size > 1000 || !moved);
  }
}

// The first two have large messages for each other, and the others come much later: with large
// ones, whose absence keeps nobody from moving those that are here, or with small ones, for which
// nobody waits without pauses. (`late`: what goes between others than the first two.)
void exchange_with_late_ranks(distributed::Group& group, std::size_t late) {
  const auto bytes = [&](int from, int to) {
    return from == to ? 0 : from < 2 && to < 2 ? std::size_t{32} << 20 : late;
  };
  std::vector<Bytes> out, in;
  std::vector<std::span<const std::byte>> send;
  std::vector<std::span<std::byte>> receive;
  for (int r = 0; r < group.size(); ++r) {
    out.push_back(Bytes(bytes(group.rank(), r)));
    in.push_back(Bytes(bytes(r, group.rank())));
  }
  for (std::size_t r = 0; r < out.size(); ++r) {
    send.emplace_back(out[r]);
    receive.emplace_back(in[r]);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  const auto others_may_come = [&](const std::function<void()>& before) {
    if (group.rank() < 2) before();
    std::byte mark{};
    MPI_Request request = MPI_REQUEST_NULL;
    if (group.rank() == 1) MPI_Send(&mark, 1, MPI_BYTE, 0, 7, MPI_COMM_WORLD);
    if (group.rank() == 0) {  // when the first two have seen enough
      MPI_Recv(&mark, 1, MPI_BYTE, 1, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      for (int r = 2; r < group.size(); ++r) MPI_Send(&mark, 1, MPI_BYTE, r, 7, MPI_COMM_WORLD);
    } else if (group.rank() > 1) {
      MPI_Irecv(&mark, 1, MPI_BYTE, 0, 7, MPI_COMM_WORLD, &request);
      for (int done = 0; !done; MPI_Test(&request, &done, MPI_STATUS_IGNORE))
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  std::unique_ptr<Pending> pending;
  others_may_come([&] {
    pending = group.exchange(send, receive);
    const auto missing = [&](int r) {
      EXPECT_FALSE(pending->poll());
      const std::vector<int> ranks = pending->missing();
      return std::find(ranks.begin(), ranks.end(), r) != ranks.end();
    };
    bool moved = false;
    while (missing(1 - group.rank())) moved = moved || pending->moves();
    EXPECT_TRUE(moved);
    EXPECT_FALSE(pending->moves());  // what is left is of ranks that are late
  });
  if (!pending) pending = group.exchange(send, receive);
  EXPECT_TRUE(pending->wait(kLong));
}

TEST(Transfers, large_messages_move_whoever_else_is_late) {
  mpi::Group group(MPI_COMM_WORLD);
  if (group.size() < 3) return;
  exchange_with_late_ranks(group, 4000000);
  exchange_with_late_ranks(group, 1000);
}

// The rank's duplicate of the communicator comes late, and the rest never: one time limit for both.
TEST(Transfers, a_group_is_made_within_one_time_limit) {
  using Clock = std::chrono::steady_clock;
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size == 1) return;
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) {
    const Clock::time_point begin = Clock::now();
    EXPECT_THROW(mpi::Group(MPI_COMM_WORLD, {.timeout = std::chrono::seconds(2)}), PeerError);
    EXPECT_LT(Clock::now() - begin, std::chrono::milliseconds(3400));
    MPI_Barrier(MPI_COMM_WORLD);
  } else {
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    MPI_Comm duplicate = MPI_COMM_NULL;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Comm_idup(MPI_COMM_WORLD, &duplicate, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
    std::int64_t piece = 1;  // after all, so that MPI can end
    MPI_Iallreduce(MPI_IN_PLACE, &piece, 1, MPI_INT64_T, MPI_MIN, duplicate, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

// Rank 1 is late: the others have what all but it sent.
TEST(Transfers, ranks_that_are_late_are_known) {
  mpi::Group group(MPI_COMM_WORLD);
  const std::array<std::byte, 8> mine{};
  std::vector<std::array<std::byte, 8>> found(static_cast<std::size_t>(group.size()));
  std::vector<std::span<const std::byte>> send(found.size(), mine);
  std::vector<std::span<std::byte>> receive(found.begin(), found.end());
  send[static_cast<std::size_t>(group.rank())] = {};
  receive[static_cast<std::size_t>(group.rank())] = {};
  std::unique_ptr<Pending> pending;
  if (group.rank() != 1) {
    pending = group.exchange(send, receive);
    const auto end = std::chrono::steady_clock::now() + kLong;
    const std::vector<int> late = group.size() > 1 ? std::vector{1} : std::vector<int>{};
    while (pending->missing() != late && std::chrono::steady_clock::now() < end) pending->poll();
    EXPECT_EQ(pending->missing(), late);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (group.rank() == 1) pending = group.exchange(send, receive);
  EXPECT_TRUE(pending->wait(kLong));
}

// Rank 0 sends the others `sent` bytes where they expect `expected`.
std::string told_by_others(std::size_t sent, std::size_t expected) {
  mpi::Group group(MPI_COMM_WORLD);
  Bytes bytes(group.rank() == 0 ? sent : expected);
  const auto pending = group.broadcast(0, bytes);
  try {
    EXPECT_TRUE(pending->wait(kLong));
  } catch (const PeerError& error) {
    EXPECT_THROW((void)group.broadcast(0, bytes), PeerError) << "the Group is still used";
    return error.what();
  }
  return {};
}

TEST(Transfers, bytes_that_are_too_few_or_too_many_are_told) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);  // for MPICH
  const std::string few = told_by_others(8, 12), many = told_by_others(12, 8);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
  if (rank == 0) {
    EXPECT_EQ(few + many, "");
    return;
  }
  EXPECT_EQ(few, "rank " + std::to_string(rank) + ": rank 0 sent 8 bytes where 12 were expected");
  EXPECT_TRUE(many.find("a message from rank 0 failed") != std::string::npos) << many;
}

TEST(Transfers, a_group_whose_transfer_was_given_up_takes_no_more) {
  static std::array<std::byte, 4> memory;  // MPI keeps it: nobody ever sends
  mpi::Group group(MPI_COMM_WORLD);
  if (group.rank() == 0) return;
  (void)group.broadcast(0, memory);
  EXPECT_THROW((void)group.broadcast(0, memory), PeerError);
}

// 4 GiB of memory in all: in the soak suite.
TEST(Transfers, DISABLED_more_than_2_GiB_arrive) {
  mpi::Group group(MPI_COMM_WORLD);
  constexpr std::size_t kSize = (std::size_t{1} << 31) + 4099;
  std::vector<std::byte> bytes(group.rank() < 2 ? kSize : 0);
  const auto value = [](std::size_t n) { return static_cast<std::byte>((n >> 12) * 31 + n); };
  std::vector<std::span<const std::byte>> send(static_cast<std::size_t>(group.size()));
  std::vector<std::span<std::byte>> receive(send.size());
  if (group.rank() == 0) {
    for (std::size_t n = 0; n < kSize; ++n) bytes[n] = value(n);
    send[1] = bytes;
  }
  if (group.rank() == 1) receive[0] = bytes;
  ASSERT_TRUE(group.exchange(send, receive)->wait(kLong));
  for (std::size_t n = 0; group.rank() < 2 && n < kSize; n += n < kSize - 9000 ? 509 : 1)
    ASSERT_EQ(bytes[n], value(n)) << n;
}

template <class Make>
std::string refused(const Make& make) {
  try {
    make();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return {};
}

TEST(Transfers, what_is_no_group_is_refused) {
  EXPECT_EQ(refused([] { mpi::Group group(MPI_COMM_NULL); }),
            "mpi::Group: the communicator is MPI_COMM_NULL");
  EXPECT_EQ(refused([] { mpi::Group group(MPI_COMM_WORLD, {.piece = 0}); }),
            "mpi::Group: piece is 0; it is from 1 to 2147483647");
  EXPECT_EQ(refused([] { mpi::Group group(MPI_COMM_WORLD, {.piece = std::int64_t{1} << 31}); }),
            "mpi::Group: piece is 2147483648; it is from 1 to 2147483647");
  std::string elsewhere;
  std::thread([&] { elsewhere = refused([] { mpi::Group group(MPI_COMM_SELF); }); }).join();
  EXPECT_EQ(elsewhere,
            "mpi::Group: MPI was initialised with MPI_THREAD_FUNNELED, so that the main thread "
            "alone may use a Group; this is another one");
}

}  // namespace
}  // namespace attend

int main(int argc, char** argv) { return attend::run_ranks(argc, argv); }
