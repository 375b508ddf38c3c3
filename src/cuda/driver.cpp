#include "cuda/driver.h"

#include "core/text.h"
#include "cuda/modules.h"

#include <dlfcn.h>

namespace attend::cuda {
namespace {

// Codes of the driver that mean something to us (CUresult).
constexpr Result kOutOfMemory = 2, kFirstOfEarlierWork = 700, kLastOfEarlierWork = 799;

Driver loaded() {
  Driver d;
  if (module_count() == 0) {
    d.missing = "was built without kernels for GPUs (ATTEND_CUDA)";
    return d;
  }
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    d.missing = "finds no NVIDIA driver (libcuda.so.1)";
    return d;
  }
#define ATTEND_LOAD(name, symbol, ...)                                        \
  d.name = reinterpret_cast<Result (*)(__VA_ARGS__)>(dlsym(library, symbol)); \
  if (d.name == nullptr && d.missing.empty())                                 \
    d.missing = text("finds an NVIDIA driver without ", symbol, ", too old for it");
  ATTEND_DRIVER_FUNCTIONS(ATTEND_LOAD)
#undef ATTEND_LOAD
  if (!d.missing.empty()) return d;
  if (const Result failed = d.init(0); failed != 0) {
    const char* words = "an error without a name";
    static_cast<void>(d.error_string(failed, &words));
    d.missing = text("finds no GPU: ", words);
    return d;
  }
  int version = 0;
  static_cast<void>(d.version(&version));
  if (version < toolkit_version() / 1000 * 1000) {
    d.missing = text("finds an NVIDIA driver for CUDA ", version / 1000, ".", version % 1000 / 10,
                     "; its kernels need ", toolkit_version() / 1000, ".0");
    return d;
  }
  if (d.count(&d.devices) != 0 || d.devices == 0) d.missing = "finds no GPU";
  return d;
}

}  // namespace

const Driver& driver() {
  static const Driver* const only = new Driver(loaded());  // lives for ever: so do its errors
  return *only;
}

Status status_of(Result result) noexcept {
  if (result == 0) return {};
  const char* words = "an error without a name";
  if (driver().error_string != nullptr) static_cast<void>(driver().error_string(result, &words));
  const bool earlier = result >= kFirstOfEarlierWork && result <= kLastOfEarlierWork;
  return {result == kOutOfMemory ? Status::Kind::out_of_memory : Status::Kind::failed, words,
          earlier};
}

}  // namespace attend::cuda
