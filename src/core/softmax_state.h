// Step 3, the softmax as a running maximum m and sum l, so that one pass over the keys is enough.
//
// Scores enter in log2 units, t = s * log2(e), and m is the largest t rounded up to an integer.
// Then every rescale 2^(m_old - m_new) is an exact power of two, and so is the step from a weight
// relative to one m to the same weight relative to another: when m grows, and how the keys are cut
// into blocks, cannot change a digit. Keys are summed in chunks of 256, at multiples of 256, each
// with a state of its own, and the chunks are joined in ascending order in f64: one long f32 chain
// would have 5 to 49 times the error at 4096 keys.
#pragma once

#include "core/mask.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>

namespace attend {

inline constexpr std::int64_t kChunk = 256;

// t = s * log2(e), for finite s as large as it can be: a bias of the lowest finite number, which is
// not -inf, must not become one.
inline double log2_units(double s) noexcept {
  const double t = s * std::numbers::log2e;
  if (std::isinf(t) && !std::isinf(s)) return std::copysign(std::numeric_limits<double>::max(), s);
  return t;
}

// 2^(from - to) for integers from <= to. -inf is the state before the first key: 2^-inf = 0.
inline double rescale_factor(double from, double to) noexcept {
  if (from == to) return 1;  // also -inf to -inf
  return std::exp2(from - to);
}

// 2^(t - m). The digits come from t alone, m only moves the exponent: t - m itself would round, and
// differently for each m.
inline double weight(double t, double m) noexcept {
  const double whole = std::floor(t);
  return std::exp2(t - whole) * rescale_factor(whole, m);
}

struct SoftmaxState {
  double m = kMinusInfinity;  // an integer
  double l = 0;               // sum of 2^(t - m)

  // Takes the score t; what was summed so far must be multiplied by `rescale`, and t weighs `p`.
  struct Step {
    double rescale, p;
  };
  Step add(double t) noexcept {
    const double before = m;
    if (t > m) m = std::ceil(t);
    const Step step{rescale_factor(before, m), weight(t, m)};
    l = l * step.rescale + step.p;
    return step;
  }

  // Joins the sum over other keys: this one's weighs `mine`, the other's `other`.
  struct Join {
    double mine, other;
  };
  Join join(const SoftmaxState& part) noexcept {
    const double top = part.m > m ? part.m : m;
    const Join weights{rescale_factor(m, top), rescale_factor(part.m, top)};
    l = l * weights.mine + part.l * weights.other;
    m = top;
    return weights;
  }

  double lse() const noexcept {  // log(sum of exp(s)); -inf if nothing was added
    return l == 0 ? kMinusInfinity : m * std::numbers::ln2 + std::log(l);
  }
};

}  // namespace attend
