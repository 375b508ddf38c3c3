// Numbers of 53 and of 113 bits under one set of names, so that the oracle is written once.
//
// Float128 is IEEE binary128: __float128 on x86-64, where its functions come from libquadmath, and
// long double on aarch64, where they are the C library's.
#pragma once

#include <cmath>

#if defined(__x86_64__)
// Declared here because <quadmath.h> lies in a folder that only g++ searches.
extern "C" {
__extension__ typedef __float128 attend_test_float128;
attend_test_float128 expq(attend_test_float128);
attend_test_float128 logq(attend_test_float128);
attend_test_float128 tanhq(attend_test_float128);
attend_test_float128 sqrtq(attend_test_float128);
}
#endif

namespace attend::test {

#if defined(__x86_64__)
using Float128 = attend_test_float128;
inline Float128 exp_of(Float128 x) { return expq(x); }
inline Float128 log_of(Float128 x) { return logq(x); }
inline Float128 tanh_of(Float128 x) { return tanhq(x); }
inline Float128 sqrt_of(Float128 x) { return sqrtq(x); }
#else
using Float128 = long double;
inline Float128 exp_of(Float128 x) { return std::exp(x); }
inline Float128 log_of(Float128 x) { return std::log(x); }
inline Float128 tanh_of(Float128 x) { return std::tanh(x); }
inline Float128 sqrt_of(Float128 x) { return std::sqrt(x); }
#endif

inline double exp_of(double x) { return std::exp(x); }
inline double log_of(double x) { return std::log(x); }
inline double tanh_of(double x) { return std::tanh(x); }
inline double sqrt_of(double x) { return std::sqrt(x); }

static_assert(sizeof(Float128) == 16);

}  // namespace attend::test
