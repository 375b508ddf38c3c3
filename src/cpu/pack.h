// Bringing rows of tensors into the layouts of the products, and back.
#pragma once

#include "core/strided.h"
#include "cpu/vec.h"

namespace attend {
namespace {

// to[x * lanes + n] = factor * rows[n][x], for `count` rows of `length` elements; lanes from
// `count` up to `lanes` (whole vectors) become 0.
template <class V, class T = typename V::T>
void rows_to_lanes(const T* const* rows, std::int64_t count, std::int64_t length, T* to,
                   std::int64_t lanes, T factor = 1) noexcept {
  const V times = V::set(factor);
  for (std::int64_t n = 0; n < lanes; n += V::kLanes) {
    const std::int64_t high = count - n < V::kLanes ? count - n : V::kLanes;
    for (std::int64_t x = 0; x < length; x += V::kLanes) {
      const std::int64_t width = length - x < V::kLanes ? length - x : V::kLanes;
      V square[V::kLanes];
      unrolled<V::kLanes>(ATTEND_EACH(r) {
        if (r >= high) square[r] = V::set(0);
        else if (width == V::kLanes) square[r] = V::load(rows[n + r] + x);
        else square[r] = V::load_first(rows[n + r] + x, width);
      });
      transpose(square);
      unrolled<V::kLanes>(ATTEND_EACH(r) {
        if (r < width) (square[r] * times).store(to + (x + r) * lanes + n);
      });
    }
  }
}

// Whether a row of `t` can be read where it lies.
template <class T>
bool lies_ready(const Strided& t) noexcept {
  return t.type == (sizeof(T) == 8 ? DType::f64 : DType::f32) && t.stride[3] == 1;
}

// A row of any type and stride, converted. From T to T nothing is rounded.
template <class T>
void convert_row(const Strided& t, std::int64_t offset, std::int64_t count, T* row) noexcept {
  with_type(t.type, [&]<class E>(E) {
    const E* from = reinterpret_cast<const E*>(t.data) + offset;
    const std::int64_t stride = t.stride[3];
    for (std::int64_t x = 0; x < count; ++x) row[x] = static_cast<T>(widened(from[x * stride]));
  });
}

}  // namespace
}  // namespace attend
