// Tensors [..., features] as matrices [rows, features].
#pragma once

#include "api/lease.h"
#include "core/row_operations.h"
#include "layer/numbers.h"

#include <attend/context.h>

#include <algorithm>
#include <functional>
#include <optional>

namespace attend {

// The matrix is a view of x where its strides allow that, else of a copy; with `side_by_side` its
// features are so.
struct ReadRows {
  Lease copy;
  ConstTensorView view;
};
ReadRows rows_of(const ConstTensorView& x, const Where& where, bool side_by_side = false);

// The matrix that is written for y. Where the strides of y do not allow a view of it, it is memory
// of the Context, and finish() copies it.
class WrittenRows {
 public:
  WrittenRows(const TensorView& y, const Where& where, bool side_by_side = false);
  const TensorView& view() const noexcept { return view_; }
  void finish() const;

 private:
  WrittenRows(const TensorView& y, const Where& where, const std::optional<Shape>& strides);

  TensorView y_;
  Where where_;
  Lease made_;
  TensorView view_;
};

// Where row r of a matrix begins.
inline const std::byte* row_at(const ConstTensorView& matrix, std::int64_t r) noexcept {
  return static_cast<const std::byte*>(matrix.data()) +
         r * matrix.strides()[0] * size_of(matrix.dtype());
}
inline std::byte* row_at(const TensorView& matrix, std::int64_t r) noexcept {
  return const_cast<std::byte*>(row_at(static_cast<const ConstTensorView&>(matrix), r));
}

// Of a contiguous tensor.
TensorView rows_of(const TensorView& y);
inline TensorView rows_of(Tensor& y) { return rows_of(y.view()); }

// The index of element n, counted row by row.
Shape index_of(const Shape& shape, std::int64_t n);

// The shape of x with another last dimension.
Shape with_last(Shape shape, std::int64_t size);

// to[begin + c] = the sum of matrix[place(0), c], ..., matrix[place(count - 1), c], in this order,
// in f64.
template <class Place>
void sum_rows(const ConstTensorView& matrix, std::int64_t count, Place place,
              const Numbers<double>& numbers, void* to, std::int64_t begin) noexcept {
  constexpr std::int64_t kColumns = 256;  // at a time: their sums stay close
  const std::int64_t row = matrix.strides()[0], column = matrix.strides()[1];
  for (std::int64_t c = 0; c < matrix.size(1); c += kColumns) {
    const std::int64_t columns = std::min(kColumns, matrix.size(1) - c);
    double sums[kColumns] = {}, more[kColumns];
    for (std::int64_t n = 0; n < count; ++n) {
      numbers.load(matrix.data(), place(n) * row + c * column, column, columns, more);
      for (std::int64_t x = 0; x < columns; ++x) sums[x] += more[x];
    }
    numbers.store(sums, columns, to, begin + c, 1);
  }
}

// Calls body(block, begin, end) for every kBlockRows rows, on many threads where that is worth it.
// body must not throw.
template <class Body>
void for_row_blocks(std::int64_t rows, std::int64_t features, const Where& where, Body body) {
  constexpr std::int64_t kAlone = 1 << 14;  // elements that are not worth a second thread
  const auto run = [&](std::int64_t block) {
    body(block, block * kBlockRows, std::min((block + 1) * kBlockRows, rows));
  };
  const std::int64_t blocks = block_count(rows);
  if (rows > kAlone / features) return where.context().parallel_for(blocks, std::ref(run));
  for (std::int64_t block = 0; block < blocks; ++block) run(block);
}

}  // namespace attend
