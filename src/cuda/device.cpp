#include "cuda/device.h"

#include "core/text.h"
#include "cuda/modules.h"

#include <algorithm>
#include <memory>
#include <new>
#include <vector>

namespace attend::cuda {
namespace {

constexpr int kMajor = 75, kMinor = 76, kProcessors = 16;  // CUdevice_attribute
constexpr int kMaxDynamicSharedBytes = 8;                  // CUfunction_attribute
constexpr std::uintptr_t kMemoryAlignment = 256;           // of cuMemAllocAsync, too
constexpr Status kNoneOfTheCallers{Status::Kind::out_of_memory,
                                   "the caller's memory has none left"};

struct Gpus {
  std::mutex mutex;
  std::vector<std::unique_ptr<Gpu>> of;
};
Gpus& gpus() {
  static auto* const all = new Gpus;  // for ever: work may be under way at the end
  return *all;
}

}  // namespace

Gpu::Gpu(int index, int device) : index_(index) {
  const Driver& d = driver();
  int major = 0, minor = 0;
  static_cast<void>(d.attribute(&major, kMajor, device));
  static_cast<void>(d.attribute(&minor, kMinor, device));
  static_cast<void>(d.attribute(&processors_, kProcessors, device));
  capability_ = major * 10 + minor;
  if (d.retain(&context_, device) != 0) context_ = nullptr;
}

Gpu* Gpu::find(int index) noexcept try {
  const Driver& d = driver();
  if (!d.missing.empty() || index < 0 || index >= d.devices) return nullptr;
  Gpus& all = gpus();
  const std::lock_guard lock(all.mutex);
  all.of.resize(static_cast<std::size_t>(d.devices));
  std::unique_ptr<Gpu>& gpu = all.of[static_cast<std::size_t>(index)];
  int device = 0;
  if (gpu == nullptr && d.device(&device, index) == 0) gpu.reset(new Gpu(index, device));
  return gpu == nullptr || gpu->context_ == nullptr ? nullptr : gpu.get();
} catch (const std::bad_alloc&) {
  return nullptr;
}

std::string Gpu::why_not(int index) {
  const Driver& d = driver();
  if (!d.missing.empty()) return d.missing;
  if (index < 0 || index >= d.devices)
    return text("finds ", d.devices, d.devices == 1 ? " GPU, and" : " GPUs, and",
                " no cuda:", index);
  if (find(index) == nullptr) return text("cannot use cuda:", index);
  return {};
}

Status Gpu::find_function(std::string_view module, const char* name, int shared_bytes,
                          Function& function) noexcept try {
  const Driver& d = driver();
  const std::lock_guard lock(mutex_);
  Function& known = functions_[{module, name}];
  if (known == nullptr) {
    DriverModule& loaded = modules_[module];
    if (loaded == nullptr) {
      const Module* const end = kModules + module_count();
      const Module* const held =
          std::find_if(kModules, end, [&](const Module& any) { return any.name == module; });
      if (held == end) return {Status::Kind::failed, "this build has not the kernel's module"};
      if (const Result failed = d.load(&loaded, held->image); failed != 0) {
        loaded = nullptr;
        return status_of(failed);
      }
    }
    Function found = nullptr;
    if (const Result failed = d.function(&found, loaded, name); failed != 0)
      return status_of(failed);
    if (shared_bytes > 0)
      if (const Result failed = d.set(found, kMaxDynamicSharedBytes, shared_bytes); failed != 0)
        return status_of(failed);  // not known: the next call tries again
    known = found;
  }
  function = known;
  return {};
} catch (const std::bad_alloc&) {
  return {Status::Kind::out_of_memory, "the host has none"};
}

unsigned* Gpu::counter_of(Stream stream) noexcept try {
  constexpr std::size_t kAtOnce = 1024;
  const Driver& d = driver();
  int capturing = 0;
  unsigned long long id = 0;
  if (d.is_capturing(stream, &capturing) != 0 || capturing != 0 || d.stream_id(stream, &id) != 0)
    return nullptr;
  const std::lock_guard lock(mutex_);
  if (const auto known = counters_.find(id); known != counters_.end()) return known->second;
  if (spare_ == spare_end_) {
    Address memory = 0;
    if (d.allocate(&memory, kAtOnce * sizeof(unsigned)) != 0) return nullptr;
    spare_ = static_cast<unsigned*>(pointer_to(memory));
    spare_end_ = spare_ + kAtOnce;
  }
  if (d.fill_async(reinterpret_cast<Address>(spare_), 0, sizeof(unsigned), stream) != 0)
    return nullptr;
  return counters_[id] = spare_++;
} catch (const std::bad_alloc&) {
  return nullptr;
}

void* StreamQueue::take(std::size_t bytes, Status& why) noexcept try {
  if (memory_.take) {
    void* const memory = memory_.take(bytes);
    if (memory == nullptr) {
      why = kNoneOfTheCallers;
    } else if (reinterpret_cast<std::uintptr_t>(memory) % kMemoryAlignment != 0) {
      why = {Status::Kind::failed, "the caller's memory is not at a multiple of 256 bytes"};
      give(memory, bytes);
    } else {
      why = {};
      return memory;
    }
    return nullptr;
  }
  const InContext in(gpu_);
  Address memory = 0;
  why = status_of(driver().allocate_async(&memory, std::max<std::size_t>(bytes, 1), stream_));
  return why ? pointer_to(memory) : nullptr;
} catch (...) {
  why = kNoneOfTheCallers;
  return nullptr;
}

void StreamQueue::give(void* memory, std::size_t bytes) noexcept try {
  if (memory_.give) return memory_.give(memory, bytes);
  const InContext in(gpu_);
  static_cast<void>(driver().free_async(reinterpret_cast<Address>(memory), stream_));
} catch (...) {
  return;  // the caller's own function threw
}

Status StreamQueue::copy(void* to, const void* from, std::size_t bytes) noexcept {
  if (bytes == 0) return {};
  const InContext in(gpu_);
  if (const Result failed = driver().copy_async(reinterpret_cast<Address>(to),
                                                reinterpret_cast<Address>(from), bytes, stream_);
      failed != 0)
    return status_of(failed);
  return status_of(driver().synchronize(stream_));
}

Status StreamQueue::start(const Launch& launch, const void* arguments) noexcept {
  if (launch.blocks == 0) return {};
  if (launch.blocks > kMostBlocks)
    return {Status::Kind::failed, "more than 2^31 - 1 blocks of threads"};
  const InContext in(gpu_);
  Function function = nullptr;
  if (const Status status =
          gpu_.find_function(launch.module, launch.name,
                             std::max(launch.shared_bytes, launch.most_shared_bytes), function);
      !status)
    return status;
  void* list[] = {const_cast<void*>(arguments)};
  const auto blocks = static_cast<unsigned>(launch.blocks);
  return status_of(driver().launch(function, blocks, 1, 1, launch.threads, 1, 1,
                                   static_cast<unsigned>(launch.shared_bytes), stream_, list,
                                   nullptr));
}

Status StreamQueue::start_round(const Launch& launch, const void* arguments) noexcept {
  Launch limited = launch;
  limited.blocks = std::min(launch.blocks, kMostBlocks);
  return start(limited, arguments);
}

Status StreamQueue::fill(void* memory, unsigned char value, std::size_t bytes) noexcept {
  const InContext in(gpu_);
  return status_of(driver().fill_async(reinterpret_cast<Address>(memory), value, bytes, stream_));
}

}  // namespace attend::cuda
