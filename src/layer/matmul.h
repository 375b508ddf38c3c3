// The one matrix product of all layers.
#pragma once

#include "core/matrix.h"

#include <attend/context.h>

#include <span>

namespace attend {

//   c [m, n] = a [m, k] b [k, n] + row_bias [n]        (the bias may be none)
//
// Any strides: x W^T, dy W and dy^T x are this function with permuted views. All of one
// floating-point type. Sums are f32, for f64 tensors f64; 16-bit numbers are widened before and
// rounded once at the end. What a sum is, and what its bits depend on: core/matrix.h. c must not
// overlap the others. Arguments are the caller's to check.
struct Multiplication {
  ConstTensorView a, b, row_bias;
  TensorView c;
  const Tensor* packed = nullptr;  // packed(b), if there is one: then b is not read
};

// b [k, n] in the order in which the kernel reads it, widened.
Tensor packed(const ConstTensorView& b, const MatrixKernel& kernel = matrix_kernel());

// All of them, side by side; of one type. Tests may choose the kernel.
void matmul(std::span<const Multiplication> list, Context& context,
            const MatrixKernel& kernel = matrix_kernel());

inline void matmul(const ConstTensorView& a, const ConstTensorView& b,
                   const ConstTensorView& row_bias, const TensorView& c, Context& context) {
  const Multiplication one[] = {{a, b, row_bias, c}};
  matmul(one, context);
}

}  // namespace attend
