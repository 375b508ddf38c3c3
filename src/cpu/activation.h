// Activations and their slopes on vectors, in the type of the vectors, and rows of features through
// them. Their errors are those of x changed in its last digit and a few units in the last place;
// what is smaller than the least normal number times |x| may be 0.
#pragma once

#include "core/row_operations.h"
#include "cpu/elements.h"
#include "cpu/exp2.h"

namespace attend {
namespace {

// Phi(-a) = exp(-a^2 / 2) t P(t) with t = 1 / (1 + a / 5), for a >= 0. Largest relative error of
// t P(t): 1.7e-8 in f32, 1.8e-16 in f64.
template <class T>
struct NormalTail;
template <>
struct NormalTail<float> {
  static constexpr float kG[] = {-0.04624327169F, 0.1635187908F,  -0.1630534584F, 0.1782609882F,
                                 -0.01670350694F, 0.08136719922F, 0.06623516493F, 0.07707137874F,
                                 0.07975740519F,  0.0797893014F};
};
template <>
struct NormalTail<double> {
  static constexpr double kG[] = {
      0.0006634433357990467401, -0.006032371842447308163, 0.02302624723929817367,
      -0.04495715761532333711,  0.03660571094238803751,   0.02914048970275972972,
      -0.1179536947990868946,   0.16946247007822374,      -0.1629043606098839272,
      0.1095166582332096274,    -0.05682515326602421205,  0.03082244163188064618,
      0.007398074708941702928,  0.02759029380592411257,   0.03719617178469570612,
      0.0498471136330090065,    0.06101541546886615677,   0.07021440886422491959,
      0.07659688543255778963,   0.07978845720873285981,   0.07978845606225451069};
};

template <class V>
struct Point {
  V value, slope;
};

template <class V>
ATTEND_INLINE V magnitude(V x) {
  return select(less(x, V::set(0)), V::set(0) - x, x);
}

// s = 1 / (1 + exp(-x)), and 1 - s with all its digits.
template <class V>
struct Sigmoid {
  V s, rest;
  ATTEND_INLINE explicit Sigmoid(V x) {
    const auto negative = less(x, V::set(0));
    const V e = exp2_of(magnitude(x) * V::set(-Exp2<typename V::T>::kLog2E));
    const V upper = V::set(1) / (V::set(1) + e), lower = e * upper;
    s = select(negative, lower, upper);
    rest = select(negative, upper, lower);
  }
};

struct Relu {
  template <class V>
  ATTEND_INLINE static Point<V> at(V x) {  // a NaN stays one
    const V zero = V::set(0);
    return {select(less(x, zero), zero, x),
            select(less(zero, x), V::set(1), select(less(x, V::set(1)), zero, V::set(1)))};
  }
};

struct Gelu {
  template <class V>
  ATTEND_INLINE static Point<V> at(V x) {
    using T = typename V::T;
    constexpr T kDensity = static_cast<T>(std::numbers::inv_sqrtpi / std::numbers::sqrt2);
    const V a = magnitude(x);
    const V e = exp2_of(a * a * V::set(Exp2<T>::kLog2E / -2));
    const V t = V::set(1) / fma(a, V::set(static_cast<T>(0.2)), V::set(1));
    const V tail = e * t * polynomial<NormalTail<T>>(t);
    const V phi = select(less(x, V::set(0)), tail, V::set(1) - tail);
    return {x * phi, fma(x * V::set(kDensity), e, phi)};
  }
};

// x / 2 (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3), is x sigmoid(2u).
struct GeluTanh {
  template <class V>
  ATTEND_INLINE static Point<V> at(V x) {
    using T = typename V::T;
    constexpr double kTwice = 2 * std::numbers::inv_sqrtpi * std::numbers::sqrt2;
    constexpr double kCube = 0.044715;
    const V most = V::set(40), low = larger(V::set(-40), x);  // beyond, s is 0 or 1 in every type
    const V near = select(less(most, low), most, low);
    const V square = near * near;
    const Sigmoid<V> of(
        near * fma(square, V::set(static_cast<T>(kTwice * kCube)), V::set(static_cast<T>(kTwice))));
    const V du =
        fma(square, V::set(static_cast<T>(3 * kTwice * kCube)), V::set(static_cast<T>(kTwice)));
    return {x * of.s, fma(near * of.s * of.rest, du, of.s)};
  }
};

// x sigmoid(x), swiglu's gate.
struct Silu {
  template <class V>
  ATTEND_INLINE static Point<V> at(V x) {
    const Sigmoid<V> of(x);
    return {x * of.s, fma(x * of.s, of.rest, of.s)};
  }
};

// Calls use(activation).
template <class Use>
ATTEND_INLINE void with_activation(Activation kind, Use use) {
  switch (kind) {
    case Activation::relu: return use(Relu{});
    case Activation::gelu: return use(Gelu{});
    case Activation::gelu_tanh: return use(GeluTanh{});
    default: return use(Silu{});
  }
}

template <class Of, class V, class E>
void activate(const ActivationCall& call, std::int64_t begin, std::int64_t end) noexcept {
  const E* const up = static_cast<const E*>(call.up);
  const E* const gate = static_cast<const E*>(call.gate);
  E* const hidden = static_cast<E*>(call.hidden);
  for (std::int64_t n = begin; n < end; n += V::kLanes) {
    const V u = load_elements<V>(up + n, end - n);
    const V value =
        gate == nullptr ? Of::at(u).value : Of::at(load_elements<V>(gate + n, end - n)).value * u;
    store_elements(value, hidden + n, end - n);
  }
}

template <class Of, class V, class E>
void activate_back(const ActivationBackwardCall& call, std::int64_t begin,
                   std::int64_t end) noexcept {
  const E* const up = static_cast<const E*>(call.up);
  const E* const gate = static_cast<const E*>(call.gate);
  const E* const dhidden = static_cast<const E*>(call.dhidden);
  E *const dup = static_cast<E*>(call.dup), *const dgate = static_cast<E*>(call.dgate);
  for (std::int64_t n = begin; n < end; n += V::kLanes) {
    const std::int64_t left = end - n;
    const V u = load_elements<V>(up + n, left), d = load_elements<V>(dhidden + n, left);
    if (gate == nullptr) {
      store_elements(d * Of::at(u).slope, dup + n, left);
    } else {
      const Point<V> g = Of::at(load_elements<V>(gate + n, left));
      store_elements(d * g.value, dup + n, left);
      store_elements(d * u * g.slope, dgate + n, left);
    }
  }
}

template <class Float, class Double>
void activation_rows(const ActivationProblem& p, const ActivationCall& call,
                     RowRange rows) noexcept {
  with_elements<Float, Double>(p.type, [&]<class V, class E>(V, E) {
    with_activation(p.kind, [&]<class Of>(Of) {
      activate<Of, V, E>(call, rows.begin * call.features, rows.end * call.features);
    });
  });
}

template <class Float, class Double>
void activation_backward_rows(const ActivationProblem& p, const ActivationBackwardCall& call,
                              RowRange rows) noexcept {
  with_elements<Float, Double>(p.type, [&]<class V, class E>(V, E) {
    with_activation(p.kind, [&]<class Of>(Of) {
      activate_back<Of, V, E>(call, rows.begin * call.features, rows.end * call.features);
    });
  });
}

}  // namespace
}  // namespace attend
