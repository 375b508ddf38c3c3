// Sums of tensors, for residuals and for gradients that meet.
#pragma once

#include "core/strided.h"

#include <attend/context.h>

namespace attend {

// The sum of two numbers of one type, rounded once. (f32: its own sum is that of f64, rounded.)
inline double sum(double a, double b) noexcept { return a + b; }
inline float sum(float a, float b) noexcept { return a + b; }
template <class T>
T sum(T a, T b) noexcept {
  return T(widened(a) + widened(b));
}

// y = a + b, or a without b; of one shape and floating-point type, with any strides. y must not
// overlap the others.
void add(const ConstTensorView& a, const ConstTensorView& b, const TensorView& y,
         const Where& where);

// to += what, of one shape and floating-point type; each element is rounded once.
void add_to(Tensor& to, const Tensor& what, const Where& where);

}  // namespace attend
