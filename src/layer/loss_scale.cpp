// Loss scaling: what is small in f16 is made large before it is rounded.
#include <attend/train.h>

#include "core/text.h"
#include "layer/check.h"
#include "layer/flat.h"
#include "layer/named.h"
#include "layer/numbers.h"

#include <algorithm>
#include <cmath>

namespace attend {
namespace {

// No gradient of f32 or less needs more, and no product with it overflows in f64.
constexpr double kLargest = 0x1p64;

bool are_finite(const Tensor& gradient) {
  const Numbers<double> numbers(gradient.dtype(), default_context());
  double values[kPiece];
  bool finite = true;
  for_pieces(gradient.count(), [&](std::int64_t begin, std::int64_t count) {
    if (!finite) return;
    numbers.load(gradient.view().data(), begin, 1, count, values);
    finite = std::all_of(values, values + count, [](double x) { return std::isfinite(x); });
  });
  return finite;
}

}  // namespace

LossScale::LossScale(const LossScaleOptions& options) : options_(options), value_(options.initial) {
  reporting("loss_scale", [&] {
    const auto& [initial, factor, interval] = options_;
    if (!(initial >= 1 && initial <= kLargest))
      throw InvalidArgument(text("loss_scale: initial is ", initial, "; it must be in [1, 2^64]"));
    if (!(std::isfinite(factor) && factor > 1))
      throw InvalidArgument(
          text("loss_scale: factor is ", factor, "; it must be finite and above 1"));
    if (interval < 1)
      throw InvalidArgument(text("loss_scale: interval is ", interval, "; it must be at least 1"));
  });
}

bool LossScale::unscale(std::vector<NamedTensor>& gradients) const {
  return reporting("loss_scale", [&] {
    check_gradients("loss_scale: ", "gradient", forms_of(gradients), gradients);
    for (const NamedTensor& gradient : gradients)
      if (!are_finite(gradient.tensor)) return false;
    std::vector<Tensor> wide(gradients.size());  // of 16 bits in f32; all memory before any change
    std::vector<std::pair<Numbers<double>, Numbers<double>>> conversions;
    for (std::size_t n = 0; n < gradients.size(); ++n) {
      const Tensor& gradient = gradients[n].tensor;
      const DType type = gradient.dtype(), to = statistic_type(type);
      if (type != to) wide[n] = Tensor::uninitialized(gradient.shape(), to);
      conversions.emplace_back(Numbers<double>(type, default_context()),
                               Numbers<double>(to, default_context()));
    }
    double values[kPiece];
    for (std::size_t n = 0; n < gradients.size(); ++n) {
      const Numbers<double>&from = conversions[n].first, &to = conversions[n].second;
      Tensor& gradient = gradients[n].tensor;
      void* const target = wide[n] ? wide[n].view().data() : gradient.view().data();
      for_pieces(gradient.count(), [&](std::int64_t begin, std::int64_t count) {
        from.load(gradient.view().data(), begin, 1, count, values);
        for (std::int64_t e = 0; e < count; ++e) values[e] /= value_;
        to.store(values, count, target, begin, 1);
      });
      if (wide[n]) gradient = std::move(wide[n]);
    }
    return true;
  });
}

void LossScale::update(bool finite) {
  reporting("loss_scale", [&] {
    if (!finite) {
      if (value_ == 1)
        throw InvalidArgument(
            "loss_scale: the gradients are not finite at a scale of 1 either; "
            "the model or its inputs have numbers that its type cannot hold");
      value_ = std::max(value_ / options_.factor, 1.0);
      good_steps_ = 0;
    } else if (good_steps_ >= options_.interval - 1) {  // restored ones may be any number
      value_ = std::min(value_ * options_.factor, kLargest);
      good_steps_ = 0;
    } else {
      ++good_steps_;
    }
  });
}

void LossScale::restore(double value, std::int64_t good_steps) {
  reporting("loss_scale", [&] {
    if (!(value >= 1 && value <= kLargest))
      throw InvalidArgument(text("loss_scale: value is ", value, "; it must be in [1, 2^64]"));
    if (good_steps < 0)
      throw InvalidArgument(text("loss_scale: good_steps is ", good_steps, ", less than 0"));
    value_ = value;
    good_steps_ = good_steps;
  });
}

}  // namespace attend
