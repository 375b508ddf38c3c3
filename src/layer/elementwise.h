// Sums of tensors, for residuals and for gradients that meet.
#pragma once

#include <attend/tensor.h>

namespace attend {

// a + b, of one shape and floating-point type; each element is rounded once.
Tensor sum_of(const Tensor& a, const Tensor& b);

}  // namespace attend
