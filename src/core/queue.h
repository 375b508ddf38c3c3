// Queues of devices. A row for a device does not run tasks, it launches: it puts the work of a call
// into a queue and returns; the work is done later, in the queue's order.
#pragma once

#include <attend/tensor.h>

#include <cstddef>
#include <memory>

namespace attend {

// What a device said of a launch, or of waiting.
struct Status {
  enum class Kind : unsigned char { ok, out_of_memory, failed };
  Kind kind = Kind::ok;
  const char* what = "";  // its words, which live for ever
  // What failed may be work that was put in before: after such a failure nothing goes any more.
  bool earlier = false;

  explicit operator bool() const noexcept { return kind == Kind::ok; }
};

// Tensors of a device keep the queue that they were made on, if it is a shared one; others must
// outlive them.
class Queue : public std::enable_shared_from_this<Queue> {
 public:
  virtual ~Queue() = default;
  virtual Device device() const noexcept = 0;

  // Memory of the device, in the order of the queue: work that is put in after take() may use it,
  // and after give() it belongs to the queue again when all work put in so far is done. Nothing
  // else may free it: the call that launched the work has returned by then. Null, and why: there
  // is none, or earlier work has failed.
  virtual void* take(std::size_t bytes, Status& why) noexcept = 0;
  virtual void give(void* memory, std::size_t bytes) noexcept = 0;

  // Copies bytes between memory of the host and of the device, in either direction, after all work
  // put in so far, and waits for it.
  virtual Status copy(void* to, const void* from, std::size_t bytes) noexcept = 0;
};

}  // namespace attend
