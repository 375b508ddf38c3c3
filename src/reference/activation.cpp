// Activations and their slopes, element by element, in f32 or, of f64 tensors, in f64.
#include "core/activations.h"
#include "core/row_operations.h"

#include <type_traits>

namespace attend {
namespace {

template <class F>
ActivationPoint<F> activation(Activation kind, F x) {
  switch (kind) {
    case Activation::relu: return relu_at(x);
    case Activation::gelu: return gelu_at(x);
    case Activation::gelu_tanh: return gelu_tanh_at(x);
    default: return silu_at(x);
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
