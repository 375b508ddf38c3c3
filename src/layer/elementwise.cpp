#include "layer/elementwise.h"

#include "layer/flat.h"
#include "layer/run_rows.h"

#include <cstring>

namespace attend {

void Sums::operator()(const void* a, const void* b, std::int64_t count, void* to) const noexcept {
  with_type(type_, [&]<class T>(T) {
    if constexpr (sizeof(T) == 2) {
      for_pieces(count, [&](std::int64_t begin, std::int64_t some) {
        float sums[kPiece], more[kPiece];
        numbers_.load(a, begin, 1, some, sums);
        numbers_.load(b, begin, 1, some, more);
        for (std::int64_t n = 0; n < some; ++n) sums[n] += more[n];
        numbers_.store(sums, some, to, begin, 1);
      });
    } else {
      const T *const x = static_cast<const T*>(a), *const y = static_cast<const T*>(b);
      T* const sums = static_cast<T*>(to);
      if (sums == x)  // apart from the others: compilers see that it is one array
        for (std::int64_t n = 0; n < count; ++n) sums[n] += y[n];
      else
        for (std::int64_t n = 0; n < count; ++n) sums[n] = x[n] + y[n];
    }
  });
}

namespace {

// On a device: y = a + b, of rows. y may be a.
void launch_add(const ConstTensorView& a, const ConstTensorView& b, const TensorView& y,
                const Where& where) {
  const auto rows = [](const ConstTensorView& x) {
    return x ? AddCall::Rows{x.data(), x.strides()[0], x.strides()[1]} : AddCall::Rows();
  };
  run_rows<Add>({.device = y.device(), .type = y.dtype()},
                {.features = y.size(1),
                 .a = rows(a),
                 .b = rows(b),
                 .y = y.data(),
                 .y_row = y.strides()[0],
                 .y_column = y.strides()[1]},
                y.size(0), y.size(1), where);
}

}  // namespace

void add(const ConstTensorView& a, const ConstTensorView& b, const TensorView& y,
         const Where& where) {
  if (y.device() != Device{}) {
    const ReadRows left = rows_of(a, where);
    const std::optional<ReadRows> right = b ? std::optional(rows_of(b, where)) : std::nullopt;
    const WrittenRows to(y, where);
    launch_add(left.view, right ? right->view : ConstTensorView(), to.view(), where);
    return to.finish();
  }
  const ReadRows first = rows_of(a, where, true), second = rows_of(b ? b : a, where, true);
  const WrittenRows written(y, where, true);
  const Sums sums(y.dtype(), where);
  const std::int64_t columns = written.view().size(1), size = size_of(y.dtype());
  for_row_blocks(written.view().size(0), columns, where, [&](auto, auto begin, auto end) {
    for (std::int64_t r = begin; r < end; ++r) {
      std::byte* const to = row_at(written.view(), r);
      if (b) sums(row_at(first.view, r), row_at(second.view, r), columns, to);
      else std::memcpy(to, row_at(first.view, r), static_cast<std::size_t>(columns * size));
    }
  });
  written.finish();
}

void add_to(Tensor& to, const Tensor& what, const Where& where) {
  if (to.device() != Device{})
    return launch_add(rows_of(to), rows_of(const_cast<Tensor&>(what)), rows_of(to), where);
  constexpr std::int64_t kRow = 256;
  const std::int64_t count = to.count(), size = size_of(to.dtype());
  const Sums sums(to.dtype(), where);
  auto* const total = static_cast<std::byte*>(to.view().data());
  const auto* const more = static_cast<const std::byte*>(what.view().data());
  for_row_blocks((count + kRow - 1) / kRow, kRow, where,
                 [&](std::int64_t, std::int64_t begin, std::int64_t end) {
                   const std::int64_t first = begin * kRow;
                   sums(total + first * size, more + first * size,
                        std::min(end * kRow, count) - first, total + first * size);
                 });
}

}  // namespace attend
