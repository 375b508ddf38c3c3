// A driver of NVIDIA's name without a GPU: memory is the host's, and kernels do nothing. The
// environment's FAKE_DRIVER says what it fails at, once: whoever asks again finds it well. Built
// with ATTEND_OLD_DRIVER it lacks what came with CUDA 12. A test that is linked with it hears of
// launches and memory (launches.h).
#include "fake_driver/launches.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>

namespace {

constexpr int kInvalidValue = 1, kOutOfMemory = 2, kNoDevice = 100;

bool says(const char* word) {
  const char* const said = std::getenv("FAKE_DRIVER");
  return said != nullptr && std::strcmp(said, word) == 0;
}
// `error` for the first time that the word is asked for, and 0 then.
int once(const char* word, int error) {
  static bool failed = false;
  if (failed || !says(word)) return 0;
  failed = true;
  return error;
}

int shared_allowed = 48 << 10;  // of any kernel, unless an attribute has said more

attend::test::FakeListener* listener = nullptr;

void* at(std::uint64_t address) { return reinterpret_cast<void*>(address); }
int allocated(std::uint64_t* memory, std::size_t bytes) {
  *memory = reinterpret_cast<std::uint64_t>(std::malloc(bytes));
  return *memory == 0 ? kOutOfMemory : 0;
}

}  // namespace

extern "C" {

void listen_to_fake_driver(attend::test::FakeListener* to) { listener = to; }

int cuInit(unsigned) { return says("no_gpu") ? kNoDevice : 0; }
int cuDriverGetVersion(int* version) {
  *version = says("old") ? 11080 : 99000;
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = says("none") ? 0 : 1;
  return 0;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  constexpr int kMajor = 75, kMinor = 76;
  *value = attribute == kMajor ? 9 : attribute == kMinor ? 0 : 4;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int) {
  *context = &shared_allowed;
  return says("no_context") ? kOutOfMemory : 0;
}
int cuCtxPushCurrent_v2(void*) { return 0; }
int cuCtxPopCurrent_v2(void**) { return 0; }
int cuModuleLoadData(void** module, const void* image) {
  *module = const_cast<void*>(image);
  return once("no_module", kOutOfMemory);
}
int cuModuleGetFunction(void** function, void*, const char* name) {
  static std::set<std::string> names;
  *function = const_cast<char*>(names.insert(name).first->c_str());
  return 0;
}
int cuFuncSetAttribute(void*, int, int value) {
  if (const int failed = once("no_shared_memory", kInvalidValue); failed != 0) return failed;
  if (value > shared_allowed) shared_allowed = value;
  return 0;
}
int cuLaunchKernel(void* function, unsigned blocks, unsigned, unsigned, unsigned, unsigned,
                   unsigned, unsigned shared, void*, void** arguments, void**) {
  if (const int failed = once("no_launch", kOutOfMemory); failed != 0) return failed;
  if (listener != nullptr)
    listener->launched(static_cast<const char*>(function), blocks, arguments[0]);
  return static_cast<int>(shared) > shared_allowed ? kInvalidValue : 0;
}
int cuStreamSynchronize(void*) { return 0; }
int cuMemAlloc_v2(std::uint64_t* memory, std::size_t bytes) { return allocated(memory, bytes); }
int cuMemFree_v2(std::uint64_t memory) {
  std::free(at(memory));
  return 0;
}
int cuMemAllocAsync(std::uint64_t* memory, std::size_t bytes, void*) {
  if (const int failed = once("no_memory", kOutOfMemory); failed != 0) return failed;
  if (listener != nullptr) listener->allocated(bytes);
  return allocated(memory, bytes);
}
int cuMemFreeAsync(std::uint64_t memory, void*) {
  std::free(at(memory));
  return 0;
}
int cuMemcpyAsync(std::uint64_t to, std::uint64_t from, std::size_t bytes, void*) {
  std::memcpy(at(to), at(from), bytes);
  return 0;
}
int cuMemsetD8Async(std::uint64_t to, unsigned char value, std::size_t bytes, void*) {
  std::memset(at(to), value, bytes);
  return 0;
}
#ifndef ATTEND_OLD_DRIVER
int cuTensorMapEncodeTiled(void*, int, std::uint32_t, void*, const std::uint64_t*,
                           const std::uint64_t*, const std::uint32_t*, const std::uint32_t*, int,
                           int, int, int) {
  return 0;
}
int cuStreamGetId(void*, unsigned long long* id) {
  *id = 1;
  return 0;
}
#endif
int cuStreamIsCapturing(void*, int* status) {
  *status = 0;
  return 0;
}
int cuGetErrorString(int error, const char** text) {
  *text = error == kOutOfMemory ? "out of memory"
          : error == kNoDevice  ? "no CUDA-capable device is detected"
                                : "invalid argument";
  return 0;
}

}  // extern "C"
