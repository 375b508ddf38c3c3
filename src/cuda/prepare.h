// What launches have in common: memory for the time of a call, and what must be on the device
// before its kernels.
#pragma once

#include "cuda/device.h"

#include "core/operation.h"

#include <array>
#include <cstddef>

namespace attend::cuda {

// Memory of a queue, which goes back to it at the end: then all work of the call has been put in.
class Loans {
 public:
  explicit Loans(StreamQueue& queue) noexcept : queue_(queue) {}
  ~Loans();
  Loans(const Loans&) = delete;
  Loans& operator=(const Loans&) = delete;

  // Null: there is none.
  template <class T>
  T* take(std::int64_t count) noexcept {
    return static_cast<T*>(take_bytes(count, sizeof(T)));
  }
  bool failed() const noexcept { return !status_; }
  Status status() const noexcept { return status_; }

 private:
  void* take_bytes(std::int64_t count, std::size_t size) noexcept;

  StreamQueue& queue_;
  struct Loan {
    void* memory;
    std::size_t bytes;
  };
  std::array<Loan, 24> loans_{};
  std::size_t count_ = 0;
  Status status_;
};

// The queue of attend::cuda::make_queue(), or null and a status.
StreamQueue* stream_queue(Queue& queue, Status& status) noexcept;

// Bytes of the host, for the device, as part of the queue's work.
Status put(void* to, const void* from, std::size_t bytes, StreamQueue& queue) noexcept;

// Lengths, offsets, starts and pages of the call become copies whose values are sound, of i64 or
// i32. Offsets no farther from 0 than the limit; those of i32 count from the first key, so that
// key_offset is in them.
enum class Integers { i64, i32 };
Status clamp_integers(const Problem& problem, Call& call, Integers type, std::int64_t offset_limit,
                      Loans& loans, StreamQueue& queue) noexcept;

inline std::int64_t blocks_of(std::int64_t count, std::int64_t size) noexcept {
  return count / size + (count % size != 0);
}

// Of status-returning steps, the first that fails.
#define ATTEND_TRY(step)                                             \
  do {                                                               \
    if (const ::attend::Status tried = (step); !tried) return tried; \
  } while (false)

}  // namespace attend::cuda
