#include "layer/elementwise.h"

#include "layer/rows.h"

namespace attend {

void add(const ConstTensorView& a, const ConstTensorView& b, const TensorView& y,
         const Where& where) {
  const Rows first = rows_of(a, where), second = rows_of(b ? b : a, where);
  const WrittenRows written(y, where);
  const std::int64_t row = written.view().strides()[0], column = written.view().strides()[1],
                     columns = written.view().size(1);
  with_type(y.dtype(), [&]<class T>(T) {
    const auto at = [](const ConstTensorView& x, std::int64_t r, std::int64_t c) {
      return static_cast<const T*>(x.data())[r * x.strides()[0] + c * x.strides()[1]];
    };
    T* const to = static_cast<T*>(written.view().data());
    for_row_blocks(written.view().size(0), columns, where, [&](auto, auto begin, auto end) {
      for (std::int64_t r = begin; r < end; ++r)
        for (std::int64_t c = 0; c < columns; ++c) {
          const T x = at(first.view, r, c);
          to[r * row + c * column] = b ? sum(x, at(second.view, r, c)) : x;
        }
    });
  });
  written.finish();
}

void add_to(Tensor& to, const Tensor& what, const Where& where) {
  constexpr std::int64_t kRow = 256;
  const std::int64_t count = to.count();
  with_type(to.dtype(), [&]<class T>(T) {
    auto* total = static_cast<T*>(to.view().data());
    const auto* more = static_cast<const T*>(what.view().data());
    for_row_blocks((count + kRow - 1) / kRow, kRow, where,
                   [&](std::int64_t, std::int64_t begin, std::int64_t end) {
                     for (std::int64_t n = begin * kRow; n < std::min(end * kRow, count); ++n)
                       total[n] = sum(total[n], more[n]);
                   });
  });
}

}  // namespace attend
