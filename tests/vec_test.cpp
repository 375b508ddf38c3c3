// The words that the kernels are written in (src/cpu/vec.h, src/cpu/exp2.h), each against its
// formula, for every instruction set that this machine has, in float and in double.
#include "core/machine.h"
#include "vec/words.h"

#include <gtest/gtest.h>

#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

namespace attend::test {
namespace {

struct Set {
  const InstructionSet* words;
  bool there;  // on this machine
};

std::vector<Set> sets() {
  [[maybe_unused]] const Machine machine = this_machine();
  return {
    {&kGeneric, true},
#if defined(__x86_64__)
        {&kAvx2, machine.avx2}, {&kAvx512, machine.avx512},
#elif defined(__aarch64__)
        {&kNeon, machine.neon},
#endif
  };
}

template <class T>
constexpr T kInfinity = std::numeric_limits<T>::infinity();
template <class T>
constexpr T kNan = std::numeric_limits<T>::quiet_NaN();

// Numbers of every kind.
template <class T>
std::vector<T> numbers() {
  using Limits = std::numeric_limits<T>;
  std::vector<T> all;
  for (const T x : {T(0), T(0.1), T(0.5), T(1), T(1.5), T(2.5), T(3.75), T(126.5), T(12345.678),
                    1 / Limits::epsilon() - T(0.5), 1 / Limits::epsilon(), T(3e30), Limits::max(),
                    Limits::min(), Limits::denorm_min(), kInfinity<T>}) {
    all.push_back(x);
    all.push_back(-x);
  }
  return all;
}

template <class T>
bool same(T a, T b) {
  return a == b || (std::isnan(a) && std::isnan(b));
}

// One test for each instruction set; run() is called with the words of each type.
class Vec : public testing::TestWithParam<Set> {
 protected:
  void SetUp() override {
    if (!GetParam().there) GTEST_SKIP() << "this machine does not have " << GetParam().words->name;
  }
  template <class Run>
  void each_type(Run run) {
    run(GetParam().words->f32);
    run(GetParam().words->f64);
  }
};

INSTANTIATE_TEST_SUITE_P(on, Vec, testing::ValuesIn(sets()),
                         [](const auto& test) { return std::string(test.param.words->name); });

// Calls use(a, b) with arrays of w.lanes elements that hold all pairs of numbers between them.
template <class T, class Use>
void each_pair(const Words<T>& w, Use use) {
  std::vector<T> all = numbers<T>();
  all.push_back(kNan<T>);
  std::vector<T> a, b;
  for (const T x : all) {
    for (const T y : all) {
      a.push_back(x);
      b.push_back(y);
    }
  }
  while (a.size() % static_cast<std::size_t>(w.lanes) != 0) a.push_back(1), b.push_back(1);
  for (std::size_t at = 0; at < a.size(); at += static_cast<std::size_t>(w.lanes))
    use(a.data() + at, b.data() + at);
}

// ---- Memory ------------------------------------------------------------------------------------

TEST_P(Vec, load_store_and_set_keep_every_lane) {
  each_type([]<class T>(const Words<T>& w) {
    std::vector<T> a(static_cast<std::size_t>(w.lanes) + 1), r(a.size(), T(-1));
    for (std::size_t n = 0; n < a.size(); ++n) a[n] = static_cast<T>(n) + T(0.5);
    w.copy(a.data() + 1, r.data());  // any alignment
    for (int n = 0; n < w.lanes; ++n) EXPECT_EQ(r[n], a[n + 1]);
    EXPECT_EQ(r.back(), T(-1));
    w.set(T(7), r.data());
    for (int n = 0; n < w.lanes; ++n) EXPECT_EQ(r[n], T(7));
  });
}

// Rows end where a page ends, and behind it nothing may be touched.
TEST_P(Vec, the_first_lanes_are_all_that_is_touched) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* const memory =
      mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::byte* const end = static_cast<std::byte*>(memory) + page;
  ASSERT_EQ(mprotect(end, page, PROT_NONE), 0);
  each_type([&]<class T>(const Words<T>& w) {
    std::vector<T> a(static_cast<std::size_t>(w.lanes)), r(a.size());
    for (int count = 0; count <= w.lanes; ++count) {
      T* const row = reinterpret_cast<T*>(end) - count;
      row[-1] = T(-1);
      for (int n = 0; n < w.lanes; ++n) a[n] = static_cast<T>(n + 1);
      w.store_first(a.data(), count, row);
      EXPECT_EQ(row[-1], T(-1));
      w.load_first(row, count, r.data());
      for (int n = 0; n < w.lanes; ++n) {
        EXPECT_EQ(r[n], n < count ? a[n] : T(0));  // read back what was written
      }
    }
  });
  munmap(memory, 2 * page);
}

TEST_P(Vec, transpose_swaps_rows_and_lanes) {
  each_type([]<class T>(const Words<T>& w) {
    std::vector<T> rows(static_cast<std::size_t>(w.lanes * w.lanes));
    for (std::size_t n = 0; n < rows.size(); ++n) rows[n] = static_cast<T>(n);
    w.transpose(rows.data());
    for (int i = 0; i < w.lanes; ++i) {
      for (int j = 0; j < w.lanes; ++j)
        EXPECT_EQ(rows[i * w.lanes + j], static_cast<T>(j * w.lanes + i));
    }
  });
}

// ---- Arithmetic --------------------------------------------------------------------------------

TEST_P(Vec, arithmetic_rounds_like_the_language) {
  each_type([]<class T>(const Words<T>& w) {
    std::vector<T> r(static_cast<std::size_t>(w.lanes));
    const auto check = [&](const char* what, auto word, auto formula) {
      each_pair(w, [&](const T* a, const T* b) {
        word(a, b, r.data());
        for (int n = 0; n < w.lanes; ++n)
          EXPECT_TRUE(same(r[n], formula(a[n], b[n])))
              << a[n] << " " << what << " " << b[n] << " gives " << r[n];
      });
    };
    check("+", w.add, [](T a, T b) { return a + b; });
    check("-", w.subtract, [](T a, T b) { return a - b; });
    check("*", w.multiply, [](T a, T b) { return a * b; });
    check("/", w.divide, [](T a, T b) { return a / b; });
    check("<", w.select_less, [](T a, T b) { return a < b ? T(1) : T(2); });
  });
}

TEST_P(Vec, fma_rounds_once_where_it_is_fused) {
  const bool fused = GetParam().words->fused;
  each_type([&]<class T>(const Words<T>& w) {
    std::vector<T> r(static_cast<std::size_t>(w.lanes * w.lanes)), c(r.size());
    const auto truth = [&](T a, T b, T added) {
      return fused ? std::fma(a, b, added) : a * b + added;
    };
    int differ = 0;  // cases in which a second rounding shows
    each_pair(w, [&](const T* a, const T* b) {
      for (int n = 0; n < w.lanes; ++n) c[n] = -(a[n] * b[n]);
      w.fma(a, b, c.data(), r.data());
      for (int n = 0; n < w.lanes; ++n) {
        EXPECT_TRUE(same(r[n], truth(a[n], b[n], c[n]))) << a[n] << " * " << b[n];
        differ += std::isfinite(r[n]) && r[n] != 0 ? 1 : 0;
      }
      r = c;
      w.add_product(a, b, r.data());
      for (int n = 0; n < w.lanes; ++n)
        EXPECT_TRUE(same(r[n], truth(a[n], b[n], c[n]))) << a[n] << " * " << b[n];
      r = c;
      w.add_product_of_first(a, b, r.data());
      for (int n = 0; n < w.lanes; ++n)
        EXPECT_TRUE(same(r[n], truth(a[0], b[n], c[n]))) << a[0] << " * " << b[n];
      if (w.fma_lane == nullptr) return;
      w.fma_lane(a, b, c.data(), r.data());
      for (int lane = 0; lane < w.lanes; ++lane) {
        for (int n = 0; n < w.lanes; ++n)
          EXPECT_TRUE(same(r[lane * w.lanes + n], truth(a[lane], b[n], c[n])));
      }
    });
    EXPECT_EQ(differ > 0, fused);
  });
}

// A NaN score must not be lost in a maximum: it is always the second of the two.
TEST_P(Vec, the_larger_of_two_keeps_a_nan) {
  each_type([]<class T>(const Words<T>& w) {
    std::vector<T> r(static_cast<std::size_t>(w.lanes));
    each_pair(w, [&](const T* a, const T* b) {
      w.larger(a, b, r.data());
      for (int n = 0; n < w.lanes; ++n) {
        if (std::isnan(a[n]) && !std::isnan(b[n])) continue;  // either will do
        const T wanted = std::isnan(b[n]) ? b[n] : std::max(a[n], b[n]);
        EXPECT_TRUE(same(r[n], wanted)) << "the larger of " << a[n] << " and " << b[n];
      }
    });
  });
}

TEST_P(Vec, ceilings_are_whole_numbers_above) {
  each_type([]<class T>(const Words<T>& w) {
    std::vector<T> r(static_cast<std::size_t>(w.lanes));
    each_pair(w, [&](const T* a, const T*) {
      w.ceiling(a, r.data());
      for (int n = 0; n < w.lanes; ++n) EXPECT_TRUE(same(r[n], std::ceil(a[n]))) << a[n];
    });
  });
}

TEST_P(Vec, scaled_is_exact_for_every_power) {
  each_type([]<class T>(const Words<T>& w) {
    std::vector<T> a(static_cast<std::size_t>(w.lanes)), power(a.size()), r(a.size());
    for (T p = w.lowest_power; p < std::numeric_limits<T>::max_exponent; ++p) {
      for (int n = 0; n < w.lanes; ++n) {
        a[n] = T(0.7) + T(1.2) * static_cast<T>(n) / static_cast<T>(w.lanes);
        power[n] = w.whole + p;
      }
      w.scaled(a.data(), power.data(), r.data());
      for (int n = 0; n < w.lanes; ++n)
        EXPECT_EQ(r[n], std::ldexp(a[n], static_cast<int>(p))) << a[n] << " * 2^" << p;
    }
  });
}

TEST_P(Vec, one_lane_that_is_not_finite_is_found) {
  each_type([]<class T>(const Words<T>& w) {
    std::vector<T> a(static_cast<std::size_t>(w.lanes), std::numeric_limits<T>::max());
    EXPECT_TRUE(w.all_finite(a.data()));
    for (int n = 0; n < w.lanes; ++n) {
      for (const T x : {kInfinity<T>, -kInfinity<T>, kNan<T>}) {
        a[n] = x;
        EXPECT_FALSE(w.all_finite(a.data())) << x << " in lane " << n;
      }
      a[n] = -std::numeric_limits<T>::max();
      EXPECT_TRUE(w.all_finite(a.data()));
    }
  });
}

TEST_P(Vec, doubles_are_made_and_rounded_lane_by_lane) {
  each_type([]<class T>(const Words<T>& w) {
    std::vector<T> r(static_cast<std::size_t>(w.lanes));
    std::vector<double> wide(r.size());
    each_pair(w, [&](const T* a, const T*) {
      w.wide(a, wide.data());
      for (int n = 0; n < w.lanes; ++n) EXPECT_TRUE(same(wide[n], static_cast<double>(a[n])));
      for (int n = 0; n < w.lanes; ++n) wide[n] *= 1 + 0x1p-24 + 0x1p-40 * n;
      w.narrowed(wide.data(), r.data());
      for (int n = 0; n < w.lanes; ++n) EXPECT_TRUE(same(r[n], static_cast<T>(wide[n])));
    });
  });
}

// ---- Functions ---------------------------------------------------------------------------------

// What the truth is computed in.
template <class T>
using Wide = std::conditional_t<sizeof(T) == 4, double, long double>;

// The largest relative error of word() over samples of from..to, in units of epsilon (one unit in
// the last place of 1).
template <class T, class Word, class Truth>
double largest_error(const Words<T>& w, Word word, Truth truth, double from, double to,
                     int samples) {
  std::vector<T> x(static_cast<std::size_t>(w.lanes)), r(x.size());
  double worst = 0;
  for (int s = 0; s < samples; s += w.lanes) {
    for (int n = 0; n < w.lanes; ++n) x[n] = static_cast<T>(from + (to - from) * (s + n) / samples);
    word(x.data(), r.data());
    for (int n = 0; n < w.lanes; ++n) {
      const Wide<T> t = truth(Wide<T>(x[n])), error = std::abs(r[n] - t) / std::abs(t);
      if (std::isnan(error)) return kInfinity<double>;
      worst = std::max(worst, static_cast<double>(error / std::numeric_limits<T>::epsilon()));
    }
  }
  return worst;
}

// Measured: 0.65 of a unit; generic 0.83.
// All 65536 numbers of a 16-bit type widened; and doubles on, beside and between them rounded as
// the type itself does it.
template <class Half>
void expect_conversions(const HalfWords<Half>& words, int lanes) {
  std::vector<Half> halves(static_cast<std::size_t>(lanes));
  std::vector<float> wide(halves.size());
  std::vector<double> exact(halves.size());
  for (std::uint32_t first = 0; first < 65536; first += static_cast<std::uint32_t>(lanes)) {
    for (std::size_t n = 0; n < halves.size(); ++n)
      halves[n].bits = static_cast<std::uint16_t>(first + n);
    words.widened(halves.data(), wide.data());
    for (std::size_t n = 0; n < halves.size(); ++n)
      ASSERT_TRUE(same(wide[n], static_cast<float>(halves[n]))) << halves[n].bits;
    for (const double part : {0.0, 0x1p-40, 0.5, 0.5 + 0x1p-40, -0x1p-40, 2.0}) {
      for (std::size_t n = 0; n < halves.size(); ++n) {
        Half next = halves[n];
        ++next.bits;
        const double at = static_cast<double>(wide[n]),
                     to = static_cast<double>(static_cast<float>(next));
        exact[n] = std::isfinite(to) ? at + part * (to - at) : at * (1 + part * 0x1p-8);
      }
      std::vector<Half> rounded(halves.size());
      words.rounded(exact.data(), rounded.data());
      for (std::size_t n = 0; n < halves.size(); ++n)
        ASSERT_EQ(rounded[n].bits, Half(exact[n]).bits) << exact[n];
    }
  }
  for (const double x : {1e300, -1e300, 1e-300, -1e-300, 1e39, 3.4028235677973366e38, 65519.9,
                         65520.0, 1e-46, -0.0}) {
    std::vector<Half> rounded(halves.size());
    words.rounded(std::vector<double>(halves.size(), x).data(), rounded.data());
    for (const Half half : rounded) ASSERT_EQ(half.bits, Half(x).bits) << x;
  }
}

// All numbers of a 16-bit type, in the order in which products read packed ones.
template <class Half>
void expect_packed(const HalfWords<Half>& words, int lanes) {
  std::vector<Half> halves(4 * static_cast<std::size_t>(lanes));
  std::vector<float> wide(halves.size());
  for (std::uint32_t first = 0; first < 65536; first += static_cast<std::uint32_t>(halves.size())) {
    for (std::size_t n = 0; n < halves.size(); ++n)
      halves[n].bits = static_cast<std::uint16_t>(first + n);
    words.packed(halves.data(), wide.data());
    for (std::size_t n = 0; n < halves.size(); ++n) {
      const auto each = static_cast<std::size_t>(lanes);
      const std::size_t in_pair = n % (2 * each);
      const std::size_t at =
          std::is_same_v<Half, bf16> ? n - in_pair + in_pair % each * 2 + in_pair / each : n;
      ASSERT_TRUE(same(wide[n], static_cast<float>(halves[at]))) << halves[at].bits;
    }
  }
}

TEST_P(Vec, packed_numbers_of_16_bits_are_widened_exactly) {
  const int lanes = GetParam().words->f32.lanes;
  expect_packed(GetParam().words->of_bf16, lanes);
  expect_packed(GetParam().words->of_f16, lanes);
}

TEST_P(Vec, numbers_of_16_bits_are_widened_exactly_and_rounded_once) {
  const int lanes = GetParam().words->f32.lanes;
  expect_conversions(GetParam().words->of_bf16, lanes);
  expect_conversions(GetParam().words->of_f16, lanes);
}

// Floats beside each number of a 16-bit type and beside the middles between them. One that rounds
// otherwise than a neighbour of two units is doubtful; no other of a usual size is.
template <class Half>
void expect_doubts(const HalfWords<Half>& words, int lanes) {
  const std::size_t count = 2 * static_cast<std::size_t>(lanes);
  std::vector<float> numbers(count, 1.5F);
  std::vector<Half> made(count);
  ASSERT_TRUE(words.clear(numbers.data(), made.data()));
  constexpr std::uint32_t kDigits = std::is_same_v<Half, bf16> ? 16 : 13;
  std::size_t place = 0;
  const auto expect = [&](std::uint32_t bits) {
    const auto x = std::bit_cast<float>(bits);
    const std::size_t at = place++ % count;
    numbers[at] = x;
    const bool clear = words.clear(numbers.data(), made.data());
    numbers[at] = 1.5F;
    // Rounds as its neighbours of two units do, and as those of three.
    bool alike = std::isfinite(x), far = alike;
    for (const int n : {-3, -2, -1, 1, 2, 3}) {
      float other = std::nextafter(x, std::copysign(kInfinity<float>, static_cast<float>(n)));
      for (int step = 1; step < std::abs(n); ++step)
        other = std::nextafter(other, std::copysign(kInfinity<float>, static_cast<float>(n)));
      const bool same = static_cast<float>(Half(static_cast<double>(other))) ==
                        static_cast<float>(Half(static_cast<double>(x)));
      far = far && same;
      alike = alike && (same || std::abs(n) == 3);
    }
    ASSERT_TRUE(alike || !clear) << x;
    const float size = std::abs(x);
    const bool must_be_clear = x == 0 || (far && size > 0x1p-13F && size < 60000);
    ASSERT_TRUE(clear || !must_be_clear) << x;
    for (std::size_t n = 0; clear && n < count; ++n)
      ASSERT_EQ(made[n].bits, Half(n == at ? static_cast<double>(x) : 1.5).bits) << x;
  };
  for (std::uint32_t half = 0; half < 65536; half += 7) {
    Half of;
    of.bits = static_cast<std::uint16_t>(half);
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(of));
    for (const std::uint32_t beside : {0U, 1U << (kDigits - 1), 1U << (kDigits - 2)})
      for (std::uint32_t n = 0; n <= 8; ++n) expect(bits + beside - 4 + n);
  }
  for (const std::uint32_t bits : {0U, 0x80000000, 0x7F800000U, 0xFF800000, 0x7FC00000U, 0xFFC00000,
                                   0x7FFFFFFFU, 0xFFFFFFFF, 0x7FFF8000U, 0x7F800001U, 0x7F7FFFFFU,
                                   1U, 0x00800000U, 0x33000000U, 0x477FF000U, 0x477FE000U})
    expect(bits);
}

