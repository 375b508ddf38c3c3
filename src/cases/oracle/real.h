// Numbers of 53, 64 and 113 bits under one set of names, so that the oracle is written once.
//
// Float128 is IEEE binary128: __float128 on x86-64, where its functions come from libquadmath, and
// long double on aarch64, where they are the C library's. Who uses it on x86-64 links libquadmath;
// long double needs nothing, and has 64 bits there.
#pragma once

#include <cmath>

#if defined(__x86_64__)
// Declared here because <quadmath.h> lies in a folder that only g++ searches.
extern "C" {
__extension__ typedef __float128 attend_oracle_float128;  // NOLINT(modernize-use-using): C
attend_oracle_float128 expq(attend_oracle_float128);
attend_oracle_float128 logq(attend_oracle_float128);
attend_oracle_float128 tanhq(attend_oracle_float128);
attend_oracle_float128 sqrtq(attend_oracle_float128);
}
#endif

namespace attend::oracle {

#if defined(__x86_64__)
using Float128 = attend_oracle_float128;
inline Float128 exp_of(Float128 x) { return expq(x); }
inline Float128 log_of(Float128 x) { return logq(x); }
inline Float128 tanh_of(Float128 x) { return tanhq(x); }
inline Float128 sqrt_of(Float128 x) { return sqrtq(x); }
#else
using Float128 = long double;
#endif

inline long double exp_of(long double x) { return std::exp(x); }
inline long double log_of(long double x) { return std::log(x); }
inline long double tanh_of(long double x) { return std::tanh(x); }
inline long double sqrt_of(long double x) { return std::sqrt(x); }

inline double exp_of(double x) { return std::exp(x); }
inline double log_of(double x) { return std::log(x); }
inline double tanh_of(double x) { return std::tanh(x); }
inline double sqrt_of(double x) { return std::sqrt(x); }

static_assert(sizeof(Float128) == 16);

}  // namespace attend::oracle
