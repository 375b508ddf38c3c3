// What the driver's cuTensorMapEncodeTiled() makes: a description of a tensor for the copy engine.
// A type of its own, so that no header of the toolkit is needed; of the same size and alignment.
#pragma once

namespace attend::cuda {

struct alignas(128) TensorMap {
  unsigned long long words[16];
};

}  // namespace attend::cuda