TEST_P(Vec, floats_that_may_round_otherwise_are_doubtful_and_no_others) {
  const int lanes = GetParam().words->f32.lanes;
  expect_doubts(GetParam().words->of_bf16, lanes);
  expect_doubts(GetParam().words->of_f16, lanes);
}

TEST_P(Vec, exp2_is_within_a_unit_in_the_last_place) {
  each_type([]<class T>(const Words<T>& w) {
    const auto truth = [](Wide<T> x) { return std::exp2(x); };
    const double lowest = std::numeric_limits<T>::min_exponent - 1;  // of the normal numbers
    const int samples = sizeof(T) == 4 ? 200000 : 20000;
    const double error = std::max(largest_error(w, w.exp2, truth, lowest, 1, samples),
                                  largest_error(w, w.exp2, truth, -2, 0, samples));
    RecordProperty(sizeof(T) == 4 ? "f32" : "f64", std::to_string(error));
    EXPECT_LE(error, 1.0);
  });
}

TEST_P(Vec, exp2_of_whole_numbers_is_exact_and_of_the_rest_keeps_its_kind) {
  each_type([]<class T>(const Words<T>& w) {
    std::vector<T> x(static_cast<std::size_t>(w.lanes)), r(x.size());
    const auto of = [&](T value) {
      std::fill(x.begin(), x.end(), value);
      w.exp2(x.data(), r.data());
      for (const T each : r) EXPECT_TRUE(same(each, r[0]));
      return r[0];
    };
    const int least = std::numeric_limits<T>::min_exponent - 1;
    for (int n = 1; n >= least; --n) EXPECT_EQ(of(static_cast<T>(n)), std::ldexp(T(1), n));
    EXPECT_EQ(of(T(-0.0)), T(1));
    EXPECT_EQ(of(-kInfinity<T>), T(0));
    EXPECT_EQ(of(std::numeric_limits<T>::lowest()), T(0));
    EXPECT_TRUE(std::isnan(of(kNan<T>)));
    std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t> ones = ~0;
    EXPECT_TRUE(std::isnan(of(std::bit_cast<T>(ones)))) << "every bit of it set";
    // Where numbers lose digits one by one, 0 is as good as what is left of them.
    for (T t = static_cast<T>(least); t > 2 * static_cast<T>(least); t -= T(0.3)) {
      const T found = of(t), tiny = std::numeric_limits<T>::min();
      EXPECT_TRUE(found == 0 ||
                  std::abs(found - std::exp2(t)) <= tiny * std::numeric_limits<T>::epsilon())
          << t << ": " << found;
    }
  });
}

