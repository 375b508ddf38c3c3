// The transfers of one call: their memory, how they move on while the call computes, and how long
// is waited for them.
#pragma once

#include <attend/distributed.h>

#include <functional>
#include <memory>
#include <vector>

namespace attend::distributed {

class Exchange;

// What the exchanges of one call share.
class Wire {
 public:
  Wire(const char* function, Group& group, std::chrono::milliseconds timeout, Context& context);

  Group& group() const noexcept { return group_; }
  Context& context() const noexcept { return context_; }
  int rank() const noexcept { return group_.rank(); }
  int size() const noexcept { return group_.size(); }
  // Moves all exchanges on: what Polling asks for.
  const std::function<void()>& poll() const noexcept { return poll_; }

 private:
  friend class Exchange;
  void wait(Pending& pending) const;

  const char* const function_;
  Group& group_;
  const std::chrono::milliseconds timeout_;
  Context& context_;
  std::vector<Exchange*> under_way_;
  std::function<void()> poll_;
};

// Messages to and from every rank. Its memory is kept for the next one that is started with it.
class Exchange {
 public:
  explicit Exchange(Wire& wire) : wire_(wire) {}
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // Bytes for and from each rank, its own included, whose message stays here. The contents are not
  // kept.
  void resize(const std::vector<std::int64_t>& sent, const std::vector<std::int64_t>& received);
  // The same message for everybody.
  void resize(std::int64_t sent_to_all, const std::vector<std::int64_t>& received);

  std::byte* to(int rank) noexcept;
  const std::byte* from(int rank) const noexcept;  // of this rank: what it sent

  void start();
  void wait();  // throws PeerError when the time is over, and Interrupted
  bool started() const noexcept { return started_; }

 private:
  friend class Wire;
  static std::size_t at(int rank) noexcept { return static_cast<std::size_t>(rank); }
  void make_room(std::shared_ptr<Tensor>& memory, std::int64_t bytes);

  Wire& wire_;
  std::shared_ptr<Tensor> sent_memory_, received_memory_;
  std::vector<std::int64_t> sent_at_, sent_, received_at_, received_;  // offsets and sizes
  std::unique_ptr<Pending> pending_;
  bool started_ = false;  // and not waited for yet
};

}  // namespace attend::distributed
