// LayerNorm and RMSNorm on vectors of doubles, whatever the type: the reference's numbers
// (reference/norm.cpp), but for the order of sums over a row. A sum is one for each lane of
// 2 V::kDoubles vectors, these added in pairs, then the lanes in order, then what is behind the
// last whole vectors.
#pragma once

#include "core/row_operations.h"
#include "cpu/elements.h"

#include <cmath>
#include <limits>

namespace attend {
namespace {

// The sum of of(x[c]), for `of` on doubles and on vectors of them.
template <class V, class E, class Of>
ATTEND_INLINE double sum_over(const E* x, std::int64_t dim, Of of) {
  using D = typename V::Double;
  constexpr int kSums = 2 * V::kDoubles;
  D sums[kSums];
  unrolled<kSums>(ATTEND_EACH(n) { sums[n] = D::set(0); });
  std::int64_t c = 0;
  for (; c + 2 * V::kLanes <= dim; c += 2 * V::kLanes)
    unrolled<2>(ATTEND_EACH(half) {
      const V v = load_elements<V>(x + c + half * V::kLanes);
      unrolled<V::kDoubles>(ATTEND_EACH(k) {
        D& sum = sums[half * V::kDoubles + k];
        sum = sum + of(wide<k>(v));
      });
    });
  unrolled<V::kDoubles>(ATTEND_EACH(k) { sums[k] = sums[k] + sums[V::kDoubles + k]; });
  if constexpr (V::kDoubles == 2) sums[0] = sums[0] + sums[1];
  double lanes[D::kLanes], total = 0;
  sums[0].store(lanes);
  for (const double lane : lanes) total += lane;
  for (; c < dim; ++c) total += of(widened(x[c]));
  return total;
}

// x * unit - mean, squared or not.
template <class D>
struct Deviation {
  double unit, mean;
  ATTEND_INLINE double operator()(double x) const { return x * unit - mean; }
  ATTEND_INLINE D operator()(D x) const { return x * D::set(unit) - D::set(mean); }
};

// n = (x * unit - mean) * factor
template <class D>
struct Normalised {
  Deviation<D> deviation;
  double factor;
  ATTEND_INLINE double operator()(double x) const { return deviation(x) * factor; }
  ATTEND_INLINE D operator()(D x) const { return deviation(x) * D::set(factor); }
};

template <class V, class E, class D = typename V::Double>
Normalised<D> normalised(const E* x, NormKind kind, std::int64_t dim, double epsilon,
                         double unit = 1) noexcept {
  const auto count = static_cast<double>(dim);
  Deviation<D> deviation{unit, 0};
  if (kind == NormKind::layer_norm) deviation.mean = sum_over<V>(x, dim, deviation) / count;
  const double squares = sum_over<V>(
      x, dim, [=](auto v) __attribute__((always_inline)) {
        const auto d = deviation(v);
        return d * d;
      });
  if (unit == 1 && !std::isfinite(squares)) return normalised<V>(x, kind, dim, epsilon, 0x1p-600);
  if (unit != 1) epsilon = std::numeric_limits<double>::min();
  return {deviation, 1 / std::sqrt(squares / count + epsilon)};
}

template <class V, class E>
void norm_row(const NormProblem& p, const NormCall& call, std::int64_t r) noexcept {
  const E* const x = static_cast<const E*>(call.x.data) + r * call.x.row;
  const E* const weight = static_cast<const E*>(call.weight);
  const E* const bias = static_cast<const E*>(call.bias);
  E* const y = static_cast<E*>(call.y) + r * call.y_row;
  const auto n = normalised<V>(x, p.kind, call.dim, call.epsilon);
  const auto wide_at = [](const E* from, std::int64_t at, auto k) __attribute__((always_inline)) {
    return wide<k>(load_elements<V>(from + at));
  };
  std::int64_t c = 0;
  if (bias == nullptr)
    c = store_rounded<V>(
        y, call.dim, [&](std::int64_t at, auto k) __attribute__((always_inline)) {
          return n(wide_at(x, at, k)) * wide_at(weight, at, k);
        });
  else
    c = store_rounded<V>(
        y, call.dim, [&](std::int64_t at, auto k) __attribute__((always_inline)) {
          return n(wide_at(x, at, k)) * wide_at(weight, at, k) + wide_at(bias, at, k);
        });
  for (; c < call.dim; ++c) {
    const double scaled = n(widened(x[c])) * widened(weight[c]);
    y[c] = static_cast<E>(bias == nullptr ? scaled : scaled + widened(bias[c]));
  }
}

// As the reference has it. dweight and dbias are doubles, and grow.
template <class V, class E>
void norm_backward_row(const NormProblem& p, const NormBackwardCall& call, std::int64_t r,
                       double* dweight, double* dbias) noexcept {
  using D = typename V::Double;
  const E* const x = static_cast<const E*>(call.x.data) + r * call.x.row;
  const E* const dy = static_cast<const E*>(call.dy.data) + r * call.dy.row;
  const E* const weight = static_cast<const E*>(call.weight);
  E* const dx = static_cast<E*>(call.dx) + r * call.dim;
  const auto normal = normalised<V>(x, p.kind, call.dim, call.epsilon);
  const auto dim = static_cast<double>(call.dim);

  D sum_g = D::set(0), sum_gn = D::set(0);
  std::int64_t c = 0;
  for (; c + V::kLanes <= call.dim; c += V::kLanes) {
    const V v = load_elements<V>(x + c), d = load_elements<V>(dy + c);
    const V w = load_elements<V>(weight + c);
    unrolled<V::kDoubles>(ATTEND_EACH(k) {
      const D n = normal(wide<k>(v)), dk = wide<k>(d), g = dk * wide<k>(w);
      double* const to = dweight + c + k * D::kLanes;
      double* const to_bias = dbias + c + k * D::kLanes;
      sum_g = sum_g + g;
      sum_gn = sum_gn + g * n;
      (D::load(to) + dk * n).store(to);
      (D::load(to_bias) + dk).store(to_bias);
    });
  }
  double lanes[2][D::kLanes], mean_g = 0, mean_gn = 0;
  sum_g.store(lanes[0]);
  sum_gn.store(lanes[1]);
  for (const double lane : lanes[0]) mean_g += lane;
  for (const double lane : lanes[1]) mean_gn += lane;
  for (; c < call.dim; ++c) {
    const double n = normal(widened(x[c])), d = widened(dy[c]), g = d * widened(weight[c]);
    mean_g += g;
    mean_gn += g * n;
    dweight[c] += d * n;
    dbias[c] += d;
  }
  mean_g = p.kind == NormKind::layer_norm ? mean_g / dim : 0;
  mean_gn /= dim;

  const double factor = normal.factor, unit = normal.deviation.unit;
  c = store_rounded<V>(
      dx, call.dim, [&](std::int64_t at, auto k) __attribute__((always_inline)) {
        const D n = normal(wide<k>(load_elements<V>(x + at)));
        const D g = wide<k>(load_elements<V>(dy + at)) * wide<k>(load_elements<V>(weight + at));
        return D::set(factor) * (g - D::set(mean_g) - n * D::set(mean_gn)) * D::set(unit);
      });
  for (; c < call.dim; ++c) {
    const double n = normal(widened(x[c])), g = widened(dy[c]) * widened(weight[c]);
    dx[c] = static_cast<E>(factor * (g - mean_g - n * mean_gn) * unit);
  }
}

template <class Float, class Double>
void norm_rows(const NormProblem& p, const NormCall& call, RowRange rows) noexcept {
  with_elements<Float, Double>(p.type, [&]<class V, class E>(V, E) {
    for (std::int64_t r = rows.begin; r < rows.end; ++r) norm_row<V, E>(p, call, r);
  });
}

template <class Float, class Double>
void norm_backward_rows(const NormProblem& p, const NormBackwardCall& call,
                        RowRange rows) noexcept {
  double* const dweight = call.sums + rows.begin / kBlockRows * 2 * call.dim;
  with_elements<Float, Double>(p.type, [&]<class V, class E>(V, E) {
    for (std::int64_t r = rows.begin; r < rows.end; ++r)
      norm_backward_row<V, E>(p, call, r, dweight, dweight + call.dim);
  });
}

}  // namespace
}  // namespace attend
