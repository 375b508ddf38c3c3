// Sums of tensors, for residuals and for gradients that meet.
#pragma once

#include <attend/context.h>

namespace attend {

// to += what, of one shape and floating-point type; each element is rounded once.
void add_to(Tensor& to, const Tensor& what, Context& context);

}  // namespace attend
