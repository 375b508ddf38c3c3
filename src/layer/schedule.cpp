// Learning rates over the steps.
#include <attend/train.h>

#include "core/text.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace attend {

// The first step of a warmup has peak / warmup, its last has the peak.
double LearningRate::at(std::int64_t step) const {
  if (step < 0) throw InvalidArgument(text("LearningRate: step is ", step, ", less than 0"));
  if (!(std::isfinite(peak) && peak >= 0 && std::isfinite(minimum) && minimum >= 0))
    throw InvalidArgument(text("LearningRate: peak ", peak, " and minimum ", minimum,
                               " must be finite and not negative"));
  if (warmup < 0) throw InvalidArgument(text("LearningRate: warmup is ", warmup, ", less than 0"));
  if (decay > Decay::cosine)
    throw InvalidArgument(text("LearningRate: decay is ", static_cast<int>(decay),
                               "; it must be constant, linear or cosine"));
  if (decay != Decay::constant && total <= warmup)
    throw InvalidArgument(text("LearningRate: total is ", total, "; a rate that falls needs more ",
                               "steps than the warmup's ", warmup));
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  if (decay == Decay::constant) return peak;
  const double progress =
      std::min(static_cast<double>(step - warmup) / static_cast<double>(total - warmup), 1.0);
  const double left =
      decay == Decay::linear ? 1 - progress : 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return minimum + (peak - minimum) * left;
}

}  // namespace attend
