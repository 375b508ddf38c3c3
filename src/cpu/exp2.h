// 2^x and tanh(x) on vectors.
//
// x = n + f with n whole and |f| <= 1/2, and 2^f = 1 + f g(f) with a polynomial g, so that
// 2^0 = 1 exactly. Largest relative error of 1 + f g(f): 2.0e-9 in f32 (g of degree 5), 3.5e-18 in
// f64 (degree 10).
//
// kWhole is so large that the sum kWhole + x is whole: it is kWhole + n, and its lowest bits are
// the exponent of 2^n as a number has it.
#pragma once

#include "core/softmax_state.h"
#include "cpu/vec.h"

namespace attend {
namespace {

template <class T>
struct Exp2;

template <>
struct Exp2<float> {
  static constexpr float kLog2E = 1.4426950408889634F;
  static constexpr float kWhole = 0x1.8p23F + 127;
  static constexpr float kG[] = {0.00015353361816583956F, 0.0013398874445529091F,
                                 0.009618437358292717F,   0.05550332471026545F,
                                 0.24022647913619677F,    0.6931472028551288F};
};

template <>
struct Exp2<double> {
  static constexpr double kLog2E = 1.4426950408889634;
  static constexpr double kWhole = 0x1.8p52 + 1023;
  static constexpr double kG[] = {
      4.4348283955602646e-10, 7.0737831732923e-09,    1.0178199185855524e-07,
      1.3215435282865622e-06, 1.5252733494036023e-05, 0.00015403530457111332,
      0.001333355814677377,   0.009618129107594119,   0.055504108664820084,
      0.2402265069591013,     0.6931471805599453};
};

// The polynomial with the coefficients Of::kG, highest first, two of them at a time: half as many
// steps wait for each other.
template <class Of, class V>
ATTEND_INLINE V polynomial(V f) {
  constexpr int kCount = std::extent_v<decltype(Of::kG)>, kFirst = 2 - kCount % 2;
  const auto c = ATTEND_EACH(index) { return V::set(Of::kG[index]); };
  const V square = f * f;
  V g = c(At<0>{});
  if constexpr (kFirst == 2) g = fma(g, f, c(At<1>{}));
  unrolled<(kCount - kFirst) / 2>(ATTEND_EACH(pair) {
    constexpr int kIndex = kFirst + 2 * pair;
    g = fma(g, square, fma(c(At<kIndex>{}), f, c(At<kIndex + 1>{})));
  });
  return g;
}
template <class V>
ATTEND_INLINE V exp2_polynomial(V f) {
  return polynomial<Exp2<typename V::T>>(f);
}

// 2^x for x <= 1, -inf included; NaN stays. 2^-127 has the bits of 0, and it is all there is below
// 2^-126.5 (f64: 2^-1022.5).
template <class V>
ATTEND_INLINE V exp2_of(V x) {
  const V whole = V::set(Exp2<typename V::T>::kWhole);
  const V reachable = larger(V::set(V::kLowestPower - 1), x);
  const V n = reachable + whole;
  const V f = reachable - (n - whole);
  return scaled(fma(exp2_polynomial(f), f, V::set(1)), n);
}

// The same, with gradual underflow; subnormal results are slow.
template <class V>
ATTEND_INLINE V exp2_gradual(V x) {
  const auto small = less(x, V::set(V::kLowestPower + 1));
  const V power = exp2_of(select(small, x + V::set(64), x));
  return select(small, power * V::set(static_cast<typename V::T>(0x1p-64)), power);
}

// t - m with t = s log2(e) and m = ceil(t), as core/softmax_state.h has it; D: a vector of f64.
template <class D>
ATTEND_INLINE D rest_of(D s) {
  const D log2e = D::set(std::numbers::log2e), m = ceiling(s * log2e);
  return (s - m * D::set(kLn2High) - m * D::set(kLn2Low)) * log2e;
}

// tanh(x) = e / (e + 2) with e = exp(2x) - 1, whose digits are all there for small x too:
// e = 2^n f g(f) + (2^n - 1), and for n = 0 the second part is exactly 0.
template <class V>
ATTEND_INLINE V tanh_of(V x) {
  using T = typename V::T;
  // Beyond this tanh is 1 to the last digit, and 2^n - 1 still exact or nearly so.
  const V most = V::set(sizeof(T) == 4 ? T{15} : T{30});
  const V zero = V::set(0);
  const V upper = select(less(most, x), most, x);
  const V t = larger(zero - most, upper) * V::set(2 * Exp2<T>::kLog2E);
  const V whole = V::set(Exp2<T>::kWhole), n = t + whole;
  const V f = t - (n - whole);
  const V power = scaled(V::set(1), n);
  const V e = fma(power, exp2_polynomial(f) * f, power - V::set(1));
  return e / (e + V::set(2));
}

}  // namespace
}  // namespace attend
