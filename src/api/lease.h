// Memory of a Context for the time of a call. It goes back to the Context, for the next call: after
// the first one nothing is allocated. On a device it is the queue's, and goes back in its order.
#pragma once

#include <attend/context.h>

#include <cstddef>
#include <utility>

namespace attend {

struct ContextState;

class Lease {
 public:
  // Aligned as workspaces are; throws OutOfMemory. Of 0 bytes: none.
  Lease(Context& context, std::size_t bytes);
  Lease(ContextState& state, std::size_t bytes) : state_(state) {
    if (bytes > 0) acquire(bytes);
  }
  Lease(const Where& where, std::size_t bytes, Device device);
  Lease(Lease&& other) noexcept
      : state_(other.state_), queue_(other.queue_), data_(std::exchange(other.data_, nullptr)),
        bytes_(other.bytes_) {}
  ~Lease() {
    if (data_ != nullptr) release();
  }
  Lease& operator=(const Lease&) = delete;
  std::byte* data() const noexcept { return data_; }  // null of 0 bytes

 private:
  void acquire(std::size_t bytes);
  void release() noexcept;

  ContextState& state_;
  Queue* queue_ = nullptr;  // of a device, whose memory it is
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace attend
