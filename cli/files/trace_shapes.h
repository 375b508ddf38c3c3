// Whether the tensors of a saved trace fit each other. A file may hold anything.
#pragma once

#include <attend/tensor.h>

#include <functional>
#include <string>

namespace attend::cli {

using FindTensor = std::function<const Tensor*(const std::string& name)>;

// Throws a UsageError that begins with `file`.
void check_trace_shapes(const std::string& file, const FindTensor& find);

}  // namespace attend::cli