TEST_P(Vec, tanh_has_all_its_digits_near_zero_too) {
  each_type([]<class T>(const Words<T>& w) {
    const auto truth = [](Wide<T> x) { return std::tanh(x); };
    const int samples = sizeof(T) == 4 ? 5000 : 500;
    double error = 0;
    for (double scale = 40; scale > 1e-20; scale /= 8) {
      error = std::max(error, largest_error(w, w.tanh, truth, scale / 8, scale, samples));
      error = std::max(error, largest_error(w, w.tanh, truth, -scale, -scale / 8, samples));
    }
    RecordProperty(sizeof(T) == 4 ? "f32" : "f64", std::to_string(error));
    EXPECT_LE(error, 3.0);
    std::vector<T> x(static_cast<std::size_t>(w.lanes)), r(x.size());
    const T values[] = {0, kInfinity<T>, -kInfinity<T>, kNan<T>};
    const T wanted[] = {0, 1, -1, kNan<T>};
    for (std::size_t k = 0; k < std::size(values); ++k) {
      std::fill(x.begin(), x.end(), values[k]);
      w.tanh(x.data(), r.data());
      for (const T each : r) EXPECT_TRUE(same(each, wanted[k])) << "tanh of " << values[k];
    }
  });
}

}  // namespace
}  // namespace attend::test
