// Element by element on any NVIDIA GPU: activations and their gradients, rotary positions,
// conversion, sums and copies of tensors with any strides, and what comes at the end of a product.
// The formulas are those of src/core.
#include "features.cuh"
#include "portable_features.h"

namespace attend::cuda {
namespace {

// Calls use(n) for each n below count, all threads together.
template <class Use>
__device__ void for_each(std::int64_t count, Use use) {
  for (std::int64_t n = blockIdx.x * std::int64_t{kElementThreads} + threadIdx.x; n < count;
       n += gridDim.x * std::int64_t{kElementThreads})
    use(n);
}

// Calls use(row, column) for each element of [rows, features], of which a block of threads has
// some columns of a row.
template <class Use>
__device__ void for_each_place(std::int64_t rows, std::int64_t features, std::int64_t columns,
                               Use use) {
  constexpr int kTogether = kElementThreads * kElementsEach;
  for (std::int64_t item = blockIdx.x; item < rows * columns; item += gridDim.x) {
    const std::int64_t row = item / columns, begin = item % columns * kTogether + threadIdx.x;
#pragma unroll
    for (int n = 0; n < kElementsEach; ++n)
      if (const std::int64_t c = begin + n * kElementThreads; c < features) use(row, c);
  }
}

template <class T>
__device__ void activate(const PortableActivation& a) {
  const T* const up = static_cast<const T*>(a.call.up);
  const T* const gate = static_cast<const T*>(a.call.gate);
  T* const hidden = static_cast<T*>(a.call.hidden);
  for_each(a.count, [&](std::int64_t n) {
    hidden[n] = activated(a.kind, up[n], gate == nullptr ? nullptr : gate + n);
  });
}

template <class T>
__device__ void activate_back(const PortableActivationBackward& a) {
  const T* const up = static_cast<const T*>(a.call.up);
  const T* const gate = static_cast<const T*>(a.call.gate);
  const T* const dhidden = static_cast<const T*>(a.call.dhidden);
  T *const dup = static_cast<T*>(a.call.dup), *const dgate = static_cast<T*>(a.call.dgate);
  for_each(a.count, [&](std::int64_t n) {
    const Real<T> d = number(dhidden[n]), u = number(up[n]);
    const auto at = activation_at(a.kind, gate == nullptr ? u : number(gate[n]));
    if (gate != nullptr) dgate[n] = rounded<T>(d * u * at.slope);
    dup[n] = rounded<T>(d * (gate == nullptr ? at.slope : at.value));
  });
}

// A thread has a pair of features of a row, in all heads.
template <class T>
__device__ void rotate(const PortableRotary& a) {
  const RotaryCall& call = a.call;
  for_each(a.rows * call.pairs, [&](std::int64_t item) {
    const std::int64_t n = item / call.pairs, c = item % call.pairs;
    const double angle = static_cast<double>(place_of(call.places, n)) * call.frequency[c];
    double sine = 0, cosine = 0;
    sincos(angle, &sine, &cosine);
    if (call.back) sine = -sine;
    T* const row =
        reinterpret_cast<T*>(call.x.data) + call.x.offset(n / call.length, 0, n % call.length);
    const std::int64_t first = a.halves ? c : 2 * c, second = a.halves ? c + call.pairs : 2 * c + 1;
    for (std::int64_t h = 0; h < call.heads; ++h) {
      T& x = row[call.x.offset(0, h, 0, first)];
      T& y = row[call.x.offset(0, h, 0, second)];
      const double u = number(x), w = number(y);
      x = rounded<T>(u * cosine - w * sine);
      y = rounded<T>(u * sine + w * cosine);
    }
  });
}

// The bits of a NaN: its sign and, but in f16, its upper bits, as on the host. (The device's own
// conversions have one NaN for all.)
__device__ std::uint64_t bits_in_f64(double x) { return __double_as_longlong(x); }
__device__ std::uint64_t bits_in_f64(float x) {
  const std::uint64_t bits = __float_as_uint(x);
  return bits >> 31 << 63 | std::uint64_t{0x7FF} << 52 | (bits & 0x7FFFFF) << 29;
}
template <class To>
__device__ To nan_of(std::uint64_t bits) {
  const auto sign = static_cast<std::uint32_t>(bits >> 63);
  const auto upper = static_cast<std::uint32_t>(bits >> 29 & 0x7FFFFF);  // those of f32
  if constexpr (std::is_same_v<To, double>) {
    return __longlong_as_double(static_cast<long long>(bits | std::uint64_t{1} << 51));
  } else if constexpr (std::is_same_v<To, float>) {
    return __uint_as_float(sign << 31 | 0x7FC00000U | upper);
  } else {
    To to;
    to.bits = static_cast<std::uint16_t>(
        sign << 15 | (std::is_same_v<To, bf16> ? 0x7FC0U | upper >> 16 : 0x7E00U));
    return to;
  }
}

template <class To, class From>
__device__ To converted(From x) {
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else {
    const Real<From> value = number(x);
    if (!(value == value)) {
      if constexpr (std::is_same_v<From, f16>)  // number() may have lost its bits
        return nan_of<To>(std::uint64_t{x.bits} >> 15 << 63 | std::uint64_t{0x7FF} << 52 |
                          (std::uint64_t{x.bits} & 0x3FF) << 42);
      else return nan_of<To>(bits_in_f64(value));
    }
    return rounded<To>(value);
  }
}

template <class From>
__device__ void convert(const PortableConvert& a) {
  with_type(a.to, [&]<class To>(To) {
    const From* const from = static_cast<const From*>(a.call.from);
    To* const to = static_cast<To*>(a.call.to);
    for_each(a.count, [&](std::int64_t n) { to[n] = converted<To>(from[n]); });
  });
}

template <class T>
__device__ void add(const PortableAdd& a) {
  const AddCall& call = a.call;
  const auto at = [](const AddCall::Rows& x, std::int64_t r, std::int64_t c) {
    return static_cast<const T*>(x.data)[r * x.row + c * x.column];
  };
  for_each_place(a.rows, call.features, a.columns, [&](std::int64_t r, std::int64_t c) {
    T& y = static_cast<T*>(call.y)[r * call.y_row + c * call.y_column];
    y = call.b.data == nullptr ? at(call.a, r, c) : sum(at(call.a, r, c), at(call.b, r, c));
  });
}

template <class T>
__device__ void finish_product(const PortableEnd& a) {
  for_each_place(a.m, a.n, a.columns, [&](std::int64_t r, std::int64_t x) {
    T& c = static_cast<T*>(a.c)[r * a.c_row + x * a.c_column];
    T value = c;
    if (a.bias != nullptr) value = sum(value, static_cast<const T*>(a.bias)[x * a.bias_stride]);
    if (a.activated)
      value = activated(a.kind, value,
                        a.gate == nullptr
                            ? nullptr
                            : static_cast<const T*>(a.gate) + r * a.gate_row + x * a.gate_column);
    if (a.residual != nullptr)
      value =
          sum(value, static_cast<const T*>(a.residual)[r * a.residual_row + x * a.residual_column]);
    c = value;
  });
}

}  // namespace
}  // namespace attend::cuda

#define ATTEND_ELEMENT_KERNEL(kernel, name, T, Arguments, function)        \
  extern "C" __global__ void __launch_bounds__(256)                        \
      kernel##_##name(const __grid_constant__ attend::cuda::Arguments a) { \
    attend::cuda::function<T>(a);                                          \
  }
#define ATTEND_ELEMENT_KERNELS(name, T)                                                  \
  ATTEND_ELEMENT_KERNEL(attend_activation, name, T, PortableActivation, activate)        \
  ATTEND_ELEMENT_KERNEL(attend_activation_backward, name, T, PortableActivationBackward, \
                        activate_back)                                                   \
  ATTEND_ELEMENT_KERNEL(attend_rotary, name, T, PortableRotary, rotate)                  \
  ATTEND_ELEMENT_KERNEL(attend_convert, name, T, PortableConvert, convert)               \
  ATTEND_ELEMENT_KERNEL(attend_add, name, T, PortableAdd, add)                           \
  ATTEND_ELEMENT_KERNEL(attend_end, name, T, PortableEnd, finish_product)
ATTEND_EACH_TYPE(ATTEND_ELEMENT_KERNELS)
