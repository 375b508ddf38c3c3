// Sums of tensors, for residuals and for gradients that meet.
#pragma once

#include "layer/numbers.h"

namespace attend {

// to[n] = a[n] + b[n], of elements of one floating-point type that lie side by side; each is
// rounded once. `to` may be a. (16-bit numbers have so few digits that a sum rounded to f32 first
// is the same.)
class Sums {
 public:
  Sums(DType type, const Where& where) : type_(type), numbers_(type, where) {}
  void operator()(const void* a, const void* b, std::int64_t count, void* to) const noexcept;

 private:
  DType type_;
  Numbers<float> numbers_;
};

// y = a + b, or a without b; of one shape and floating-point type, with any strides. y must not
// overlap the others.
void add(const ConstTensorView& a, const ConstTensorView& b, const TensorView& y,
         const Where& where);

// to += what, of one shape and floating-point type; each element is rounded once.
void add_to(Tensor& to, const Tensor& what, const Where& where);

}  // namespace attend
