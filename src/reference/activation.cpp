// Activations and their slopes, element by element, in f32 or, of f64 tensors, in f64.
#include "core/row_operations.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <type_traits>

namespace attend {
namespace {

// An activation's value and slope at a point; F is float, for f64 tensors double.
template <class F>
struct Point {
  F value, slope;
};

template <class F>
Point<F> relu(F x) {
  return {x < 0 ? 0 : x, x <= 0 ? F{0} : F{1}};  // a NaN stays one
}

// x Phi(x). Phi by erfc: 1 + erf(x) would leave no digits where x is far below zero.
template <class F>
Point<F> gelu(F x) {
  constexpr F kDensity = std::numbers::inv_sqrtpi_v<F> / std::numbers::sqrt2_v<F>;
  const F phi = std::erfc(-x / std::numbers::sqrt2_v<F>) / 2;
  return {x * phi, phi + x * kDensity * std::exp(-x * x / 2)};
}

// x / 2 (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3), as x / (1 + exp(-2u)): the same function,
// with digits left far below zero.
template <class F>
Point<F> gelu_tanh(F x) {
  constexpr F kInner = std::numbers::inv_sqrtpi_v<F> * std::numbers::sqrt2_v<F>;
  constexpr F kCube = F(0.044715);
  const F near = std::clamp(x, F{-40}, F{40});  // beyond, s is 0 or 1 in every type
  const F s = 1 / (1 + std::exp(-2 * kInner * (near + kCube * near * near * near)));
  const F du = kInner * (1 + 3 * kCube * near * near);
  return {x * s, s + near * 2 * s * (1 - s) * du};
}

// x / (1 + exp(-x)), swiglu's gate.
template <class F>
Point<F> silu(F x) {
  const F s = 1 / (1 + std::exp(-x));
  return {x * s, s + x * s * (1 - s)};
}

template <class F>
Point<F> activation(Activation kind, F x) {
  switch (kind) {
    case Activation::relu: return relu(x);
    case Activation::gelu: return gelu(x);
    case Activation::gelu_tanh: return gelu_tanh(x);
    default: return silu(x);
  }
}

template <class T>
using Float = std::conditional_t<std::is_same_v<T, double>, double, float>;

void forward(const ActivationProblem& p, const ActivationCall& call, RowRange rows) noexcept {
  with_type(p.type, [&]<class T>(T) {
    const T* const u = static_cast<const T*>(call.up);
    const T* const g = static_cast<const T*>(call.gate);
    T* const h = static_cast<T*>(call.hidden);
    for (std::int64_t n = rows.begin * call.features; n < rows.end * call.features; ++n) {
      const auto x = static_cast<Float<T>>(g != nullptr ? g[n] : u[n]);
      const Float<T> a = activation(p.kind, x).value;
      h[n] = static_cast<T>(g != nullptr ? a * static_cast<Float<T>>(u[n]) : a);
    }
  });
}

void backward(const ActivationProblem& p, const ActivationBackwardCall& call,
              RowRange rows) noexcept {
  with_type(p.type, [&]<class T>(T) {
    const T* const u = static_cast<const T*>(call.up);
    const T* const g = static_cast<const T*>(call.gate);
    const T* const dh = static_cast<const T*>(call.dhidden);
    T *const du = static_cast<T*>(call.dup), *const dg = static_cast<T*>(call.dgate);
    for (std::int64_t n = rows.begin * call.features; n < rows.end * call.features; ++n) {
      const auto d = static_cast<Float<T>>(dh[n]);
      const auto a = activation(p.kind, static_cast<Float<T>>(g != nullptr ? g[n] : u[n]));
      du[n] = static_cast<T>(d * (g != nullptr ? a.value : a.slope));
      if (g != nullptr) dg[n] = static_cast<T>(d * static_cast<Float<T>>(u[n]) * a.slope);
    }
  });
}

std::string declines(const ActivationProblem&, const Machine&) { return {}; }

}  // namespace

extern constinit const Kernel<ActivationForward> kReferenceActivation{
    .name = "reference.activation",
    .only_if_forced = false,
    .takes = kTakenByActivations,
    .declines = declines,
    .run = forward,
};
extern constinit const Kernel<ActivationBackward> kReferenceActivationBackward{
    .name = "reference.activation_backward",
    .only_if_forced = false,
    .takes = kTakenByActivations,
    .declines = declines,
    .run = backward,
};

}  // namespace attend
