// Tensors [..., features] as matrices [rows, features].
#pragma once

#include <attend/tensor.h>

namespace attend {

// The matrix is a view of x where its strides allow that, else of a copy.
struct Rows {
  Tensor copy;
  ConstTensorView view;
};
Rows rows_of(const ConstTensorView& x);

// Of a tensor that the layer itself made.
TensorView rows_of(Tensor& y);

// The shape of x with another last dimension.
Shape with_last(Shape shape, std::int64_t size);

}  // namespace attend
