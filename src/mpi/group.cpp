// A transfer is a list of requests, each a piece of what goes to or comes from one rank. MPI keeps
// the order of messages between two ranks with one tag; the tag is the number of the transfer, so
// that ranks which do not start the same ones wait, instead of taking each other's bytes.
//
// MPI does not say whether a message is on its way or its sender has not come yet. Before large
// ones two ranks therefore send each other an empty one: whoever waits knows of each of them
// whether it is late or its bytes are moving.
#include <attend/mpi.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <utility>

namespace attend::mpi {
namespace {

using distributed::PeerError;

constexpr std::int64_t kTags = 32768;  // as many as every MPI has

// Other messages go in a few steps: a pause between them costs little.
bool is_large(std::size_t bytes) noexcept { return bytes > std::size_t{1} << 18; }

std::string text_of(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) return "error " + std::to_string(code);
  return {text, static_cast<std::size_t>(length)};
}

// FUNNELED: only the main thread calls MPI; SINGLE: there are no other threads, as ours would be.
void check_thread() {
  int level = MPI_THREAD_SINGLE, main = 0;
  MPI_Query_thread(&level);
  if (level == MPI_THREAD_SINGLE)
    throw InvalidArgument(
        "mpi::Group: MPI was initialised for a single thread (MPI_THREAD_SINGLE), while a Context "
        "has several; call MPI_Init_thread with MPI_THREAD_FUNNELED or more");
  if (level != MPI_THREAD_FUNNELED) return;
  MPI_Is_thread_main(&main);
  if (!main)
    throw InvalidArgument(
        "mpi::Group: MPI was initialised with MPI_THREAD_FUNNELED, so that the main thread alone "
        "may use a Group; this is another one");
}

void check(MPI_Comm communicator, const GroupOptions& options) {
  int started = 0, ended = 0, between = 0;
  MPI_Initialized(&started);
  if (started) MPI_Finalized(&ended);
  if (!started || ended)
    throw InvalidArgument(started ? "mpi::Group: MPI is finalised already"
                                  : "mpi::Group: MPI is not initialised; call MPI_Init_thread");
  if (communicator == MPI_COMM_NULL)
    throw InvalidArgument("mpi::Group: the communicator is MPI_COMM_NULL");
  MPI_Comm_test_inter(communicator, &between);
  if (between)
    throw InvalidArgument("mpi::Group: the communicator is one between two groups of processes");
  if (options.piece < 1 || options.piece > INT_MAX)
    throw InvalidArgument("mpi::Group: piece is " + std::to_string(options.piece) +
                          "; it is from 1 to " + std::to_string(INT_MAX));
  check_thread();
}

}  // namespace

struct Group::State {
  MPI_Comm communicator = MPI_COMM_NULL;
  int rank = 0, size = 1;
  std::int64_t piece = 0, started = 0;
  bool given_up = false;  // a transfer will never be done: MPI may not be called any more
  // What MPI may still know, and this itself: never freed.
  std::vector<std::shared_ptr<const void>> kept;
  std::shared_ptr<State> self;

  [[noreturn]] void fail(const std::string& why) {
    given_up = true;
    throw PeerError("rank " + std::to_string(rank) + ": " + why);
  }
  void expect(int code, const char* what) {
    if (code != MPI_SUCCESS) fail(std::string(what) + ": " + text_of(code));
  }
};

class Group::Transfer final : public distributed::Pending {
 public:
  explicit Transfer(std::shared_ptr<State> state)
      : state_(std::move(state)), tag_(static_cast<int>(state_->started++ % kTags)) {}

  // Requests that are not done stay as they are: to cancel them would be to call MPI, which may
  // wait.
  ~Transfer() override {
    if (done_ < requests_.size()) state_->given_up = true;
  }

