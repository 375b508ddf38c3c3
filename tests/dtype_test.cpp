// The element types. The two 16-bit ones are checked exhaustively, and against arithmetic that has
// nothing in common with the library's.
#include <attend/dtype.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <limits>
#include <random>
#include <sstream>
#include <vector>

namespace attend {
namespace {

TEST(DType, names_and_sizes) {
  const auto is = [](DType type, std::string_view name, std::int64_t size, bool floating) {
    EXPECT_EQ(name_of(type), name);
    EXPECT_EQ(size_of(type), size) << name;
    EXPECT_EQ(is_floating_point(type), floating) << name;
  };
  is(DType::f64, "f64", 8, true);
  is(DType::f32, "f32", 4, true);
  is(DType::bf16, "bf16", 2, true);
  is(DType::f16, "f16", 2, true);
  is(DType::i64, "i64", 8, false);
  is(DType::i32, "i32", 4, false);
  is(DType::i8, "i8", 1, false);
  is(DType::u8, "u8", 1, false);
  is(DType::boolean, "bool", 1, false);
}

TEST(DType, of_every_cpp_type) {
  static_assert(dtype_of<double>() == DType::f64 && dtype_of<float>() == DType::f32);
  static_assert(dtype_of<bf16>() == DType::bf16 && dtype_of<f16>() == DType::f16);
  static_assert(dtype_of<long>() == DType::i64 && dtype_of<long long>() == DType::i64);
  static_assert(dtype_of<int>() == DType::i32 && dtype_of<signed char>() == DType::i8);
  static_assert(dtype_of<unsigned char>() == DType::u8 && dtype_of<bool>() == DType::boolean);
  static_assert(!Element<char> && !Element<short> && !Element<unsigned> && !Element<void>);
  static_assert(!Element<long double> && !Element<const float> && !Element<float*>);
}

// A 16-bit floating-point format: fields of exponent and fraction, and what the library makes of
// it.
struct Format {
  const char* name;
  int fraction_bits, bias;
  std::uint16_t (*round)(double);
  double (*widen)(std::uint16_t);

  std::uint16_t infinity() const {
    return static_cast<std::uint16_t>(((2 * bias + 1) << fraction_bits) & 0x7FFF);
  }
  bool is_nan(std::uint16_t bits) const { return (bits & 0x7FFF) > infinity(); }

