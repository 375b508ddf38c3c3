// The one matrix product of all layers.
#pragma once

#include "core/product.h"

#include <attend/context.h>
#include <attend/feed_forward.h>

#include <optional>
#include <span>

namespace attend {

struct PackedWeights;

//   c [m, n] = a [m, k] b [k, n] + row_bias [n]        (the bias may be none)
//
// Any strides: x W^T, dy W and dy^T x are this function with permuted views. All of one
// floating-point type, but b may be i8 with scales (and one of its strides 1): c = (a b) * scales +
// row_bias. Sums are f32, for f64 tensors f64; 16-bit numbers are widened, unless the row
// multiplies them as they are, and rounded once at the end. What a sum is, and what its bits depend
// on: core/product.h. c must not overlap the others. Arguments are the caller's to check.
struct Multiplication {
  ConstTensorView a, b, row_bias;
  TensorView c;
  const PackedWeights* packed = nullptr;  // of b, if there are: then b is not read
  ConstTensorView scales{};               // [n], where b is weights of 8 bits: i8
  // At the end c = act(c), or, with a gate [m, n], silu(gate) * c; then c = c + residual [m, n].
  // Each is rounded as if it were done after the product. Both have their columns side by side, and
  // so must c then.
  std::optional<Activation> activation{};
  ConstTensorView gate{}, residual{};
};

// b [k, n] in its type (f16, of a row that has no instruction for it, in f32), in the order in
// which a row of the kernel table reads it; and that row, which no other can take the place of.
struct PackedWeights {
  const Kernel<Product>* row;
  Tensor data;
};
PackedWeights packed(const ConstTensorView& b, const Kernel<Product>& row, const Where& where);

// The row for products of host tensors: the same whatever is done at their end, so that packing b
// changes no bit.
const Kernel<Product>& product_row(DType type, bool bias, const Where& where,
                                   bool eight_bit_weights = false);

// On a device: one product, its ends with it, by a row that takes this problem.
ProductProblem device_problem(const Multiplication& product);
void launch_product(const Kernel<Product>& row, const Multiplication& product, const Where& where);

// All of them, side by side; of one type and device.
void matmul(std::span<const Multiplication> list, const Where& where);

inline void matmul(const ConstTensorView& a, const ConstTensorView& b,
                   const ConstTensorView& row_bias, const TensorView& c, const Where& where) {
  const Multiplication one[] = {{.a = a, .b = b, .row_bias = row_bias, .c = c}};
  matmul(one, where);
}

}  // namespace attend