  // The empty messages: those that come are the first of all.
  void receive_begin(int from) {
    state_->expect(MPI_Irecv(nullptr, 0, MPI_BYTE, from, tag_, state_->communicator, next()),
                   "MPI_Irecv");
    pieces_.push_back({from, 0});
    ++receives_;
    ++begins_;
  }
  void send_begin(int to) {
    state_->expect(MPI_Isend(nullptr, 0, MPI_BYTE, to, tag_, state_->communicator, next()),
                   "MPI_Isend");
    pieces_.push_back({to, 0});
  }
  void receive(int from, std::span<std::byte> bytes) {
    for_each_piece(bytes, [&](std::byte* at, int count) {
      state_->expect(MPI_Irecv(at, count, MPI_BYTE, from, tag_, state_->communicator, next()),
                     "MPI_Irecv");
      pieces_.push_back({from, count});
      ++receives_;
    });
  }
  void send(int to, std::span<const std::byte> bytes) {
    for_each_piece(bytes, [&](const std::byte* at, int count) {
      state_->expect(MPI_Isend(at, count, MPI_BYTE, to, tag_, state_->communicator, next()),
                     "MPI_Isend");
      pieces_.push_back({to, count});
    });
  }
  void duplicate(MPI_Comm communicator) {
    const int code = MPI_Comm_idup(communicator, &state_->communicator, next());
    state_->expect(code, "MPI_Comm_idup");
  }
  // Sender and receiver must cut a message alike.
  void agree_on_piece() {
    const int code = MPI_Iallreduce(MPI_IN_PLACE, &state_->piece, 1, MPI_INT64_T, MPI_MIN,
                                    state_->communicator, next());
    state_->expect(code, "MPI_Iallreduce");
  }

  // One after the other: MPI_Testall would look at all pieces every time. MPICH gives errors to the
  // handler of MPI_COMM_WORLD, which ends the job, or returns them to us if it is told to.
  bool poll() override {
    if (state_->given_up) state_->fail("an earlier transfer was given up");
    for (; done_ < requests_.size(); ++done_) {
      int now = 0;
      MPI_Status status;
      const int code = MPI_Test(&requests_[done_], &now, &status);
      if (code != MPI_SUCCESS) report(code);
      if (!now) return false;
      if (done_ < receives_) check_size(status);
    }
    return true;
  }

  // Whether a rank that has begun has something large left. Ranks that are late, and those with
  // small messages alone, are not waited for without pauses. What was found last is mostly still
  // so.
  bool moves() const override {
    if (moving_ < pieces_.size() && moving_ >= done_ && !is_done(moving_)) return true;
    begun_.resize(static_cast<std::size_t>(state_->size));
    const auto begun = [&](std::size_t n) -> char& {
      return begun_[static_cast<std::size_t>(pieces_[n].rank)];
    };
    for (std::size_t n = 0; n < begins_; ++n)
      if (!begun(n)) begun(n) = is_done(n);
    for (std::size_t n = std::max(begins_, done_); begins_ > 0 && n < pieces_.size(); ++n)
      if (begun(n) && pieces_[n].count > 0 && !is_done(n)) {
        moving_ = n;
        return true;
      }
    return false;
  }

  std::vector<int> missing() const override {
    std::vector<int> ranks;
    for (std::size_t n = done_; n < pieces_.size(); ++n)
      if (!is_done(n)) ranks.push_back(pieces_[n].rank);  // it has not sent, or not taken
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return ranks;
  }

 private:
  struct Piece {
    int rank, count;
  };

  template <class Byte, class Start>
  void for_each_piece(std::span<Byte> bytes, const Start& start) {
    const auto piece = static_cast<std::size_t>(state_->piece);
    for (std::size_t at = 0; at < bytes.size(); at += piece)
      start(bytes.data() + at, static_cast<int>(std::min(piece, bytes.size() - at)));
  }

  bool is_done(std::size_t n) const {
    int done = 0;
    MPI_Request_get_status(requests_[n], &done, MPI_STATUS_IGNORE);
    return done != 0;
  }

  MPI_Request* next() {
    requests_.push_back(MPI_REQUEST_NULL);
    return &requests_.back();
  }

  [[noreturn]] void report(int code) {
    if (pieces_.empty()) state_->fail("its mpi::Group could not be made: " + text_of(code));
    state_->fail("a message " + std::string(done_ < receives_ ? "from" : "to") + " rank " +
                 std::to_string(pieces_[done_].rank) + " failed: " + text_of(code));
  }

  // A message that is too long is an error of MPI's own.
  void check_size(const MPI_Status& status) {
    int count = 0;
    MPI_Get_count(&status, MPI_BYTE, &count);
    const Piece& expected = pieces_[done_];
    if (count != expected.count)
      state_->fail("rank " + std::to_string(expected.rank) + " sent " + std::to_string(count) +
                   " bytes where " + std::to_string(expected.count) + " were expected");
  }

