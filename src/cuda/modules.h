// The kernels of GPUs that this build holds: what nvcc made of the .cu files, as bytes.
#pragma once

#include <cstddef>
#include <string_view>

namespace attend::cuda {

struct Module {
  std::string_view name;  // "portable_forward", "forward_bf16_128"
  const unsigned char* image;
};

// Made when the project is built (cmake/cuda.cmake): all of them, or none.
extern const Module kModules[];
std::size_t module_count() noexcept;
int toolkit_version() noexcept;  // 13000: CUDA 13.0; 0: none

}  // namespace attend::cuda
