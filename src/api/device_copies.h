// What a call on a device has on the host: what it returns to people, and numbers that the host
// needs of the device. Of a call on the host all of this is nothing.
#pragma once

#include "core/queue.h"
#include "core/sequence.h"

#include <array>
#include <cstddef>
#include <vector>

namespace attend {

// Copies of memory of the host in that of the queue, for the time of a call.
class DeviceCopies {
 public:
  // Throws if the device has no such queue. The function is the one that was called, for messages.
  DeviceCopies(const char* function, Device device, Queue* queue);
  ~DeviceCopies();
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  bool needed() const noexcept { return queue_ != nullptr; }

  // Where the device reads what is on the host; and where it writes what is to come there.
  template <class T>
  T* read(T* host, std::int64_t count) {
    return static_cast<T*>(copy_of(host, bytes_of<T>(count), Direction::to_device));
  }
  template <class T>
  T* written(T* host, std::int64_t count) {
    return static_cast<T*>(copy_of(host, bytes_of<T>(count), Direction::to_host));
  }
  // Waits for the device, and brings all that it has written.
  void bring_back();

  // `count` integers of the device, `stride` apart.
  std::vector<std::int64_t> integers(const Strided& t, std::int64_t stride, std::int64_t count);

 private:
  enum class Direction { to_device, to_host };
  struct Copy {
    void *host, *device;
    std::size_t bytes;
    Direction direction;
  };
  template <class T>
  static std::size_t bytes_of(std::int64_t count) {
    return static_cast<std::size_t>(count) * sizeof(T);
  }
  void* copy_of(void* host, std::size_t bytes, Direction direction);
  void check(const Status& status) const;

  const char* function_;
  Device device_;
  Queue* queue_ = nullptr;  // null: the call is on the host
  std::vector<Copy> copies_;
};

// Lengths, offsets and starts of the sequences of a call, in memory of the host and in range:
// sequence_of() may be asked for them there.
class HostSequences {
 public:
  HostSequences(const Problem& problem, const Call& call, DeviceCopies& copies);
  HostSequences(const HostSequences&) = delete;
  HostSequences& operator=(const HostSequences&) = delete;
  Sequence operator[](std::int64_t b) const noexcept { return sequence_of(problem_, call_, b); }

 private:
  const Problem& problem_;
  Call call_;
  std::array<std::vector<std::int64_t>, 4> lists_;
};

}  // namespace attend
