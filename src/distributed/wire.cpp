#include "distributed/wire.h"

#include "api/context.h"
#include "core/reporting.h"
#include "core/text.h"
#include "distributed/time_limit.h"

#include <algorithm>

namespace attend::distributed {
namespace {

constexpr std::chrono::milliseconds kLook{20};  // how often a waiting rank asks the Context's hook

std::string list_of(const std::vector<int>& ranks) {
  std::string list = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t n = 0; n < ranks.size(); ++n)
    list += (n == 0 ? "" : n + 1 == ranks.size() ? " and " : ", ") + std::to_string(ranks[n]);
  return list;
}

}  // namespace

Wire::Wire(const char* function, Group& group, std::chrono::milliseconds timeout, Context& context)
    : function_(function), group_(group),
      // One that is wrong is told to all ranks, which takes time.
      timeout_(timeout.count() > 0 ? timeout : DistributedOptions{}.timeout), context_(context),
      poll_([this] {
        std::erase_if(under_way_, [](Exchange* exchange) { return exchange->poll(); });
      }) {}

void Wire::wait(Pending& pending) const {
  using Clock = std::chrono::steady_clock;
  const auto& interrupt = ContextState::of(context_).interrupt;
  const Clock::time_point begin = Clock::now(), end = begin + limited(timeout_);
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
    if (pending.wait(std::clamp(left, std::chrono::milliseconds{0}, kLook))) {
      group_.add_wait(Clock::now() - begin);
      return;
    }
    if (interrupt && interrupt()) throw Interrupted(std::string(function_).append(kInterrupted));
    if (Clock::now() < end) continue;
    const std::vector<int> missing = pending.missing();
    throw PeerError(text(function_, ": no answer from ",
                         missing.empty() ? std::string("another rank") : list_of(missing),
                         " within ", timeout_.count(), " ms"));
  }
}

Exchange::~Exchange() {
  if (!started_) return;
  std::erase(wire_.under_way_, this);
  // It will never be done, but the engine may still write to its memory.
  wire_.group_.keep(std::move(sent_memory_));
  wire_.group_.keep(std::move(received_memory_));
  for (auto& memory : shared_memory_) wire_.group_.keep(std::move(memory));
}

void Exchange::make_room(std::shared_ptr<Tensor>& memory, std::int64_t bytes) {
  if (memory == nullptr || memory->count() < bytes)
    memory = std::make_shared<Tensor>(wire_.context_.make_tensor({bytes}, DType::u8));
}

void Exchange::resize(const std::vector<std::int64_t>& sent,
                      const std::vector<std::int64_t>& received) {
  const auto lay_out = [](const std::vector<std::int64_t>& sizes,
                          std::vector<std::int64_t>& places) {
    constexpr std::int64_t kAlignment = 64;
    std::int64_t end = 0;
    places.clear();
    for (const std::int64_t size : sizes) {
      places.push_back(end);
      end += (size + kAlignment - 1) / kAlignment * kAlignment;
    }
    return end;
  };
  sent_ = sent;
  received_ = received;
  received_[at(wire_.rank())] = 0;
  make_room(sent_memory_, lay_out(sent_, sent_at_));
  make_room(received_memory_, lay_out(received_, received_at_));
}

void Exchange::resize(std::int64_t sent_to_all, const std::vector<std::int64_t>& received) {
  resize(std::vector<std::int64_t>(at(wire_.size()), 0), received);
  std::fill(sent_.begin(), sent_.end(), sent_to_all);
  make_room(sent_memory_, sent_to_all);
}

std::byte* Exchange::to(int rank) noexcept {
  return static_cast<std::byte*>(sent_memory_->view().data()) + sent_at_[at(rank)];
}
const std::byte* Exchange::from(int rank) const noexcept {
  if (rank == wire_.rank())
    return static_cast<const std::byte*>(sent_memory_->view().data()) + sent_at_[at(rank)];
  return static_cast<const std::byte*>(received_memory_->view().data()) + received_at_[at(rank)];
}

void Exchange::start() {
  const int ranks = wire_.size();
  std::vector<std::span<const std::byte>> send(at(ranks));
  std::vector<std::span<std::byte>> receive(at(ranks));
  for (int r = 0; r < ranks; ++r) {
    if (r == wire_.rank()) continue;
    send[at(r)] = {to(r), static_cast<std::size_t>(sent_[at(r)])};
    receive[at(r)] = {const_cast<std::byte*>(from(r)), static_cast<std::size_t>(received_[at(r)])};
  }
  started_ = true;  // from here on the engine may know the memory, also if it throws
  pending_.push_back(wire_.group_.exchange(send, receive));
  wire_.under_way_.push_back(this);
}

void Exchange::start(std::size_t transfers, const std::vector<MemoryBlocks>& send,
                     const std::vector<MemoryBlocks>& receive,
                     std::vector<std::shared_ptr<const void>> memory) {
  std::vector<std::span<const std::byte>> sent(send.size());
  std::vector<std::span<std::byte>> received(receive.size());
  const auto nth = [](const MemoryBlocks& blocks, std::size_t n) {
    return n < blocks.size() ? blocks[n] : std::span<std::byte>{};
  };
  shared_memory_ = std::move(memory);
  started_ = true;
  for (std::size_t n = 0; n < transfers; ++n) {
    for (std::size_t r = 0; r < sent.size(); ++r) {
      sent[r] = nth(send[r], n);
      received[r] = nth(receive[r], n);
    }
    pending_.push_back(wire_.group_.exchange(sent, received));
  }
  wire_.under_way_.push_back(this);
}

// In the order of their start. Most engines move all transfers whichever is asked for.
bool Exchange::poll() {
  while (done_ < pending_.size() && pending_[done_]->poll()) ++done_;
  return done_ == pending_.size();
}

void Exchange::wait() {
  if (!started_) return;
  std::erase(wire_.under_way_, this);
  for (; done_ < pending_.size(); ++done_) wire_.wait(*pending_[done_]);
  pending_.clear();
  shared_memory_.clear();
  done_ = 0;
  started_ = false;
}

}  // namespace attend::distributed
