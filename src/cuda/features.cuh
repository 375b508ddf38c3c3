// Elements of each type as numbers to compute with, f32 or, of f64 tensors, f64; and what products
// and rows of features do to them.
#pragma once

#include "core/activations.h"
#include "core/strided.h"

#include <attend/feed_forward.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

namespace attend::cuda {

// Defines a kernel for each type: use(name, type).
#define ATTEND_EACH_TYPE(use) \
  use(f64, double) use(f32, float) use(bf16, attend::bf16) use(f16, attend::f16)

template <class T>
using Real = std::conditional_t<std::is_same_v<T, double>, double, float>;

__device__ __forceinline__ double number(double x) { return x; }
__device__ __forceinline__ float number(float x) { return x; }
__device__ __forceinline__ float number(bf16 x) {
  return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}
__device__ __forceinline__ float number(f16 x) { return __half2float(__ushort_as_half(x.bits)); }
__device__ __forceinline__ float number(std::int8_t x) { return x; }

// Rounded once, to nearest even.
template <class T>
__device__ __forceinline__ T rounded(double x) {
  T to;
  narrow(x, to);
  return to;
}
template <class T>
__device__ __forceinline__ T rounded(float x) {
  if constexpr (std::is_same_v<T, bf16>) {
    bf16 to;
    to.bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
    return to;
  } else if constexpr (std::is_same_v<T, f16>) {
    f16 to;
    to.bits = __half_as_ushort(__float2half_rn(x));
    return to;
  } else {
    return static_cast<T>(x);
  }
}

template <class F>
__device__ __forceinline__ ActivationPoint<F> activation_at(Activation kind, F x) {
  switch (kind) {
    case Activation::relu: return relu_at(x);
    case Activation::gelu: return gelu_at(x);
    case Activation::gelu_tanh: return gelu_tanh_at(x);
    default: return silu_at(x);
  }
}

// hidden = act(up), or silu(gate) * up.
template <class T>
__device__ __forceinline__ T activated(Activation kind, T up, const T* gate) {
  const Real<T> u = number(up);
  if (gate == nullptr) return rounded<T>(activation_at(kind, u).value);
  return rounded<T>(activation_at(kind, number(*gate)).value * u);
}

template <class T>
__device__ __forceinline__ T sum(T a, T b) {
  return rounded<T>(number(a) + number(b));
}

}  // namespace attend::cuda
