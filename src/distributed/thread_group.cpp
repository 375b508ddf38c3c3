// Ranks that are threads. A message is copied into the receiver's box when it is sent, so that no
// rank ever waits to send, and none reads the memory of one that is gone.
#include <attend/distributed.h>

#include "core/text.h"
#include "distributed/time_limit.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <future>
#include <mutex>
#include <thread>

namespace attend::distributed {
namespace {

using Message = std::vector<std::byte>;

// What all ranks share.
struct Boxes {
  std::mutex mutex;
  std::condition_variable arrived;
  std::vector<std::vector<std::deque<Message>>> of;  // [to][from], in the order sent
  std::vector<std::int64_t> sent;                    // bytes, by sender
  ThreadGroup::BeforeTransfer before;
};

class ThreadPending : public Pending {
 public:
  // Messages from `from[n]` into into[n].
  ThreadPending(Boxes& boxes, int rank, std::vector<std::pair<int, std::span<std::byte>>> wanted)
      : boxes_(boxes), rank_(rank), wanted_(std::move(wanted)) {}

  // Transfers are done in the order in which they were started: nobody takes a message that
  // belongs to an earlier one, which takes its own first.
  bool poll() override {
    const std::lock_guard lock(boxes_.mutex);
    return take();
  }
  bool wait(std::chrono::milliseconds at_most) override {
    std::unique_lock lock(boxes_.mutex);
    return boxes_.arrived.wait_for(lock, limited(at_most), [&] { return take(); });
  }
  std::vector<int> missing() const override {
    const std::lock_guard lock(boxes_.mutex);
    return not_sent();
  }
  void after(std::shared_ptr<ThreadPending> earlier) { earlier_ = std::move(earlier); }

 private:
  bool take() {
    if (earlier_ != nullptr && !earlier_->take()) return false;
    earlier_.reset();
    auto& boxes = boxes_.of[static_cast<std::size_t>(rank_)];
    std::erase_if(wanted_, [&](const auto& message) {
      auto& box = boxes[static_cast<std::size_t>(message.first)];
      if (box.empty()) return false;
      if (box.front().size() != message.second.size())
        throw PeerError(text("rank ", message.first, " sent ", box.front().size(), " bytes where ",
                             message.second.size(), " were expected"));
      if (!message.second.empty())
        std::memcpy(message.second.data(), box.front().data(), message.second.size());
      box.pop_front();
      return true;
    });
    return wanted_.empty();
  }

  // If an earlier one is waited for, nothing is known of this one yet.
  std::vector<int> not_sent() const {
    std::vector<int> from;
    if (earlier_ != nullptr) from = earlier_->not_sent();
    if (!from.empty()) return from;
    for (const auto& message : wanted_) from.push_back(message.first);
    return from;
  }

  Boxes& boxes_;
  const int rank_;
  std::vector<std::pair<int, std::span<std::byte>>> wanted_;
  std::shared_ptr<ThreadPending> earlier_;
};

// The caller's hold of one.
class SharedPending : public Pending {
 public:
  explicit SharedPending(std::shared_ptr<ThreadPending> held) : held_(std::move(held)) {}
  bool poll() override { return held_->poll(); }
  bool wait(std::chrono::milliseconds at_most) override { return held_->wait(at_most); }
  std::vector<int> missing() const override { return held_->missing(); }

 private:
  std::shared_ptr<ThreadPending> held_;
};

class ThreadRank : public Group {
 public:
  ThreadRank(Boxes& boxes, int rank) : boxes_(boxes), rank_(rank) {}
  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return static_cast<int>(boxes_.of.size()); }

  std::unique_ptr<Pending> exchange(std::span<const std::span<const std::byte>> send,
                                    std::span<const std::span<std::byte>> receive) override {
    begin();
    std::vector<std::pair<int, std::span<std::byte>>> wanted;
    for (int r = 0; r < size(); ++r) {
      if (r == rank_) continue;
      deliver(r, send[static_cast<std::size_t>(r)]);
      wanted.emplace_back(r, receive[static_cast<std::size_t>(r)]);
    }
    return started(std::move(wanted));
  }

