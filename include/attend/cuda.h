// Tensors in the memory of an NVIDIA GPU. A view of such memory says so,
//
//   ConstTensorView q(address, DType::bf16, shape, Device{Device::Kind::cuda, 0});
//
// and a call on such views is told a queue, one of the caller's own streams:
//
//   const auto queue = attend::cuda::make_queue(0, stream);
//   attention(q, k, v, out, {.causal = true}, {}, *queue);
//
// It returns when the work is in the stream; nobody waits for the device, but in inspect() and
// weights_of(), whose results are in host memory, and in copies. The driver is loaded when it is
// first needed: the same library runs on machines without one. Neither queues nor memory survive
// fork().
#pragma once

#include <attend/context.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

namespace attend::cuda {

// Why calls on tensors of this device cannot be made ("finds no NVIDIA driver (libcuda.so.1)");
// empty: they can.
ATTEND_API std::string why_unavailable(int device = 0);
ATTEND_API int device_count() noexcept;

// A queue of the device's primary context, the one of the CUDA runtime and of frameworks. stream: a
// CUstream or cudaStream_t of it, which must outlive the queue; null: the default stream.
ATTEND_API std::shared_ptr<Queue> make_queue(int device = 0, void* stream = nullptr);

// Where the memory of a queue comes from (workspaces of calls, Tensors made on it), if not from its
// stream by cuMemAllocAsync: a graph that is captured then uses memory of the caller's, each time
// that it runs. Called by the threads that make calls. What they throw is not passed on: no memory
// is OutOfMemory.
struct QueueMemory {
  // At a multiple of 256 bytes, for work that is put into the stream from now on. Null: there is
  // none.
  std::function<void*(std::size_t bytes)> take;
  // All work that uses it is in the stream; only what is put in after it may have it again.
  std::function<void(void* memory, std::size_t bytes)> give;
};
ATTEND_API std::shared_ptr<Queue> make_queue(int device, void* stream, QueueMemory memory);

// Waits until all work so far is done. Throws DeviceError if any of it has failed.
ATTEND_API void wait(Queue& queue);

// Memory of a device, for programs that have no other way to it.
class ATTEND_API Memory {
 public:
  Memory() = default;
  explicit Memory(std::size_t bytes, int device = 0);  // throws OutOfMemory
  ~Memory();
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;

  void* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }
  Device device() const noexcept { return device_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Device device_{Device::Kind::cuda, 0};
};

// Copies bytes between memory of the host and of the queue's device, in any direction, after all
// work so far, and waits.
ATTEND_API void copy(void* to, const void* from, std::size_t bytes, Queue& queue);

}  // namespace attend::cuda
