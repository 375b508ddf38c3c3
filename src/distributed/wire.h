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

// Blocks of memory, in the order in which they are sent or filled.
using MemoryBlocks = std::vector<std::span<std::byte>>;

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
  // Instead: blocks where they lie, those for and from each rank. The n-th of all ranks are one
  // transfer; every rank starts as many. The memory is somebody else's, who shares it.
  void start(std::size_t transfers, const std::vector<MemoryBlocks>& send,
             const std::vector<MemoryBlocks>& receive,
             std::vector<std::shared_ptr<const void>> memory);
  void wait();  // throws PeerError when the time is over, and Interrupted
  bool in_place() const noexcept { return !shared_memory_.empty(); }
  bool started() const noexcept { return started_; }

 private:
  friend class Wire;
  static std::size_t at(int rank) noexcept { return static_cast<std::size_t>(rank); }
  bool poll();
  void make_room(std::shared_ptr<Tensor>& memory, std::int64_t bytes);

  Wire& wire_;
  std::shared_ptr<Tensor> sent_memory_, received_memory_;
  std::vector<std::int64_t> sent_at_, sent_, received_at_, received_;  // offsets and sizes
  std::vector<std::shared_ptr<const void>> shared_memory_;             // of blocks in place
  std::vector<std::unique_ptr<Pending>> pending_;
  std::size_t done_ = 0;  // of these, the first so many
  bool started_ = false;  // and not waited for yet
};

}  // namespace attend::distributed
