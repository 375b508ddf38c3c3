// An Instance in memory of a device: every buffer, with the bytes around its tensors, is copied
// there, and back. So whoever writes where nothing is to be written is caught as on the host.
#pragma once

#include "instance.h"

#include <attend/cuda.h>

namespace attend::cases {

class DeviceInstance {
 public:
  DeviceInstance(const Instance& host, int device);

  // The host's views, moved. Packed sequences have max_q and max_k: a device needs them.
  const Instance& instance() const { return moved_; }
  Queue& queue() const { return *queue_; }

  // Waits for the work of the device, and brings all memory back into that of the Instance.
  void copy_back();

 private:
  ConstTensorView moved(const ConstTensorView& view) const;
  TensorView moved(const TensorView& view) const;
  void* moved(const void* address) const;

  std::shared_ptr<Queue> queue_;
  struct Buffer {
    std::byte* host = nullptr;
    cuda::Memory device;
  };
  std::vector<Buffer> buffers_;
  Instance moved_;
};

}  // namespace attend::cases
