// Elements of one type as another, by vectors of float and of double.
#pragma once

#include "core/row_operations.h"
#include "cpu/elements.h"

namespace attend {
namespace {

// As many as V has lanes.
template <class V, class From, class To>
ATTEND_INLINE void convert_vector(const From* from, To* to) {
  using D = typename V::Double;
  if constexpr (std::is_same_v<From, double>) {
    D doubles[V::kDoubles];
    unrolled<V::kDoubles>(ATTEND_EACH(k) { doubles[k] = D::load(from + k * D::kLanes); });
    store_doubles<V>(doubles, to);
  } else if constexpr (std::is_same_v<To, double>) {
    const V v = load_elements<V>(from);
    unrolled<V::kDoubles>(ATTEND_EACH(k) { wide<k>(v).store(to + k * D::kLanes); });
  } else {
    store_elements(load_elements<V>(from), to);
  }
}

template <class V, class From, class To>
void convert_run(const From* from, std::int64_t count, To* to) noexcept {
  std::int64_t x = 0;
  if constexpr (std::is_same_v<From, To>) {
    for (; x < count; ++x) to[x] = from[x];
  } else {
    for (; x + 4 * V::kLanes <= count; x += 4 * V::kLanes)
      unrolled<4>(
          ATTEND_EACH(n) { convert_vector<V>(from + x + n * V::kLanes, to + x + n * V::kLanes); });
    for (; x + V::kLanes <= count; x += V::kLanes) convert_vector<V>(from + x, to + x);
    if (x == count) return;
    From last[V::kLanes] = {};
    To made[V::kLanes];
    for (std::int64_t n = x; n < count; ++n) last[n - x] = from[n];
    convert_vector<V>(last, made);
    for (std::int64_t n = x; n < count; ++n) to[n] = made[n - x];
  }
}

template <class V>
void convert_rows(const ConvertProblem& p, const ConvertCall& call, RowRange rows) noexcept {
  with_type(p.type, [&]<class From>(From) {
    with_type(p.to, [&]<class To>(To) {
      const std::int64_t begin = rows.begin * call.features, end = rows.end * call.features;
      convert_run<V>(static_cast<const From*>(call.from) + begin, end - begin,
                     static_cast<To*>(call.to) + begin);
    });
  });
}

}  // namespace
}  // namespace attend
