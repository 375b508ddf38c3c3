// A row of numbers as whole numbers of 8 bits and one scale, for KV caches of i8.
//
//   scale = max |x| / 127, rounded to f32, but not below 2^-126, its smallest normal number; a row
//           of zeros has 0
//   n     = x / scale, to the nearest whole number, of two to the even one: |n| <= 127
//
// What the row then means, n * scale, is at most scale / 2 from x. A row that holds NaN or an
// infinity, or an f64 of which the scale would be beyond f32, cannot be said so: its scale is NaN,
// and so is every number that it means.
//
// It depends on the row alone, and on no rounding mode but for the last bit of the scale.
#pragma once

#include "core/strided.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace attend {

inline constexpr double kMostOfEightBits = 127;

// |x| is below 2^31.
inline int nearest_even(double x) noexcept {
  const int whole = static_cast<int>(x);
  const double rest = std::abs(x - whole);
  const bool away = rest > 0.5 || (rest == 0.5 && whole % 2 != 0);
  return away ? whole + (x < 0 ? -1 : 1) : whole;
}

// Writes `count` numbers, `from` having any stride, and gives the scale.
template <class E>
float quantise_row(const E* from, std::int64_t stride, std::int64_t count,
                   std::int8_t* to) noexcept {
  double most = 0, check = 0;  // check becomes NaN if anything is not finite
  for (std::int64_t x = 0; x < count; ++x) {
    const double value = widened(from[x * stride]);
    most = std::max(most, std::abs(value));
    check += value * 0;
  }
  const bool fits = check == 0 && most <= kMostOfEightBits * std::numeric_limits<float>::max();
  if (!fits || most == 0) {
    std::fill_n(to, count, std::int8_t{0});
    return fits ? 0 : std::numeric_limits<float>::quiet_NaN();
  }
  const float scale =
      std::max(static_cast<float>(most / kMostOfEightBits), std::numeric_limits<float>::min());
  // Divided in f64, a number of f32 or less is on the right side of every half.
  for (std::int64_t x = 0; x < count; ++x)
    to[x] = static_cast<std::int8_t>(
        nearest_even(widened(from[x * stride]) / static_cast<double>(scale)));
  return scale;
}

}  // namespace attend
