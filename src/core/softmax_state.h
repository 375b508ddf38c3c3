// Step 3, the softmax as the largest score and a sum l, so that one pass over the keys is enough.
//
// l counts in units of 2^m, where m is the largest score in log2 units, t = s * log2(e), rounded up
// to an integer. Then every rescale 2^(m_old - m_new) is an exact power of two, and so is the step
// from a weight relative to one m to the same weight relative to another: when m grows, and how the
// keys are cut into blocks, cannot change a digit. Keys are summed in chunks of 256, at multiples
// of 256, each with a state of its own, and the chunks are joined in ascending order in f64: one
// long f32 chain would have 5 to 49 times the error at 4096 keys.
//
// t itself would round, the more the farther it is from 0, so only m is taken from it: 2^(t - m) is
// made of s - m ln 2. From 2^20 on l counts in units of e^top, and scores are subtracted from it.
#pragma once

#include "core/mask.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>

namespace attend {

inline constexpr std::int64_t kChunk = 256;
inline constexpr double kFar = 0x1p20;

[[gnu::always_inline]] ATTEND_HOST_DEVICE inline bool is_far(double s) noexcept {
  return std::abs(s) >= kFar;
}

// t = s * log2(e), for finite s as large as it can be: a bias of the lowest finite number, which is
// not -inf, must not become one.
[[gnu::always_inline]] ATTEND_HOST_DEVICE inline double log2_units(double s) noexcept {
  const double t = s * std::numbers::log2e;
  if (std::isinf(t) && !std::isinf(s)) return std::copysign(std::numeric_limits<double>::max(), s);
  return t;
}

// ln 2 in two parts: whole multiples of the first, up to 2^31, are exact.
inline constexpr double kLn2High = 0x1.62e428p-1, kLn2Low = 0x1.fbe8e7bcd5e4fp-23;

// t - m, for s whose log2 units t are near the whole number m: to the last digit while |s| < 2^30.
[[gnu::always_inline]] ATTEND_HOST_DEVICE inline double above(double s, double m) noexcept {
  return ((s - m * kLn2High) - m * kLn2Low) * std::numbers::log2e;
}

// 2^n for whole n <= 0; 0 for -inf and for NaN.
[[gnu::always_inline]] ATTEND_HOST_DEVICE inline double power_of_two(double n) noexcept {
  const double lifted = n >= -1022 ? n : n + 1022;
  if (!(lifted >= -1022)) return 0;
  const auto bits = static_cast<std::uint64_t>(static_cast<std::int64_t>(lifted) + 1023) << 52;
  return __builtin_bit_cast(double, bits) * (n >= -1022 ? 1 : 0x1p-1022);
}

// How many octaves the unit of sums whose largest score is `from` lies above that of `to`;
// from <= to. -inf is the state before the first key.
[[gnu::always_inline]] ATTEND_HOST_DEVICE inline double octaves(double from, double to) noexcept {
  if (from == to) return 0;  // also -inf and -inf
  const bool far = is_far(from), to_far = is_far(to);
  if (far && to_far) return (from - to) * std::numbers::log2e;
  if (far) return above(from, std::ceil(log2_units(to)));
  const double m = std::ceil(log2_units(from));
  return to_far ? -above(to, m) : m - std::ceil(log2_units(to));
}

// What a sum is multiplied by when the largest score grows: an exact power of two unless far.
[[gnu::always_inline]] ATTEND_HOST_DEVICE inline double rescale_factor(double from,
                                                                       double to) noexcept {
  const double n = octaves(from, to);
  return is_far(from) || is_far(to) ? std::exp2(n) : power_of_two(n);
}

// e^s in the unit of sums whose largest score is `top`: 2^(t - m). The digits come from s alone, m
// only moves the exponent: t - m itself would round, and differently for each m.
[[gnu::always_inline]] ATTEND_HOST_DEVICE inline double weight(double s, double top) noexcept {
  if (is_far(top)) return std::exp(s - top);
  if (s < -0x1p30) return 0;
  const double whole = std::floor(s * std::numbers::log2e);
  return std::exp2(above(s, whole)) * std::exp2(whole - std::ceil(log2_units(top)));
}

// Whether an lse of this type is so large that its own rounding shows in exp(s - lse): then the row
// is summed again.
[[gnu::always_inline]] ATTEND_HOST_DEVICE inline bool is_coarse(DType type, double lse) noexcept {
  constexpr double kCoarse = 0x1p12;  // of f32: the rounding is 2^-12
  return std::isfinite(lse) && std::abs(lse) >= (type == DType::f64 ? kFar : kCoarse);
}

struct SoftmaxState {
  double top = kMinusInfinity;  // the largest score
  double l = 0;                 // sum of weight(s, top)

  // Takes the score s; what was summed so far must be multiplied by `rescale`, and s weighs `p`.
  struct Step {
    double rescale, p;
  };
  [[gnu::always_inline]] ATTEND_HOST_DEVICE Step add(double s) noexcept {
    const double before = top;
    if (s > top) top = s;
    const Step step{rescale_factor(before, top), weight(s, top)};
    l = l * step.rescale + step.p;
    return step;
  }

  // Joins the sum over other keys: this one's weighs `mine`, the other's `other`.
  struct Join {
    double mine, other;
  };
  [[gnu::always_inline]] ATTEND_HOST_DEVICE Join join(const SoftmaxState& part) noexcept {
    const double most = part.top > top ? part.top : top;
    const Join weights{rescale_factor(top, most), rescale_factor(part.top, most)};
    l = l * weights.mine + part.l * weights.other;
    top = most;
    return weights;
  }

  // log(sum of exp(s)); -inf if nothing was added
  [[gnu::always_inline]] ATTEND_HOST_DEVICE double lse() const noexcept {
    if (l == 0) return kMinusInfinity;
    const double unit = is_far(top) ? top : std::ceil(log2_units(top)) * std::numbers::ln2;
    return unit + std::log(l);
  }
};

}  // namespace attend