  // The number by the definition of the format; the infinities stand where the next number would.
  double value(std::uint16_t bits) const {
    const int exponent = (bits & 0x7FFF) >> fraction_bits;
    const int fraction = bits & ((1 << fraction_bits) - 1);
    const int significand = exponent == 0 ? fraction : fraction + (1 << fraction_bits);
    const double magnitude = std::ldexp(significand, std::max(exponent, 1) - bias - fraction_bits);
    return (bits & 0x8000) != 0 ? -magnitude : magnitude;
  }
};

const Format kFormats[] = {
    {"f16", 10, 15, [](double x) { return f16(x).bits; },
     [](std::uint16_t bits) {
       f16 x;
       x.bits = bits;
       return static_cast<double>(static_cast<float>(x));
     }},
    {"bf16", 7, 127, [](double x) { return bf16(x).bits; },
     [](std::uint16_t bits) {
       bf16 x;
       x.bits = bits;
       return static_cast<double>(static_cast<float>(x));
     }},
};

// A failure in one line, with the number's bits.
std::string rounding(const Format& format, double x) {
  std::ostringstream os;
  os << format.name << "(" << std::hexfloat << x << ") has bits 0x" << std::hex << format.round(x);
  return os.str();
}

TEST(SixteenBits, every_pattern_widens_to_its_value) {
  for (const Format& format : kFormats) {
    for (int n = 0; n < 65536; ++n) {
      const auto bits = static_cast<std::uint16_t>(n);
      const double wide = format.widen(bits);
      if (format.is_nan(bits)) {
        ASSERT_TRUE(std::isnan(wide)) << format.name << " " << n;
      } else if ((bits & 0x7FFF) == format.infinity()) {
        ASSERT_TRUE(std::isinf(wide)) << format.name << " " << n;
        ASSERT_EQ(std::signbit(wide), (bits & 0x8000) != 0);
      } else {
        ASSERT_EQ(std::bit_cast<std::uint64_t>(wide),
                  std::bit_cast<std::uint64_t>(format.value(bits)))
            << format.name << " " << n;
      }
    }
  }
}

TEST(SixteenBits, every_pattern_comes_back) {
  for (const Format& format : kFormats) {
    for (int n = 0; n < 65536; ++n) {
      const auto bits = static_cast<std::uint16_t>(n);
      const double wide = format.widen(bits);
      if (format.is_nan(bits)) {
        ASSERT_TRUE(format.is_nan(format.round(wide))) << rounding(format, wide);
        ASSERT_EQ(format.round(wide) & 0x8000, bits & 0x8000) << rounding(format, wide);
      } else {
        ASSERT_EQ(format.round(wide), bits) << rounding(format, wide);
      }
    }
  }
}

// Between each number and the next one (after the largest: infinity, as if it were the next power
// of two) the midpoint goes to the even one and the doubles beside it to the nearer one. Rounding
// first to f32 would lose those, and below the range of f32 everything.
std::string wrong_near_midpoints(const Format& format) {
  for (std::uint16_t bits = 0; bits < format.infinity(); ++bits) {
    const auto next = static_cast<std::uint16_t>(bits + 1), even = bits % 2 == 0 ? bits : next;
    const double middle = (format.value(bits) + format.value(next)) / 2;
    const double below = std::nextafter(middle, 0), above = std::nextafter(middle, HUGE_VAL);
    for (const int sign : {1, -1}) {
      const auto rounds_to = [&](double x, std::uint16_t expected) {
        return format.round(sign * x) == (expected | (sign < 0 ? 0x8000 : 0));
      };
      if (!rounds_to(middle, even)) return rounding(format, sign * middle);
      if (!rounds_to(below, bits)) return rounding(format, sign * below);
      if (!rounds_to(above, next)) return rounding(format, sign * above);
    }
  }
  return "";
}

TEST(SixteenBits, numbers_around_every_midpoint_round_once_to_nearest_even) {
  for (const Format& format : kFormats) EXPECT_EQ(wrong_near_midpoints(format), "");
}

TEST(SixteenBits, rounding_ignores_the_mode_of_the_caller) {
  for (const int mode : {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    for (const Format& format : kFormats) {
      std::vector<double> values;  // made to nearest: the test's own sums must not change
      std::vector<std::uint16_t> expected;
      for (std::uint16_t bits = 0; bits < format.infinity(); ++bits) {
        const double low = format.value(bits), high = format.value(bits + 1);
        for (const double part : {0.0, 0.25, 0.5, 0.5 + 0x1p-30, 0.5 - 0x1p-30, 1 - 0x1p-40}) {
          const double x = low + (high - low) * part;
          for (const double signed_x : {x, -x}) {
            const bool up = part > 0.5 || (part == 0.5 && bits % 2 == 1);
            values.push_back(signed_x);
            expected.push_back(
                static_cast<std::uint16_t>((bits + up) | (std::signbit(signed_x) ? 0x8000 : 0)));
          }
        }
      }
      std::vector<std::uint16_t> rounded(values.size());
      std::fesetround(mode);
      for (std::size_t n = 0; n < values.size(); ++n) rounded[n] = format.round(values[n]);
      std::fesetround(FE_TONEAREST);
      for (std::size_t n = 0; n < values.size(); ++n)
        ASSERT_EQ(rounded[n], expected[n]) << rounding(format, values[n]) << " in mode " << mode;
    }
  }
}

TEST(SixteenBits, what_is_out_of_range) {
  const double infinity = HUGE_VAL, largest = std::numeric_limits<double>::max();
  const double least = std::numeric_limits<double>::denorm_min();
  for (const Format& format : kFormats) {
    const std::uint16_t inf = format.infinity();
    for (const int mode : {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
      std::fesetround(mode);
      const std::uint16_t bits[] = {format.round(infinity), format.round(-infinity),
                                    format.round(largest),  format.round(-largest),
                                    format.round(least),    format.round(-least),
                                    format.round(0.0),      format.round(-0.0)};
      std::fesetround(FE_TONEAREST);
      const std::uint16_t minus_inf = inf | 0x8000;
      const std::uint16_t expected[] = {inf, minus_inf, inf, minus_inf, 0, 0x8000, 0, 0x8000};
      for (int n = 0; n < 8; ++n) EXPECT_EQ(bits[n], expected[n]) << format.name << " case " << n;
    }
  }
  EXPECT_EQ(f16(65519.999).bits, 0x7BFF);
  EXPECT_EQ(f16(65520).bits, 0x7C00);
}

TEST(SixteenBits, nan_stays_nan_whatever_its_payload) {
  for (const Format& format : kFormats) {
    for (const std::uint64_t sign : {std::uint64_t{0}, std::uint64_t{1} << 63})
      for (int bit = 0; bit < 52; ++bit) {
        const std::uint64_t nan = sign | 0x7FFULL << 52 | std::uint64_t{1} << bit;
        const std::uint16_t bits = format.round(std::bit_cast<double>(nan));
        EXPECT_TRUE(format.is_nan(bits)) << format.name << ", payload bit " << bit;
        EXPECT_EQ(bits >> 15, sign >> 63) << format.name << ", payload bit " << bit;
      }
  }
}

// From half the least number of the format to twice the largest.
double random_double(std::mt19937_64& random, const Format& format) {
  const int from = -format.bias - format.fraction_bits, to = format.bias + 2;
  const int exponent = from + static_cast<int>(random() % static_cast<unsigned>(to - from));
  return std::ldexp(1 + static_cast<double>(random() >> 11) * 0x1p-53, exponent);
}

// Against a search among all numbers of the format.
TEST(SixteenBits, random_doubles_round_to_the_nearest_number) {
  std::mt19937_64 random(1);
  for (const Format& format : kFormats) {
    for (int n = 0; n < 200000; ++n) {
      const double x = random_double(random, format);
      std::uint16_t low = 0, high = format.infinity();
      while (high - low > 1) {
        const auto middle = static_cast<std::uint16_t>((low + high) / 2);
        (format.value(middle) <= x ? low : high) = middle;
      }
      const double middle = (format.value(low) + format.value(high)) / 2;
      const bool up = x > middle || (x == middle && low % 2 == 1);
      ASSERT_EQ(format.round(x), up ? high : low) << rounding(format, x);
    }
  }
}

// The compiler's own type, where it has one: clang 14 on x86-64 has none.
#if defined(__aarch64__) || !defined(__clang__)
#if defined(__aarch64__)
__extension__ using CompilersHalf = __fp16;
#else
__extension__ using CompilersHalf = _Float16;
#endif

TEST(SixteenBits, f16_is_what_the_compiler_makes_of_it) {
  std::mt19937_64 random(2);
  for (int n = 0; n < 200000; ++n) {
    const double x = random_double(random, kFormats[0]);
    const auto half = static_cast<CompilersHalf>(x);
    ASSERT_EQ(f16(x).bits, std::bit_cast<std::uint16_t>(half)) << rounding(kFormats[0], x);
  }
}
#endif

}  // namespace
}  // namespace attend
