// The NVIDIA driver, loaded when it is first asked for: one build serves machines with and without
// it. Types are the driver's own in all but name (cuda.h), so that no toolkit is needed.
#pragma once

#include "core/queue.h"

#include <cstddef>
#include <cstdint>
#include <string>

namespace attend::cuda {

using Result = int;  // 0: all is well
using DriverContext = struct DriverContextTag*;
using DriverModule = struct DriverModuleTag*;
using Function = struct FunctionTag*;
using Stream = struct StreamTag*;
using Address = std::uint64_t;  // of the device
inline void* pointer_to(Address address) noexcept {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): so the driver gives them
  return reinterpret_cast<void*>(address);
}

// Functions of libcuda.so.1, by the names that it exports.
#define ATTEND_DRIVER_FUNCTIONS(use)                                                               \
  use(init, "cuInit", unsigned flags) use(version, "cuDriverGetVersion", int* version) use(        \
      count, "cuDeviceGetCount", int* count) use(device, "cuDeviceGet", int* device, int ordinal)  \
      use(attribute, "cuDeviceGetAttribute", int* value, int attribute, int device) use(           \
          retain, "cuDevicePrimaryCtxRetain", DriverContext* context,                              \
          int device) use(push, "cuCtxPushCurrent_v2", DriverContext context)                      \
          use(pop, "cuCtxPopCurrent_v2", DriverContext* context) use(                              \
              load, "cuModuleLoadData", DriverModule* module,                                      \
              const void* image) use(function, "cuModuleGetFunction", Function* function,          \
                                     DriverModule module, const char* name)                        \
              use(set, "cuFuncSetAttribute", Function function, int attribute, int value) use(     \
                  launch, "cuLaunchKernel", Function function, unsigned grid_x, unsigned grid_y,   \
                  unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,           \
                  unsigned shared, Stream stream, void** arguments,                                \
                  void** extra) use(synchronize, "cuStreamSynchronize", Stream stream)             \
                  use(allocate, "cuMemAlloc_v2", Address* memory, std::size_t bytes) use(          \
                      free, "cuMemFree_v2", Address memory) use(allocate_async, "cuMemAllocAsync", \
                                                                Address* memory,                   \
                                                                std::size_t bytes, Stream stream)  \
                      use(free_async, "cuMemFreeAsync", Address memory, Stream stream)             \
                          use(copy_async, "cuMemcpyAsync", Address to, Address from,               \
                              std::size_t bytes, Stream stream)                                    \
                              use(fill_async, "cuMemsetD8Async", Address to, unsigned char value,  \
                                  std::size_t bytes, Stream stream)                                \
                                  use(encode, "cuTensorMapEncodeTiled", void* map, int type,       \
                                      std::uint32_t rank, void* data, const std::uint64_t* sizes,  \
                                      const std::uint64_t* strides, const std::uint32_t* box,      \
                                      const std::uint32_t* steps, int interleave, int swizzle,     \
                                      int promotion, int fill)                                     \
                                      use(stream_id, "cuStreamGetId", Stream stream,               \
                                          unsigned long long* id)                                  \
                                          use(is_capturing, "cuStreamIsCapturing", Stream stream,  \
                                              int* status) use(error_string, "cuGetErrorString",   \
                                                               Result error, const char** text)

struct Driver {
#define ATTEND_MEMBER(name, symbol, ...) Result (*name)(__VA_ARGS__) = nullptr;
  ATTEND_DRIVER_FUNCTIONS(ATTEND_MEMBER)
#undef ATTEND_MEMBER
  std::string missing;  // why there is none; empty: it can be called
  int devices = 0;
};

const Driver& driver();

// What the driver said, in its words.
Status status_of(Result result) noexcept;

}  // namespace attend::cuda
