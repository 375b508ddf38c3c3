// A tensor as the kernels know it.
#pragma once

namespace attend::cuda {

// What the driver's cuTensorMapEncodeTiled() makes: a description of a tensor for the copy engine.
// A type of its own, so that no header of the toolkit is needed; of the same size and alignment.
struct alignas(128) TensorMap {
  unsigned long long words[16];
};

// The same tensor without the copy engine: strides in elements, innermost 1.
struct Rows {
  void* data;
  long long batch, head, row;
};

}  // namespace attend::cuda