  std::unique_ptr<Pending> broadcast(int root, std::span<std::byte> bytes) override {
    begin();
    std::vector<std::pair<int, std::span<std::byte>>> wanted;
    for (int r = 0; root == rank_ && r < size(); ++r)
      if (r != rank_) deliver(r, bytes);
    if (root != rank_) wanted.emplace_back(root, bytes);
    return started(std::move(wanted));
  }

 private:
  void begin() {
    if (boxes_.before) boxes_.before(rank_, transfers_);
    ++transfers_;
  }

  void deliver(int to, std::span<const std::byte> bytes) {
    Message message(bytes.begin(), bytes.end());
    const std::lock_guard lock(boxes_.mutex);
    boxes_.sent[static_cast<std::size_t>(rank_)] += static_cast<std::int64_t>(bytes.size());
    boxes_.of[static_cast<std::size_t>(to)][static_cast<std::size_t>(rank_)].push_back(
        std::move(message));
    boxes_.arrived.notify_all();
  }

  std::unique_ptr<Pending> started(std::vector<std::pair<int, std::span<std::byte>>> wanted) {
    auto pending = std::make_shared<ThreadPending>(boxes_, rank_, std::move(wanted));
    pending->after(last_);
    last_ = pending;
    return std::make_unique<SharedPending>(std::move(pending));
  }

  Boxes& boxes_;
  const int rank_;
  std::int64_t transfers_ = 0;
  std::shared_ptr<ThreadPending> last_;
};

}  // namespace

struct ThreadGroup::State {
  Boxes boxes;
  std::vector<std::unique_ptr<ThreadRank>> ranks;
};

ThreadGroup::ThreadGroup(int size, BeforeTransfer before) : state_(std::make_unique<State>()) {
  if (size < 1)
    throw InvalidArgument(text("ThreadGroup: size is ", size, "; it must be at least 1"));
  const auto count = static_cast<std::size_t>(size);
  state_->boxes.of.resize(count);
  for (auto& from : state_->boxes.of) from.resize(count);
  state_->boxes.sent.resize(count);
  state_->boxes.before = std::move(before);
  for (int r = 0; r < size; ++r)
    state_->ranks.push_back(std::make_unique<ThreadRank>(state_->boxes, r));
}
ThreadGroup::~ThreadGroup() = default;

Group& ThreadGroup::rank(int r) const { return *state_->ranks.at(static_cast<std::size_t>(r)); }

std::vector<std::exception_ptr> ThreadGroup::run(const std::function<void(Group&)>& body) const {
  std::vector<std::exception_ptr> thrown(state_->ranks.size());
  std::vector<std::thread> threads;
  threads.reserve(thrown.size());
  std::promise<bool> decision;  // whether there are threads for all ranks
  const std::shared_future<bool> all_started = decision.get_future().share();
  const auto run_rank = [&](std::size_t r) {
    if (!all_started.get()) return;
    try {
      body(*state_->ranks[r]);
    } catch (...) {
      thrown[r] = std::current_exception();
    }
  };
  std::string why;
  try {
    for (std::size_t r = 0; r < thrown.size(); ++r) threads.emplace_back(run_rank, r);
  } catch (const std::exception& error) {
    why = error.what();
  }
  decision.set_value(why.empty());
  for (std::thread& thread : threads) thread.join();
  if (!why.empty())
    throw Error(text("ThreadGroup: of ", thrown.size(), " threads only ", threads.size(),
                     " could be started: ", why));
  return thrown;
}

std::int64_t ThreadGroup::bytes_sent(int from) const {
  const std::lock_guard lock(state_->boxes.mutex);
  return state_->boxes.sent.at(static_cast<std::size_t>(from));
}

}  // namespace attend::distributed
