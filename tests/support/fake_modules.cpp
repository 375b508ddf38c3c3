// Modules that are none, in place of those that the build holds (src/cuda/modules.h): a driver that
// is none loads them. So a test of the host's side of src/cuda needs neither a GPU nor nvcc.
#include "cuda/modules.h"

namespace attend::cuda {
namespace {

constexpr unsigned char kImage[] = {0};

}  // namespace

#define ATTEND_FAKE(operation, type)                                         \
  {operation "_" type "_64", kImage}, {operation "_" type "_128", kImage}, { \
    operation "_" type "_256", kImage                                        \
  }
constinit const Module kModules[] = {
    {"clamp", kImage},
    {"portable_forward", kImage},
    {"portable_pairs", kImage},
    {"portable_backward", kImage},
    {"portable_bias", kImage},
    {"portable_merge", kImage},
    {"portable_elements", kImage},
    {"portable_norm", kImage},
    {"portable_product", kImage},
    ATTEND_FAKE("forward", "bf16"),
    ATTEND_FAKE("forward", "f16"),
    ATTEND_FAKE("forward", "i8"),
    ATTEND_FAKE("backward", "bf16"),
    ATTEND_FAKE("backward", "f16"),
    ATTEND_FAKE("one_query", "bf16"),
    ATTEND_FAKE("one_query", "f16"),
    ATTEND_FAKE("one_query", "i8"),
    {"", nullptr},
};
std::size_t module_count() noexcept { return sizeof(kModules) / sizeof(Module) - 1; }
int toolkit_version() noexcept { return 13000; }

}  // namespace attend::cuda
