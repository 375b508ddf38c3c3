// LayerNorm and RMSNorm, row by row. Statistics and gradients are computed in f64 for every type,
// and the variance in two passes: numbers far from zero lose nothing.
#include "core/row_operations.h"

#include <cmath>
#include <limits>

namespace attend {
namespace {

// One row, read as f64.
template <class T>
class FeatureRow {
 public:
  FeatureRow(const ConstRows& rows, std::int64_t row) noexcept
      : data_(static_cast<const T*>(rows.data) + row * rows.row) {}
  double operator[](std::int64_t c) const noexcept { return widened(data_[c]); }

 private:
  const T* data_;
};

// normalised = (x * unit - mean) * factor
struct Statistics {
  double unit = 1, mean = 0, factor = 0;
  double operator()(double x) const noexcept { return (x * unit - mean) * factor; }
};

// Numbers above 1e153, whose sums or squares may be none, are taken in units of 2^600. Epsilon is
// nothing there, but keeps equal numbers from 0 / 0.
template <class T>
Statistics statistics(const FeatureRow<T>& x, NormKind kind, std::int64_t dim, double epsilon,
                      double unit = 1) noexcept {
  const auto count = static_cast<double>(dim);
  double mean = 0, squares = 0;
  if (kind == NormKind::layer_norm) {
    for (std::int64_t c = 0; c < dim; ++c) mean += x[c] * unit;
    mean /= count;
  }
  for (std::int64_t c = 0; c < dim; ++c) squares += (x[c] * unit - mean) * (x[c] * unit - mean);
  if (unit == 1 && !std::isfinite(squares)) return statistics(x, kind, dim, epsilon, 0x1p-600);
  if (unit != 1) epsilon = std::numeric_limits<double>::min();
  return {unit, mean, 1 / std::sqrt(squares / count + epsilon)};
}

void forward(const NormProblem& p, const NormCall& call, RowRange rows) noexcept {
  with_type(p.type, [&]<class T>(T) {
    const T* const weight = static_cast<const T*>(call.weight);
    const T* const bias = static_cast<const T*>(call.bias);
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      const FeatureRow<T> x(call.x, r);
      T* const y = static_cast<T*>(call.y) + r * call.y_row;
      const Statistics normalised = statistics(x, p.kind, call.dim, call.epsilon);
      for (std::int64_t c = 0; c < call.dim; ++c) {
        const double scaled = normalised(x[c]) * widened(weight[c]);
        y[c] = static_cast<T>(bias == nullptr ? scaled : scaled + widened(bias[c]));
      }
    }
  });
}

// With n = normalised(x) and g = dy * weight:
//   dx = unit * factor * (g - mean(g) - n * mean(g * n))        mean(g) for LayerNorm only
//   dweight += dy * n      dbias += dy
template <class T>
void backward_row(const NormProblem& p, const NormBackwardCall& call, std::int64_t r,
                  double* dweight, double* dbias) noexcept {
  const FeatureRow<T> x(call.x, r), dy(call.dy, r);
  const T* const weight = static_cast<const T*>(call.weight);
  T* const dx = static_cast<T*>(call.dx) + r * call.dim;
  const Statistics normalised = statistics(x, p.kind, call.dim, call.epsilon);
  const auto dim = static_cast<double>(call.dim);
  double mean_g = 0, mean_gn = 0;
  for (std::int64_t c = 0; c < call.dim; ++c) {
    const double n = normalised(x[c]), g = dy[c] * widened(weight[c]);
    mean_g += g;
    mean_gn += g * n;
    dweight[c] += dy[c] * n;
    dbias[c] += dy[c];
  }
  mean_g = p.kind == NormKind::layer_norm ? mean_g / dim : 0;
  mean_gn /= dim;
  for (std::int64_t c = 0; c < call.dim; ++c) {
    const double n = normalised(x[c]), g = dy[c] * widened(weight[c]);
    dx[c] = static_cast<T>(normalised.factor * (g - mean_g - n * mean_gn) * normalised.unit);
  }
}

void backward(const NormProblem& p, const NormBackwardCall& call, RowRange rows) noexcept {
  double* const dweight = call.sums + rows.begin / kBlockRows * 2 * call.dim;
  with_type(p.type, [&]<class T>(T) {
    for (std::int64_t r = rows.begin; r < rows.end; ++r)
      backward_row<T>(p, call, r, dweight, dweight + call.dim);
  });
}

std::string declines(const NormProblem&, const Machine&) { return {}; }

}  // namespace

extern constinit const Kernel<NormForward> kReferenceNorm{
    .name = "reference.norm",
    .only_if_forced = false,
    .takes = kTakenByNorms,
    .declines = declines,
    .run = forward,
};
extern constinit const Kernel<NormBackward> kReferenceNormBackward{
    .name = "reference.norm_backward",
    .only_if_forced = false,
    .takes = kTakenByNorms,
    .declines = declines,
    .run = backward,
};

}  // namespace attend
