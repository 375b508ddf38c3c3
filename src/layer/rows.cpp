// Leading dimensions made one.
#include "layer/rows.h"

namespace attend {
namespace {

std::int64_t row_count(const ConstTensorView& x) {
  const std::int64_t features = x.size(x.rank() - 1);
  return features == 0 ? 0 : x.count() / features;
}

}  // namespace

Rows rows_of(const ConstTensorView& x) {
  const int last = x.rank() - 1;
  const std::int64_t rows = row_count(x);
  // One stride leads from row to row if each dimension's is the product of the ones within it;
  // those of size 1 do not count.
  std::int64_t stride = 0, within = 1;
  bool even = rows > 0;
  for (int dim = last - 1; dim >= 0 && even; within *= x.size(dim--)) {
    if (x.size(dim) == 1) continue;
    std::int64_t expected = 0;
    if (within == 1) stride = x.strides()[dim];
    even = !__builtin_mul_overflow(stride, within, &expected) && x.strides()[dim] == expected;
  }
  Rows result;
  if (even) {
    result.view =
        ConstTensorView(x.data(), x.dtype(), {rows, x.size(last)}, {stride, x.strides()[last]});
  } else {
    result.copy = Tensor::copy_of(x);
    result.view = rows_of(result.copy);
  }
  return result;
}

TensorView rows_of(const TensorView& view) {
  return {view.data(), view.dtype(), {row_count(view), view.size(view.rank() - 1)}};
}

Shape with_last(Shape shape, std::int64_t size) {
  shape[shape.rank() - 1] = size;
  return shape;
}

Shape index_of(const Shape& shape, std::int64_t n) {
  Shape index = shape;
  for (int dim = shape.rank(); dim-- > 0; n /= shape[dim]) index[dim] = n % shape[dim];
  return index;
}

}  // namespace attend
