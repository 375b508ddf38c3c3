// Gradients against central differences: for any function of tensors in f64 that has backward.
#pragma once

#include "support/widen.h"

#include <attend/parameter.h>

#include <cmath>
#include <functional>
#include <sstream>

namespace attend::test {

// A tensor that the loss depends on, and the gradient to be judged.
struct Differentiated {
  std::string name;
  ParameterView value;
  ConstTensorView gradient;
};

struct GradientCheck {
  std::int64_t differences = 0;
  std::int64_t noticing = 0;  // of them would notice an error of 1 %
  std::string failures;       // name, index and both numbers of each; empty if all is well
};

// The loss whose gradient at y is dy.
inline double weighted_sum(const ConstTensorView& y, const ConstTensorView& dy) {
  const std::vector<double> a = widen(y), b = widen(dy);
  double sum = 0;
  for (std::size_t n = 0; n < a.size(); ++n) sum += a[n] * b[n];
  return sum;
}

// (loss(x + h) - loss(x - h)) / 2h for every element of every tensor. h = 2^-17: the formula is
// wrong by about h^2 = 6e-11 times the third derivative, the rounding by about 1e-11 times the
// loss. A gradient may differ by 2e-7 times the larger of 1 and itself.
inline GradientCheck check_gradients(const std::function<double()>& loss,
                                     const std::vector<Differentiated>& all) {
  constexpr double kStep = 0x1p-17, kTolerance = 2e-7;
  GradientCheck check;
  std::ostringstream failures;
  for (const Differentiated& t : all) {
    if (!t.gradient || t.gradient.shape() != t.value.shape()) {
      failures << t.name << ": gradient of another shape\n";
      continue;
    }
    const std::vector<double> gradient = widen(t.gradient);
    for_each_element(t.value.shape(), t.value.strides(), [&](std::int64_t n, std::int64_t offset) {
      double& x = static_cast<double*>(t.value.data())[offset];
      const double before = x;
      x = before + kStep;
      const double above = loss();
      x = before - kStep;
      const double below = loss();
      x = before;
      const double numeric = (above - below) / (2 * kStep);
      const double found = gradient[static_cast<std::size_t>(n)];
      const double allowed = kTolerance * std::max(1.0, std::abs(numeric));
      ++check.differences;
      check.noticing += 0.01 * std::abs(numeric) > allowed;
      if (!(std::abs(found - numeric) <= allowed))
        failures << t.name << "[" << n << "]: " << found << ", by differences " << numeric << "\n";
    });
  }
  check.failures = failures.str();
  return check;
}

// A list of gradients with the parameters they belong to: same names in the same order.
inline std::vector<Differentiated> paired(const std::vector<Parameter>& parameters,
                                          const std::vector<NamedTensor>& gradients) {
  std::vector<Differentiated> pairs;
  for (std::size_t n = 0; n < parameters.size(); ++n) {
    const bool same = n < gradients.size() && gradients[n].name == parameters[n].name;
    pairs.push_back({parameters[n].name, parameters[n].value,
                     same ? ConstTensorView(gradients[n].tensor) : ConstTensorView()});
  }
  if (gradients.size() > parameters.size()) pairs.push_back({"a gradient too many", {}, {}});
  return pairs;
}

}  // namespace attend::test
