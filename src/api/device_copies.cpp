#include "api/device_copies.h"

#include "api/launch.h"
#include "core/clamp.h"

#include <cstdlib>

namespace attend {

DeviceCopies::DeviceCopies(const char* function, Device device, Queue* queue)
    : function_(function), device_(device) {
  if (device != Device{}) queue_ = &queue_for(function, device, queue);
}

DeviceCopies::~DeviceCopies() {
  for (auto copy = copies_.rbegin(); copy != copies_.rend(); ++copy)
    queue_->give(copy->device, copy->bytes);
}

void DeviceCopies::check(const Status& status) const { check_launched(function_, device_, status); }

void* DeviceCopies::copy_of(void* host, std::size_t bytes, Direction direction) {
  if (!needed() || bytes == 0) return host;
  copies_.reserve(copies_.size() + 1);  // what is taken from the queue is never lost
  Status why;
  void* const device = queue_->take(bytes, why);
  check(why);
  copies_.push_back({host, device, bytes, direction});
  if (direction == Direction::to_device) check(queue_->copy(device, host, bytes));
  return device;
}

void DeviceCopies::bring_back() {
  for (const Copy& copy : copies_)
    if (copy.direction == Direction::to_host)
      check(queue_->copy(copy.host, copy.device, copy.bytes));
}

std::vector<std::int64_t> DeviceCopies::integers(const Strided& t, std::int64_t stride,
                                                 std::int64_t count) {
  constexpr std::int64_t kNear = 8;  // so few others between them are copied, too
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(count));
  const std::int64_t size = size_of(t.type);
  const std::int64_t together = std::abs(stride) <= kNear ? count : 1;
  const std::int64_t span = (together - 1) * std::abs(stride) + 1;
  std::vector<std::byte> some(static_cast<std::size_t>(count == 0 ? 0 : span * size));
  const std::int64_t lowest = stride < 0 ? span - 1 : 0;  // places before the first
  for (std::int64_t begin = 0; begin < count; begin += together) {
    check(queue_->copy(some.data(), t.data + (begin * stride - lowest) * size, some.size()));
    const Strided here{.data = some.data(), .type = t.type};
    for (std::int64_t n = 0; n < together; ++n)
      numbers[static_cast<std::size_t>(begin + n)] = load_integer(here, lowest + n * stride);
  }
  return numbers;
}

HostSequences::HostSequences(const Problem& problem, const Call& call, DeviceCopies& copies)
    : problem_(problem), call_(call) {
  if (!copies.needed()) return;
  const Problem& p = problem;
  auto& [q_starts, k_starts, lengths, offsets] = lists_;
  const auto fetch = [&](bool given, const Strided& from, std::int64_t count,
                         std::vector<std::int64_t>& to, Strided& list) {
    if (!given) return;
    to = copies.integers(from, from.stride[0], count);
    list = {.data = reinterpret_cast<std::byte*>(to.data()),
            .type = DType::i64,
            .given = true,
            .stride = {1, 0, 0, 0}};
  };
  const auto clamp_starts = [&](std::vector<std::int64_t>& starts, std::int64_t longest,
                                std::int64_t total) {
    std::int64_t last = 0, n = 0;
    for (std::int64_t& start : starts)
      start = last = clamped_start(start, n++, last, longest, total);
  };
  const bool packed = p.keys == KeyAddressing::packed;
  fetch(p.packed_queries, call.cu_seqlens_q, p.batch + 1, q_starts, call_.cu_seqlens_q);
  fetch(packed, call.cu_seqlens_k, p.batch + 1, k_starts, call_.cu_seqlens_k);
  fetch(p.key_lengths, call.key_lengths, p.batch, lengths, call_.key_lengths);
  fetch(p.offset_each, call.query_offset, p.batch, offsets, call_.query_offset);
  clamp_starts(q_starts, p.q_length, call.packed_queries);
  clamp_starts(k_starts, p.k_length, call.packed_keys);
  for (std::size_t b = 0; b < lengths.size(); ++b)
    lengths[b] = clamped_length(p, lengths[b], packed ? k_starts[b + 1] - k_starts[b] : 0);
  for (std::int64_t& offset : offsets) offset = clamped_offset(offset, kFarthestPosition);
}

}  // namespace attend