  std::shared_ptr<State> state_;
  std::vector<MPI_Request> requests_;
  std::vector<Piece> pieces_;  // what they are, but for those of a Group's making
  std::size_t receives_ = 0;   // come first among them,
  std::size_t begins_ = 0;     // and of those the ones that say that a rank has begun
  std::size_t done_ = 0;       // of the requests, the first so many
  // For moves(): which ranks have begun, and the piece that it found.
  mutable std::vector<char> begun_;
  mutable std::size_t moving_ = static_cast<std::size_t>(-1);
  int tag_;
};

Group::Group(MPI_Comm communicator, const GroupOptions& options)
    : state_(std::make_shared<State>()) {
  check(communicator, options);
  state_->piece = options.piece;
  MPI_Comm_rank(communicator, &state_->rank);
  MPI_Comm_size(communicator, &state_->size);
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kMost = std::chrono::hours(24 * 365);  // no clock overflows
  const Clock::time_point end = Clock::now() + std::min(options.timeout, kMost);
  const auto await = [&](Transfer& transfer) {  // of both steps together
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
    if (transfer.wait(std::max(left, std::chrono::milliseconds{0}))) return;
    state_->self = state_;  // MPI may still write there
    state_->fail("not all ranks of the communicator have made their mpi::Group within " +
                 std::to_string(options.timeout.count()) + " ms");
  };
  Transfer duplicate(state_);
  duplicate.duplicate(communicator);
  await(duplicate);
  MPI_Comm_set_errhandler(state_->communicator, MPI_ERRORS_RETURN);
  Transfer piece(state_);
  piece.agree_on_piece();
  await(piece);
}

Group::~Group() {
  if (state_->given_up || !failure().empty()) {
    state_->kept = take_kept();
    state_->self = state_;
    return;
  }
  int ended = 0;
  MPI_Finalized(&ended);
  if (!ended) MPI_Comm_free(&state_->communicator);
}

int Group::rank() const noexcept { return state_->rank; }
int Group::size() const noexcept { return state_->size; }

std::unique_ptr<Group::Transfer> Group::begin() {
  check_thread();
  if (state_->given_up || !failure().empty())
    state_->fail("the Group has failed" + (failure().empty() ? "" : ": " + failure()));
  return std::make_unique<Transfer>(state_);
}

std::unique_ptr<distributed::Pending> Group::exchange(
    std::span<const std::span<const std::byte>> send,
    std::span<const std::span<std::byte>> receive) {
  auto transfer = begin();
  const auto at = [](int r) { return static_cast<std::size_t>(r); };
  // Each rank begins with the one behind it, so that not all of them write to rank 0 first.
  const auto each = [&](int direction, const auto& use) {
    for (int step = 1; step < size(); ++step) use((rank() + direction * step + size()) % size());
  };
  const auto between = [&](int r) {
    return is_large(std::max(send[at(r)].size(), receive[at(r)].size()));
  };
  each(-1, [&](int r) {
    if (between(r)) transfer->receive_begin(r);
  });
  each(-1, [&](int r) { transfer->receive(r, receive[at(r)]); });
  each(1, [&](int r) {
    if (between(r)) transfer->send_begin(r);
  });
  each(1, [&](int r) { transfer->send(r, send[at(r)]); });
  return transfer;
}

// From the root to each rank: no rank has to pass anything on, which it could only do when it
// polls.
std::unique_ptr<distributed::Pending> Group::broadcast(int root, std::span<std::byte> bytes) {
  auto transfer = begin();
  const bool large = is_large(bytes.size());
  if (rank() != root) {
    if (large) transfer->receive_begin(root);
    transfer->receive(root, bytes);
    if (large) transfer->send_begin(root);
    return transfer;
  }
  const auto each = [&](const auto& use) {
    for (int step = 1; step < size(); ++step) use((rank() + step) % size());
  };
  if (large) each([&](int r) { transfer->receive_begin(r); });
  if (large) each([&](int r) { transfer->send_begin(r); });
  each([&](int r) { transfer->send(r, bytes); });
  return transfer;
}

void Group::abort(int status) const {
  MPI_Abort(state_->communicator, status);
  std::_Exit(status);
}

}  // namespace attend::mpi
