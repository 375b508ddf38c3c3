// A GPU of this process, and queues of it: streams of the driver.
#pragma once

#include "cuda/driver.h"

#include <attend/cuda.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

namespace attend::cuda {

// A device in its primary context, which the CUDA runtime and frameworks use, too.
class Gpu {
 public:
  // Null if there is none: why_not() says why.
  static Gpu* find(int index) noexcept;
  static std::string why_not(int index);

  int index() const noexcept { return index_; }
  int capability() const noexcept { return capability_; }  // 90: sm_90
  int processors() const noexcept { return processors_; }
  DriverContext context() const noexcept { return context_; }

  // A kernel of one of the modules, which may have so much shared memory of its own.
  Status find_function(std::string_view module, const char* name, int shared_bytes,
                       Function& function) noexcept;

  // A number of the device that belongs to a stream, for kernels that find 0 in it and leave 0: one
  // after the other they can share it. Null: there is none, or a graph is being recorded, whose
  // kernels may run beside those of any stream.
  unsigned* counter_of(Stream stream) noexcept;

 private:
  Gpu(int index, int device);

  int index_;
  int capability_ = 0, processors_ = 0;
  DriverContext context_ = nullptr;
  std::mutex mutex_;  // of what follows
  std::map<std::string_view, DriverModule> modules_;
  std::map<std::pair<std::string_view, std::string_view>, Function> functions_;
  std::map<unsigned long long, unsigned*>
      counters_;  // by the stream's id, which is never used again
  unsigned *spare_ = nullptr, *spare_end_ = nullptr;
};

// The device's context for the time of a block.
class InContext {
 public:
  explicit InContext(const Gpu& gpu) noexcept { static_cast<void>(driver().push(gpu.context())); }
  ~InContext() {
    DriverContext context = nullptr;
    static_cast<void>(driver().pop(&context));
  }
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;
};

// Blocks of threads that a device takes at once.
inline constexpr std::int64_t kMostBlocks = std::numeric_limits<std::int32_t>::max();

// How a kernel is started.
struct Launch {
  std::string_view module;
  const char* name;
  std::int64_t blocks;
  unsigned threads;
  int shared_bytes = 0;
  int most_shared_bytes = 0;  // of any launch of the kernel, if they differ
};

class StreamQueue final : public Queue {
 public:
  // memory: of the caller's, or its functions are none.
  StreamQueue(Gpu& gpu, Stream stream, QueueMemory memory) noexcept
      : gpu_(gpu), stream_(stream), memory_(std::move(memory)) {}

  Device device() const noexcept override { return {Device::Kind::cuda, gpu_.index()}; }
  void* take(std::size_t bytes, Status& why) noexcept override;
  void give(void* memory, std::size_t bytes) noexcept override;
  Status copy(void* to, const void* from, std::size_t bytes) noexcept override;

  Gpu& gpu() const noexcept { return gpu_; }
  Stream stream() const noexcept { return stream_; }
  bool has_callers_memory() const noexcept { return static_cast<bool>(memory_.take); }

  // Of one struct of arguments, which is copied. Nothing is started for no blocks; more than
  // kMostBlocks are refused.
  Status start(const Launch& launch, const void* arguments) noexcept;
  // Of a kernel that goes round (for n = blockIdx.x; n < all; n += gridDim.x): of any number.
  Status start_round(const Launch& launch, const void* arguments) noexcept;
  Status fill(void* memory, unsigned char value, std::size_t bytes) noexcept;

 private:
  Gpu& gpu_;
  Stream stream_;
  QueueMemory memory_;
};

}  // namespace attend::cuda
