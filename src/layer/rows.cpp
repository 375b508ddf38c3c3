// Leading dimensions made one.
#include "layer/rows.h"

#include "api/tensor_memory.h"
#include "layer/scratch.h"

namespace attend {
namespace {

std::int64_t row_count(const ConstTensorView& x) {
  const std::int64_t features = x.size(x.rank() - 1);
  return features == 0 ? 0 : x.count() / features;
}

Shape matrix_shape(const ConstTensorView& x) { return {row_count(x), x.size(x.rank() - 1)}; }

std::size_t bytes_of(const ConstTensorView& x) {
  return ScratchTensor{x.shape(), x.dtype()}.bytes();
}

// Of x as a matrix, if it can be seen as one: one stride leads from row to row if each dimension's
// is the product of the ones within it; those of size 1 do not count. side_by_side: and no column
// is one, either.
std::optional<Shape> matrix_strides(const ConstTensorView& x, bool side_by_side) {
  const int last = x.rank() - 1;
  if (x.count() == 0) return Shape{x.size(last), 1};
  std::int64_t stride = x.size(last), within = 1;
  for (int dim = last - 1; dim >= 0; within *= x.size(dim--)) {
    if (x.size(dim) == 1) continue;
    std::int64_t expected = 0;
    if (within == 1) stride = x.strides()[dim];
    if (__builtin_mul_overflow(stride, within, &expected) || x.strides()[dim] != expected)
      return std::nullopt;
  }
  if (x.size(last) == 1) return Shape{stride, 1};
  if (side_by_side && (x.strides()[last] != 1 || stride == 1)) return std::nullopt;
  return Shape{stride, x.strides()[last]};
}

}  // namespace

ReadRows rows_of(const ConstTensorView& x, const Where& where, bool side_by_side) {
  const std::optional<Shape> strides = matrix_strides(x, side_by_side);
  ReadRows result{Lease(where, strides ? 0 : bytes_of(x), x.device()), {}};
  if (!strides)
    copy_elements(x, TensorView(result.copy.data(), x.dtype(), x.shape(), x.device()), where);
  result.view = strides
                    ? ConstTensorView(x.data(), x.dtype(), matrix_shape(x), *strides, x.device())
                    : ConstTensorView(result.copy.data(), x.dtype(), matrix_shape(x), x.device());
  return result;
}

WrittenRows::WrittenRows(const TensorView& y, const Where& where, bool side_by_side)
    : WrittenRows(y, where, matrix_strides(y, side_by_side)) {}

WrittenRows::WrittenRows(const TensorView& y, const Where& where,
                         const std::optional<Shape>& strides)
    : y_(y), where_(where), made_(where, strides ? 0 : bytes_of(y), y.device()),
      view_(strides ? TensorView(y.data(), y.dtype(), matrix_shape(y), *strides, y.device())
                    : TensorView(made_.data(), y.dtype(), matrix_shape(y), y.device())) {}

void WrittenRows::finish() const {
  if (made_.data() == nullptr) return;
  if (y_.device() == Device{}) return copy_elements(made_.data(), y_);
  copy_elements(ConstTensorView(made_.data(), y_.dtype(), y_.shape(), y_.device()), y_, where_);
}

TensorView rows_of(const TensorView& view) {
  return {view.data(), view.dtype(), matrix_shape(view), view.device()};
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
