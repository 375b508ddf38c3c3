// The one matrix product of all layers.
#pragma once

#include <attend/context.h>

namespace attend {

//   c [m, n] = a [m, k] b [k, n] + row_bias [n]        (the bias may be none)
//
// Any strides: x W^T, dy W and dy^T x are this function with permuted views. All of one
// floating-point type. Sums are f32, for f64 tensors f64; 16-bit numbers are widened on load and
// rounded once on store. Every element of c is the sum over k in ascending order in blocks of 256,
// the block sums added in order, the bias last: its bits depend on its row of a, its column of b
// and its bias alone. c must not overlap the others. Arguments are the caller's to check.
void matmul(const ConstTensorView& a, const ConstTensorView& b, const ConstTensorView& row_bias,
            const TensorView& c, Context& context);

}  // namespace attend
