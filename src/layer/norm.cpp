// LayerNorm and RMSNorm, row by row. Statistics and gradients are computed in f64 for every type,
// and the variance in two passes: numbers far from zero lose nothing.
#include "core/strided.h"
#include "core/text.h"
#include "layer/check.h"
#include "layer/initialise.h"
#include "layer/lists.h"
#include "layer/rows.h"

#include <attend/norm.h>

#include <cmath>
#include <limits>

namespace attend {
namespace {

const char* name_of(const NormOptions& options) {
  return options.kind == NormKind::rms_norm ? "rms_norm" : "layer_norm";
}

// normalised = (x * unit - mean) * factor
struct Statistics {
  double unit = 1, mean = 0, factor = 0;
  double operator()(double x) const noexcept { return (x * unit - mean) * factor; }
};

// Numbers above 1e153, whose sums or squares may be none, are taken in units of 2^600. Epsilon is
// nothing there, but keeps equal numbers from 0 / 0.
template <class T>
Statistics statistics(const Row<T>& x, const NormOptions& options, double unit = 1) noexcept {
  const auto dim = static_cast<double>(options.dim);
  double mean = 0, squares = 0;
  if (options.kind == NormKind::layer_norm) {
    for (std::int64_t c = 0; c < options.dim; ++c) mean += x[c] * unit;
    mean /= dim;
  }
  for (std::int64_t c = 0; c < options.dim; ++c)
    squares += (x[c] * unit - mean) * (x[c] * unit - mean);
  if (unit == 1 && !std::isfinite(squares)) return statistics(x, options, 0x1p-600);
  const double epsilon = unit == 1 ? options.epsilon : std::numeric_limits<double>::min();
  return {unit, mean, 1 / std::sqrt(squares / dim + epsilon)};
}

template <class T>
void forward_row(const NormOptions& options, const Row<T>& x, const T* weight, const T* bias,
                 T* y) noexcept {
  const Statistics normalised = statistics(x, options);
  for (std::int64_t c = 0; c < options.dim; ++c) {
    const double scaled = normalised(x[c]) * widened(weight[c]);
    y[c] = static_cast<T>(bias == nullptr ? scaled : scaled + widened(bias[c]));
  }
}

// With n = normalised(x) and g = dy * weight:
//   dx = unit * factor * (g - mean(g) - n * mean(g * n))        mean(g) for LayerNorm only
//   dweight += dy * n      dbias += dy
template <class T>
void backward_row(const NormOptions& options, const Row<T>& x, const Row<T>& dy, const T* weight,
                  T* dx, double* dweight, double* dbias) noexcept {
  const Statistics normalised = statistics(x, options);
  const auto dim = static_cast<double>(options.dim);
  double mean_g = 0, mean_gn = 0;
  for (std::int64_t c = 0; c < options.dim; ++c) {
    const double n = normalised(x[c]), g = dy[c] * widened(weight[c]);
    mean_g += g;
    mean_gn += g * n;
    dweight[c] += dy[c] * n;
    dbias[c] += dy[c];
  }
  mean_g = options.kind == NormKind::layer_norm ? mean_g / dim : 0;
  mean_gn /= dim;
  for (std::int64_t c = 0; c < options.dim; ++c) {
    const double n = normalised(x[c]), g = dy[c] * widened(weight[c]);
    dx[c] = static_cast<T>(normalised.factor * (g - mean_g - n * mean_gn) * normalised.unit);
  }
}

// The sum over blocks of [blocks, 2, dim], in order: part 0 or 1 of it.
Tensor sum_of_blocks(const Tensor& parts, std::int64_t part, DType type) {
  const std::int64_t blocks = parts.size(0), dim = parts.size(2);
  const double* from = parts.data<double>() + part * dim;
  Tensor sum = Tensor::uninitialized({dim}, type);
  with_type(type, [&]<class T>(T) {
    for (std::int64_t c = 0; c < dim; ++c) {
      double total = 0;
      for (std::int64_t block = 0; block < blocks; ++block) total += from[block * 2 * dim + c];
      static_cast<T*>(sum.view().data())[c] = static_cast<T>(total);
    }
  });
  return sum;
}

}  // namespace

Norm::Norm(const NormOptions& options) : options_(options) {
  reporting("norm", [&] {
    if (options.kind != NormKind::layer_norm && options.kind != NormKind::rms_norm)
      throw InvalidArgument(text("norm: kind is ", static_cast<int>(options.kind),
                                 "; it must be layer_norm or rms_norm"));
    const char* layer = name_of(options);
    check_size(layer, "dim", options.dim);
    check_type(layer, options.type);
    if (!(options.epsilon > 0 && std::isfinite(options.epsilon)))
      throw InvalidArgument(
          text(layer, ": epsilon is ", options.epsilon, "; it must be positive and finite"));
    options_.bias &= options.kind == NormKind::layer_norm;
    weight_ = ones({options.dim}, options.type);
    if (options_.bias) bias_ = Tensor({options.dim}, options.type);
  });
}

Tensor Norm::forward(const ConstTensorView& x, Context& context) const {
  const char* layer = name_of(options_);
  return reporting(layer, [&] {
    check_made(layer, static_cast<bool>(*this));
    check_input(layer, "x", x, options_.type, options_.dim);
    Tensor y = Tensor::uninitialized(x.shape(), options_.type);
    const Rows rows = rows_of(x);
    with_type(options_.type, [&]<class T>(T) {
      const T* weight = weight_.data<T>();
      const T* bias = bias_ ? bias_.data<T>() : nullptr;
      T* to = y.data<T>();
      for_row_blocks(rows.view.size(0), options_.dim, context, [&](auto, auto begin, auto end) {
        for (std::int64_t r = begin; r < end; ++r)
          forward_row(options_, Row<T>(rows.view, r), weight, bias, to + r * options_.dim);
      });
    });
    return y;
  });
}

std::pair<Tensor, Norm::Saved> Norm::forward_train(const ConstTensorView& x,
                                                   Context& context) const {
  Tensor y = forward(x, context);
  return {std::move(y), Saved{Tensor::copy_of(x)}};
}

LayerGradients Norm::backward(const ConstTensorView& dy, const Saved& saved,
                              Context& context) const {
  const char* layer = name_of(options_);
  return reporting(layer, [&] {
    check_made(layer, static_cast<bool>(*this));
    check_input(layer, "x", saved.x, options_.type, options_.dim);
    check_shape(layer, "dy", dy, options_.type, saved.x.shape());
    LayerGradients gradients{Tensor::uninitialized(saved.x.shape(), options_.type), {}};
    const Rows x_rows = rows_of(saved.x.view()), dy_rows = rows_of(dy);
    const std::int64_t rows = x_rows.view.size(0), dim = options_.dim;
    Tensor parts({block_count(rows), 2, dim}, DType::f64);  // dweight and dbias of each block
    with_type(options_.type, [&]<class T>(T) {
      const T* weight = weight_.data<T>();
      T* dx = gradients.dx.data<T>();
      double* sums = parts.data<double>();
      for_row_blocks(rows, dim, context, [&](auto block, auto begin, auto end) {
        double* dweight = sums + block * 2 * dim;
        for (std::int64_t r = begin; r < end; ++r)
          backward_row(options_, Row<T>(x_rows.view, r), Row<T>(dy_rows.view, r), weight,
                       dx + r * dim, dweight, dweight + dim);
      });
    });
    gradients.parameters.push_back({"weight", sum_of_blocks(parts, 0, options_.type)});
    if (bias_) gradients.parameters.push_back({"bias", sum_of_blocks(parts, 1, options_.type)});
    return gradients;
  });
}

std::vector<NamedView> Norm::parameters() const {
  return listed<NamedView, const Tensor>(name_of(options_),
                                         {{"weight", &weight_}, {"bias", &bias_}});
}
std::vector<Parameter> Norm::parameters() {
  return listed<Parameter, Tensor>(name_of(options_), {{"weight", &weight_}, {"bias", &bias_}});
}

LayerNorm::LayerNorm(const LayerNormOptions& options)
    : Norm({options.dim, NormKind::layer_norm, options.epsilon, options.bias, options.type}) {}

RMSNorm::RMSNorm(const RMSNormOptions& options)
    : Norm({options.dim, NormKind::rms_norm, options.epsilon, false, options.type}) {}

}  // namespace attend
