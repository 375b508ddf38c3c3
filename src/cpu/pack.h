// Bringing rows of tensors into the layouts of the products, and back.
//
// Operands are rows of OperandOf<V>, in the order in which the tiles of V read them: in lanes
// (operand b of scores), panels and strips. The functions that make these are those of tiles whose
// operands are sums; another tile overloads them, as it does product_tile().
#pragma once

#include "core/scratch.h"
#include "cpu/elements.h"
#include "cpu/product.h"

#include <bit>

namespace attend {
namespace {

// Steps of the depth that lie far from each other are asked for so many steps before: the hardware
// does not guess across pages.
inline constexpr std::int64_t kStepsAhead = 16;

// to[x * lanes + n] = factor * rows[n][x], for `count` rows of `length` elements; lanes from
// `count` up to `lanes` (whole vectors) become 0.
template <class V, class T = typename V::T>
void rows_to_lanes(const T* const* rows, std::int64_t count, std::int64_t length, T* to,
                   std::int64_t lanes, T factor = 1) noexcept {
  const V times = V::set(factor);
  for (std::int64_t n = 0; n < lanes; n += V::kLanes) {
    const std::int64_t high = count - n < V::kLanes ? count - n : V::kLanes;
    const auto square = [&](std::int64_t x, auto whole, std::int64_t wide) {
      V part[V::kLanes];
      unrolled<V::kLanes>(ATTEND_EACH(r) {
        if (!whole && r >= high) part[r] = V::set(0);
        else if (wide == V::kLanes) part[r] = V::load(rows[n + r] + x);
        else part[r] = V::load_first(rows[n + r] + x, wide);
      });
      transpose(part);
      unrolled<V::kLanes>(ATTEND_EACH(r) {
        if (r < wide) (part[r] * times).store(to + (x + r) * lanes + n);
      });
    };
    std::int64_t x = 0;
    if (high == V::kLanes)
      for (; x + V::kLanes <= length; x += V::kLanes) square(x, std::true_type{}, V::kLanes);
    else
      for (; x + V::kLanes <= length; x += V::kLanes) square(x, std::false_type{}, V::kLanes);
    if (x < length) square(x, std::false_type{}, length - x);
  }
}

// The same of rows of 16 bits, as many as there are lanes.
template <class V, class E, class T = typename V::T>
void halves_to_lanes(const E* const* rows, std::int64_t length, T* to, std::int64_t lanes,
                     T factor) noexcept {
  const V times = V::set(factor);
  for (std::int64_t n = 0; n < lanes; n += V::kLanes) {
    T* at = to + n;
    std::int64_t x = 0;
    V square[V::kLanes];
    for (; x + V::kLanes <= length; x += V::kLanes) {
      transposed(E{}, RowsAnywhere<E>{rows + n, x}, square);
      unrolled<V::kLanes>(ATTEND_EACH(r) { (square[r] * times).store(at + r * lanes); });
      at += V::kLanes * lanes;
    }
    for (; x < length; ++x, at += lanes)
      for (std::int64_t r = 0; r < V::kLanes; ++r)
        at[r] = static_cast<T>(widened(rows[n + r][x])) * factor;
  }
}

// Rows of operands, or of sums where they are computed (pairs), as an operand in lanes.
template <class V>
ATTEND_INLINE void rows_to_operand(const OperandOf<V>* const* rows, std::int64_t count,
                                   std::int64_t length, OperandOf<V>* to, std::int64_t lanes,
                                   SumOf<V> factor = 1) noexcept {
  static_assert(kMultipliesSums<V>, "other operands need a rows_to_operand() of their own");
  rows_to_lanes<V>(rows, count, length, to, lanes, factor);
}

// Sums of one product that are operand a of the next: weights, gradients of scores.
template <class V>
ATTEND_INLINE const OperandOf<V>* as_they_lie(const SumOf<V>* sums) noexcept {
  static_assert(kMultipliesSums<V>,
                "other operands need kPanels, no kFewRows, and a SumsAsOperand of their own");
  return sums;
}

// The same across, sums[step][row], `stride` from step to step. A tile of other operands has a
// specialisation, which rounds them into memory of its own.
template <class V>
class SumsAsOperand {
 public:
  SumsAsOperand(Scratch&, std::int64_t /*most*/) noexcept {}
  ATTEND_INLINE const OperandOf<V>* across(const SumOf<V>* sums, std::int64_t /*steps*/,
                                           std::int64_t /*rows*/,
                                           std::int64_t /*stride*/) const noexcept {
    return as_they_lie<V>(sums);
  }
};

// `count` rows as panels (product.h): to[panel][x][n] = rows[panel * kPanelRows + n][x]; gives
// `to`.
template <class V, class T = OperandOf<V>>
const T* rows_to_panels(const T* rows, std::int64_t stride, std::int64_t count, std::int64_t length,
                        T* to) noexcept {
  static_assert(kMultipliesSums<V>, "other operands need a rows_to_panels() of their own");
  for (std::int64_t row = 0; row < count; row += kPanelRows<V>) {
    const T* some[kPanelRows<V>];
    const std::int64_t here = count - row < kPanelRows<V> ? count - row : kPanelRows<V>;
    for (std::int64_t n = 0; n < here; ++n) some[n] = rows + (row + n) * stride;
    rows_to_operand<V>(some, here, length, to + row * length, kPanelRows<V>);
  }
  return to;
}

// Rows that lie side by side, a step `stride` from the next, in panels of kPanel rows, `apart` from
// each other: to[panel][x][n] = steps[x][panel * kPanel + n]; the last one is filled with zeros.
// Numbers of fewer bits are widened.
template <class V, std::int64_t kPanel, class E, class T = OperandOf<V>>
void steps_to_panels(const E* steps, std::int64_t stride, std::int64_t count, std::int64_t length,
                     T* to, std::int64_t apart) noexcept {
  static_assert(kMultipliesSums<V>, "other operands need a steps_to_panels() of their own");
  for (std::int64_t x = 0; x < length; ++x, steps += stride, to += kPanel) {
    T* panel = to;
    for (std::int64_t n = 0; n < count; n += kPanel, panel += apart)
      unrolled<kPanel / V::kLanes>(ATTEND_EACH(part) {
        const std::int64_t at = n + part * V::kLanes, left = count - at;
        prefetch(steps + kStepsAhead * stride + at);
        const V some = left >= V::kLanes ? load_elements<V>(steps + at)
                                         : load_first_elements<V>(steps + at, left < 0 ? 0 : left);
        some.store(panel + part * V::kLanes);
      });
  }
}

// `count` rows of `width` features, whole vectors, as strips of a register tile's width:
// to[strip][row][kStrip]; gives `to`.
template <class V, class T = OperandOf<V>>
const T* rows_to_strips(const T* rows, std::int64_t stride, std::int64_t count, std::int64_t width,
                        T* to) noexcept {
  static_assert(kMultipliesSums<V>, "other operands need a rows_to_strips() of their own");
  constexpr std::int64_t kStrip = kFeatureVectors<V> * V::kLanes;
  for (std::int64_t row = 0; row < count; ++row, rows += stride)
    for (std::int64_t x = 0; x < width; x += V::kLanes)
      V::load(rows + x).store(to + (x / kStrip * count + row) * kStrip + x % kStrip);
  return to;
}

// One of these rows, of `count` features, as row r of strips that are `apart` from each other; 0
// behind its last feature, up to a whole vector.
template <class V>
ATTEND_INLINE void row_to_strips(const OperandOf<V>* row, std::int64_t count, std::int64_t r,
                                 OperandOf<V>* to, std::int64_t apart) noexcept {
  static_assert(kMultipliesSums<V>, "other operands need a row_to_strips() of their own");
  constexpr std::int64_t kStrip = kFeatureVectors<V> * V::kLanes;
  for (std::int64_t x = 0; x < count; x += V::kLanes) {
    const V v = count - x >= V::kLanes ? V::load(row + x) : V::load_first(row + x, count - x);
    v.store(to + x / kStrip * apart + r * kStrip + x % kStrip);
  }
}

// Whether a row of `t` can be read in place: elements of T, side by side.
template <class T>
bool is_contiguous_row(const Strided& t) noexcept {
  constexpr DType kType = dtype_of<T>();
  return t.type == kType && t.stride[3] == 1;
}

// A row of any type and stride, converted. From T to T nothing is rounded.
template <class V, class T = typename V::T>
void convert_row(const Strided& t, std::int64_t offset, std::int64_t count, T* row) noexcept {
  if (t.type == DType::i8)
    return convert_elements<V>(reinterpret_cast<const std::int8_t*>(t.data) + offset, t.stride[3],
                               count, row);
  with_type(t.type, [&]<class E>(E) {
    convert_elements<V>(reinterpret_cast<const E*>(t.data) + offset, t.stride[3], count, row);
  });
}

// Rows of such numbers, `apart` from each other, with zeros up to `width`: one call for all, since
// a row of a short sequence is a few vectors.
template <class V, class T = typename V::T>
void convert_each_row(const Strided& t, std::int64_t offset, std::int64_t apart, std::int64_t rows,
                      std::int64_t count, T* to, std::int64_t width) noexcept {
  if (apart == count && width == count && t.stride[3] == 1) count *= rows, rows = 1;
  with_type(t.type, [&]<class E>(E) {
    const E* from = reinterpret_cast<const E*>(t.data) + offset;
    for (; rows > 0; --rows, from += apart, to += width) {
      convert_elements<V>(from, t.stride[3], count, to);
      for (std::int64_t x = count; x < width; ++x) to[x] = T{};
    }
  });
}

// to[x] = scale * row[x], at any type and stride, with one rounding.
template <class V, class E, class From>
void store_scaled(E* to, std::int64_t stride, std::int64_t count, const From* row,
                  double scale) noexcept {
  using T = typename V::T;
  using D = typename V::Double;
  const auto single = static_cast<T>(scale);
  std::int64_t x = 0;
  if constexpr (kMatrix<V> && std::is_same_v<From, T> && std::is_same_v<E, OperandOf<V>>) {
    if (stride == 1 && std::bit_cast<std::uint64_t>(scale) << 12 == 0) {  // a power of two: exact
      for (; x + V::kLanes <= count; x += V::kLanes)
        store_elements(V::load(row + x) * V::set(single), to + x);
      if (x < count) store_elements(V::load(row + x) * V::set(single), to + x, count - x);
      return;
    }
  }
  if constexpr (std::is_same_v<From, T> && std::is_same_v<E, T>) {
    if (stride == 1 && static_cast<double>(single) == scale)
      for (; x + V::kLanes <= count; x += V::kLanes)
        (V::load(row + x) * V::set(single)).store(to + x);
  }
  if (stride == 1 && x == 0)
    x = store_rounded<V>(
        to, count, [=](std::int64_t at, auto k) __attribute__((always_inline)) {
          if constexpr (std::is_same_v<From, double>)
            return D::set(scale) * D::load(row + at + k * D::kLanes);
          else return D::set(scale) * wide<k>(V::load(row + at));
        });
  for (; x < count; ++x) to[x * stride] = static_cast<E>(scale * static_cast<double>(row[x]));
}

template <class V, class From>
void store_scaled(const Strided& t, std::int64_t offset, std::int64_t count, const From* row,
                  double scale) noexcept {
  with_type(t.type, [&]<class E>(E) {
    store_scaled<V>(reinterpret_cast<E*>(t.data) + offset, t.stride[3], count, row, scale);
  });
}

template <class Number>
void clear(Number* from, std::int64_t count) noexcept {
  for (std::int64_t x = 0; x < count; ++x) from[x] = 0;
}

// total[x] += part[x].
template <class V>
void add_wide(const typename V::T* part, std::int64_t count, double* total) noexcept {
  using D = typename V::Double;
  std::int64_t x = 0;
  for (; x + V::kLanes <= count; x += V::kLanes) {
    const V v = V::load(part + x);
    unrolled<V::kDoubles>(ATTEND_EACH(k) {
      double* sum = total + x + k * D::kLanes;
      (D::load(sum) + wide<k>(v)).store(sum);
    });
  }
  for (; x < count; ++x) total[x] += static_cast<double>(part[x]);
}

}  // namespace
}  // namespace attend
