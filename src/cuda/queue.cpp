// What a program that has device memory calls: include/attend/cuda.h.
#include <attend/cuda.h>

#include "core/text.h"
#include "cuda/device.h"

#include <utility>

namespace attend::cuda {
namespace {

Gpu& gpu_for(const char* function, int device) {
  if (const std::string reason = Gpu::why_not(device); !reason.empty())
    throw Unsupported(text(function, ": this process ", reason));
  return *Gpu::find(device);
}

void check(const char* function, Device device, const Status& status) {
  if (status) return;
  const std::string words = text(function, ": ", device, " failed: ", status.what,
                                 status.earlier ? " (perhaps in an earlier call)" : "");
  if (status.kind == Status::Kind::out_of_memory) throw OutOfMemory(words);
  throw DeviceError(words);
}

StreamQueue& own_queue(const char* function, Queue& queue) {
  if (auto* const own = dynamic_cast<StreamQueue*>(&queue); own != nullptr) return *own;
  throw InvalidArgument(text(function, ": the queue is not one that make_queue() made"));
}

}  // namespace

std::string why_unavailable(int device) { return Gpu::why_not(device); }

int device_count() noexcept { return driver().devices; }

std::shared_ptr<Queue> make_queue(int device, void* stream) {
  return std::make_shared<StreamQueue>(gpu_for("make_queue", device), static_cast<Stream>(stream),
                                       QueueMemory{});
}

std::shared_ptr<Queue> make_queue(int device, void* stream, QueueMemory memory) {
  if (!memory.take || !memory.give)
    throw InvalidArgument("make_queue: the functions take and give of its memory must be given");
  return std::make_shared<StreamQueue>(gpu_for("make_queue", device), static_cast<Stream>(stream),
                                       std::move(memory));
}

void wait(Queue& queue) {
  StreamQueue& own = own_queue("wait", queue);
  const InContext in(own.gpu());
  check("wait", own.device(), status_of(driver().synchronize(own.stream())));
}

Memory::Memory(std::size_t bytes, int device) : bytes_(bytes), device_{Device::Kind::cuda, device} {
  const InContext in(gpu_for("memory", device));
  if (bytes == 0) return;
  Address address = 0;
  check("memory", device_, status_of(driver().allocate(&address, bytes)));
  data_ = pointer_to(address);
}

Memory::~Memory() {
  if (data_ == nullptr) return;
  const InContext in(*Gpu::find(device_.index));
  static_cast<void>(driver().free(reinterpret_cast<Address>(data_)));
}

Memory::Memory(Memory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)),
      device_(other.device_) {}

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(device_, other.device_);
  return *this;
}

void copy(void* to, const void* from, std::size_t bytes, Queue& queue) {
  StreamQueue& own = own_queue("copy", queue);
  check("copy", own.device(), own.copy(to, from, bytes));
}

}  // namespace attend::cuda
