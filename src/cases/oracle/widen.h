// Tensors of any type and strides as plain row-major arrays. Every conversion to double is exact.
#pragma once

#include <attend/tensor.h>

#include <vector>

namespace attend::oracle {

std::vector<double> widen(const ConstTensorView& view);
std::vector<std::int64_t> integers(const ConstTensorView& view);

// Rounded to the type as a store would, and widened again.
double round_to(DType type, double value);

// Half the distance between 1 and the next number.
double unit_roundoff(DType type);

// Calls visit(number, offset) for every element in row-major order.
template <class Visit>
void for_each_element(const Shape& shape, const Shape& strides, Visit&& visit) {
  const std::int64_t count = element_count(shape);
  Shape index = shape;
  for (int dim = 0; dim < shape.rank(); ++dim) index[dim] = 0;
  std::int64_t offset = 0;
  for (std::int64_t n = 0; n < count; ++n) {
    visit(n, offset);
    for (int dim = shape.rank() - 1; dim >= 0; --dim) {
      offset += strides[dim];
      if (++index[dim] < shape[dim]) break;
      offset -= index[dim] * strides[dim];
      index[dim] = 0;
    }
  }
}

}  // namespace attend::oracle
