// Activations and their slopes at a point, in f32 or f64: the formulas of the reference and of
// devices. (Vectors have their own: cpu/activation.h.)
#pragma once

#include "core/host_device.h"

#include <cmath>
#include <numbers>

namespace attend {

template <class F>
struct ActivationPoint {
  F value, slope;
};

template <class F>
ATTEND_HOST_DEVICE ActivationPoint<F> relu_at(F x) {
  return {x < 0 ? 0 : x, x <= 0 ? F{0} : F{1}};  // a NaN stays one
}

// x Phi(x). Phi by erfc: 1 + erf(x) would leave no digits where x is far below zero.
template <class F>
ATTEND_HOST_DEVICE ActivationPoint<F> gelu_at(F x) {
  constexpr F kRoot2 = std::numbers::sqrt2_v<F>;
  constexpr F kDensity = std::numbers::inv_sqrtpi_v<F> / kRoot2;
  const F phi = std::erfc(-x / kRoot2) / 2;
  return {x * phi, phi + x * kDensity * std::exp(-x * x / 2)};
}

// x / 2 (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3), as x / (1 + exp(-2u)): the same function,
// with digits left far below zero.
template <class F>
ATTEND_HOST_DEVICE ActivationPoint<F> gelu_tanh_at(F x) {
  constexpr F kInner = std::numbers::inv_sqrtpi_v<F> * std::numbers::sqrt2_v<F>;
  constexpr F kCube = F(0.044715);
  const F near = x < F{-40} ? F{-40} : F{40} < x ? F{40} : x;  // beyond, s is 0 or 1 in every type
  const F s = 1 / (1 + std::exp(-2 * kInner * (near + kCube * near * near * near)));
  const F du = kInner * (1 + 3 * kCube * near * near);
  return {x * s, s + near * 2 * s * (1 - s) * du};
}

// x / (1 + exp(-x)), swiglu's gate.
template <class F>
ATTEND_HOST_DEVICE ActivationPoint<F> silu_at(F x) {
  const F s = 1 / (1 + std::exp(-x));
  return {x * s, s + x * s * (1 - s)};
}

}  // namespace attend
