// Two linear maps with an activation between them, or three with a gate.
#include "core/strided.h"
#include "core/text.h"
#include "layer/check.h"
#include "layer/elementwise.h"
#include "layer/initialise.h"
#include "layer/lists.h"
#include "layer/rows.h"

#include <attend/feed_forward.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <type_traits>

namespace attend {
namespace {

constexpr const char* kLayer = "feed_forward";

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

template <class T>
const T* elements(const Tensor& t) {
  return static_cast<const T*>(t.view().data());  // null for none
}
template <class T>
T* elements(Tensor& t) {
  return static_cast<T*>(t.view().data());
}

// Calls each(n) for the number of every element of tensors of this shape.
template <class Each>
void for_elements(const Shape& shape, Context& context, Each each) {
  const std::int64_t features = shape[shape.rank() - 1];
  for_row_blocks(element_count(shape) / features, features, context,
                 [&](auto, auto begin, auto end) {
                   for (std::int64_t n = begin * features; n < end * features; ++n) each(n);
                 });
}

// act(up), or silu(gate) * up where there is a gate.
Tensor activated(Activation kind, const Tensor& up, const Tensor& gate, Context& context) {
  Tensor hidden = Tensor::uninitialized(up.shape(), up.dtype());
  with_type(up.dtype(), [&]<class T>(T) {
    const T *u = elements<T>(up), *g = elements<T>(gate);
    T* h = elements<T>(hidden);
    for_elements(up.shape(), context, [=](std::int64_t n) {
      const auto x = static_cast<Float<T>>(g != nullptr ? g[n] : u[n]);
      const Float<T> a = activation(kind, x).value;
      h[n] = static_cast<T>(g != nullptr ? a * static_cast<Float<T>>(u[n]) : a);
    });
  });
  return hidden;
}

// From the gradient at the hidden values to those at up and at the gate, if there is one.
void activation_backward(Activation kind, const Tensor& up, const Tensor& gate,
                         const Tensor& dhidden, Tensor& dup, Tensor& dgate, Context& context) {
  with_type(up.dtype(), [&]<class T>(T) {
    const T *u = elements<T>(up), *g = elements<T>(gate), *dh = elements<T>(dhidden);
    T *du = elements<T>(dup), *dg = elements<T>(dgate);
    for_elements(up.shape(), context, [=](std::int64_t n) {
      const auto d = static_cast<Float<T>>(dh[n]);
      const auto a = activation(kind, static_cast<Float<T>>(g != nullptr ? g[n] : u[n]));
      du[n] = static_cast<T>(d * (g != nullptr ? a.value : a.slope));
      if (g != nullptr) dg[n] = static_cast<T>(d * static_cast<Float<T>>(u[n]) * a.slope);
    });
  });
}

}  // namespace

FeedForward::FeedForward(const FeedForwardOptions& options) : options_(options) {
  reporting("feed_forward", [&] {
    check_size(kLayer, "model_dim", options.model_dim);
    if (options.hidden_dim < 0)
      throw InvalidArgument(text("feed_forward: hidden_dim is ", options.hidden_dim,
                                 "; it must be at least 1, or 0 for 4 * model_dim"));
    if (options.activation > Activation::swiglu)
      throw InvalidArgument(text("feed_forward: activation is ",
                                 static_cast<int>(options.activation),
                                 "; it must be relu, gelu, gelu_tanh or swiglu"));
    check_type(kLayer, options.type);
    constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
    if (options.hidden_dim == 0)
      options_.hidden_dim = options.model_dim > kMost / 4 ? kMost : 4 * options.model_dim;
    const auto map = [&](const char* name, std::int64_t in, std::int64_t out) {
      return Linear({in, out, options.bias, options.type, derived_seed(options.seed, name)});
    };
    up_ = map("up", options.model_dim, options_.hidden_dim);
    if (options.activation == Activation::swiglu)
      gate_ = map("gate", options.model_dim, options_.hidden_dim);
    down_ = map("down", options_.hidden_dim, options.model_dim);
  });
}

Tensor FeedForward::forward(const ConstTensorView& x, Context& context) const {
  return reporting(kLayer, [&] {
    check_made(kLayer, static_cast<bool>(*this));
    check_input(kLayer, "x", x, options_.type, options_.model_dim);
    const Tensor up = up_.forward(x, context);
    const Tensor gate = gate_ ? gate_.forward(x, context) : Tensor();
    return down_.forward(activated(options_.activation, up, gate, context), context);
  });
}

std::pair<Tensor, FeedForward::Saved> FeedForward::forward_train(const ConstTensorView& x,
                                                                 Context& context) const {
  return reporting(kLayer, [&]() -> std::pair<Tensor, Saved> {
    check_made(kLayer, static_cast<bool>(*this));
    check_input(kLayer, "x", x, options_.type, options_.model_dim);
    Saved saved{Tensor::copy_of(x), up_.forward(x, context),
                gate_ ? gate_.forward(x, context) : Tensor()};
    Tensor y =
        down_.forward(activated(options_.activation, saved.up, saved.gate, context), context);
    return {std::move(y), std::move(saved)};
  });
}

// The hidden values are made again: that costs less than the memory to keep them.
LayerGradients FeedForward::backward(const ConstTensorView& dy, const Saved& saved,
                                     Context& context) const {
  return reporting(kLayer, [&] {
    check_made(kLayer, static_cast<bool>(*this));
    check_input(kLayer, "x", saved.x, options_.type, options_.model_dim);
    check_shape(kLayer, "dy", dy, options_.type, saved.x.shape());
    const Shape hidden_shape = with_last(saved.x.shape(), options_.hidden_dim);
    check_shape(kLayer, "up", saved.up, options_.type, hidden_shape);
    if (gate_) check_shape(kLayer, "gate", saved.gate, options_.type, hidden_shape);
    const Tensor none;
    const Tensor& gate = gate_ ? saved.gate : none;

    LayerGradients down =
        down_.backward(dy, activated(options_.activation, saved.up, gate, context).view(), context);
    Tensor dup = Tensor::uninitialized(hidden_shape, options_.type);
    Tensor dgate = gate_ ? Tensor::uninitialized(hidden_shape, options_.type) : Tensor();
    activation_backward(options_.activation, saved.up, gate, down.dx, dup, dgate, context);

    LayerGradients up = up_.backward(dup, saved.x.view(), context), gradients;
    gradients.dx = std::move(up.dx);
    append(gradients.parameters, "up.", std::move(up.parameters));
    if (gate_) {
      LayerGradients part = gate_.backward(dgate, saved.x.view(), context);
      add_to(gradients.dx, part.dx, context);
      append(gradients.parameters, "gate.", std::move(part.parameters));
    }
    append(gradients.parameters, "down.", std::move(down.parameters));
    return gradients;
  });
}

std::vector<NamedView> FeedForward::parameters() const {
  return reporting(kLayer, [&] {
    std::vector<NamedView> list;
    append(list, "up.", up_.parameters());
    append(list, "gate.", gate_.parameters());
    append(list, "down.", down_.parameters());
    return list;
  });
}

std::vector<Parameter> FeedForward::parameters() {
  return reporting(kLayer, [&] {
    std::vector<Parameter> list;
    append(list, "up.", up_.parameters());
    append(list, "gate.", gate_.parameters());
    append(list, "down.", down_.parameters());
    return list;
  });
}

}  // namespace attend
