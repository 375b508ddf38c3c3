// Conversion of numbers: every row of the kernel table that this machine runs gives the reference's
// bits, for all 16-bit numbers and for those that are hard to round, wherever a run begins and
// ends.
#include "layer/elementwise.h"
#include "plan/plan.h"
#include "support/dice.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace attend::test {
namespace {

constexpr DType kFloatingPoint[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

template <class T>
using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t,
                                std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>>;

template <class T>
Bits<T> bits_of(T x) {
  return std::bit_cast<Bits<T>>(x);
}

template <class To, class From>
std::vector<To> converted(const Kernel<Convert>& row, const std::vector<From>& from) {
  std::vector<To> to(from.size());
  row.run({{}, dtype_of<From>(), dtype_of<To>()},
          {static_cast<std::int64_t>(from.size()), from.data(), to.data()}, {0, 1});
  return to;
}

const Kernel<Convert>& reference() { return *kernel_table<Convert>().back(); }

// Calls use(row) for each that this machine runs, but the reference.
template <class Use>
void for_rows(Use use) {
  int rows = 0;
  for (const Kernel<Convert>* row : kernel_table<Convert>()) {
    if (row == &reference() || row->launch != nullptr || !row->declines({}, this_machine()).empty())
      continue;
    SCOPED_TRACE(row->name);
    use(*row);
    ++rows;
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GE(rows, this_machine().neon || this_machine().avx2 ? 2 : 1);
}

template <class To, class From>
void expect_reference(const Kernel<Convert>& row, const std::vector<From>& from) {
  const std::vector<To> found = converted<To>(row, from), wanted = converted<To>(reference(), from);
  for (std::size_t n = 0; n < from.size(); ++n) {
    auto is = bits_of(found[n]), should = bits_of(wanted[n]);
    if (std::isnan(widened(from[n])) && sizeof(To) > sizeof(From))  // a signalling one may be quiet
      is |= bits_of(To(std::numeric_limits<double>::quiet_NaN())),
          should |= bits_of(To(std::numeric_limits<double>::quiet_NaN()));
    ASSERT_EQ(is, should) << name_of(dtype_of<From>()) << " to " << name_of(dtype_of<To>())
                          << ", bits " << std::hex << bits_of(from[n]);
  }
}

template <class Half>
std::vector<Half> all_halves() {
  std::vector<Half> all(65536);
  for (std::size_t n = 0; n < all.size(); ++n) all[n].bits = static_cast<std::uint16_t>(n);
  return all;
}

TEST(Convert, the_reference_is_last_and_is_the_types_own_conversion) {
  ASSERT_EQ(reference().name, "reference.convert");
  for (const bf16 x : all_halves<bf16>())
    ASSERT_TRUE(std::isnan(widened(x)) ||
                converted<float>(reference(), std::vector{x})[0] == static_cast<float>(x));
  for (const f16 x : all_halves<f16>())
    ASSERT_TRUE(std::isnan(widened(x)) ||
                converted<double>(reference(), std::vector{x})[0] == widened(x));
  EXPECT_EQ(converted<bf16>(reference(), std::vector{1.00390625F})[0], bf16(1.00390625));
}

TEST(Convert, every_16_bit_number_is_the_reference_s) {
  for_rows([](const Kernel<Convert>& row) {
    const auto to_each = [&]<class Half>(Half) {
      expect_reference<float>(row, all_halves<Half>());
      expect_reference<double>(row, all_halves<Half>());
      expect_reference<bf16>(row, all_halves<Half>());
      expect_reference<f16>(row, all_halves<Half>());
    };
    to_each(bf16{});
    to_each(f16{});
  });
}

// Numbers of 16 bits, what is halfway between them and beside that, in all sizes and both signs;
// the ends of every type's range; NaN of both kinds; and any bits.
template <class T>
std::vector<T> hard_numbers() {
  std::vector<T> list;
  const auto with_neighbours = [&](double x) {
    const T at = static_cast<T>(x);
    for (const T y : {std::nextafter(at, T{0}), at, std::nextafter(at, T{INFINITY})})
      list.insert(list.end(), {y, -y});
  };
  const auto between = [&]<class Half>(Half) {
    for (std::uint32_t bits = 0; bits < 0x7FFF; bits += 1 + bits % 3) {
      Half low, high;
      low.bits = static_cast<std::uint16_t>(bits);
      high.bits = static_cast<std::uint16_t>(bits + 1);
      if (!std::isfinite(widened(high))) continue;
      with_neighbours(widened(low));
      with_neighbours((widened(low) + widened(high)) / 2);
    }
  };
  between(bf16{});
  between(f16{});
  for (const double x : {65504.0, 65519.99, 65520.0, 65536.0, 0x1p-24, 0x1p-25, 0x1.8p-25, 0x1p-126,
                         0x1p-149, 0x1p-150, 3.3895313892515355e38, 3.3961775292304e38,
                         3.4028234663852886e38, 3.4028235677973366e38, 1e300, 1e-300, 5e-324})
    with_neighbours(x);
  for (const T x : {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::signaling_NaN(),
                    std::numeric_limits<T>::infinity(), T{0}})
    list.insert(list.end(), {x, -x});
  Dice dice(1);
  for (int n = 0; n < 200000; ++n) {
    std::uint64_t bits = 0;
    for (int part = 0; part < 4; ++part)
      bits = bits << 16 | static_cast<std::uint64_t>(dice.between(0, 65535));
    list.push_back(std::bit_cast<T>(static_cast<Bits<T>>(bits)));
  }
  return list;
}

TEST(Convert, what_is_hard_to_round_is_the_reference_s) {
  const std::vector<float> floats = hard_numbers<float>();
  const std::vector<double> doubles = hard_numbers<double>();
  for_rows([&](const Kernel<Convert>& row) {
    expect_reference<bf16>(row, floats);
    expect_reference<f16>(row, floats);
    expect_reference<double>(row, floats);
    expect_reference<bf16>(row, doubles);
    expect_reference<f16>(row, doubles);
    expect_reference<float>(row, doubles);
    expect_reference<float>(row, floats);
    expect_reference<double>(row, doubles);
  });
}

TEST(Convert, a_run_of_any_length_writes_its_own_elements_alone) {
  for (const Kernel<Convert>* row : kernel_table<Convert>()) {
    if (row->launch != nullptr || !row->declines({}, this_machine()).empty()) continue;
    for (const DType from : kFloatingPoint)
      for (const DType to : kFloatingPoint)
        with_type(from, [&]<class From>(From) {
          with_type(to, [&]<class To>(To) {
            std::vector<From> numbers;
            for (int n = 0; n < 80; ++n) numbers.push_back(static_cast<From>(std::sin(n)));
            const std::vector<To> whole = converted<To>(*row, numbers);
            for (std::int64_t begin = 0; begin < 3; ++begin)
              for (std::int64_t count = 0; count < 36; ++count) {
                std::vector<To> found(40, static_cast<To>(7.0));
                row->run({{}, from, to}, {count, numbers.data() + begin, found.data() + 1}, {0, 1});
                for (std::int64_t n = -1; n < 39; ++n)
                  ASSERT_EQ(
                      widened(found[static_cast<std::size_t>(n + 1)]),
                      n >= 0 && n < count ? widened(whole[static_cast<std::size_t>(begin + n)]) : 7)
                      << row->name << " " << name_of(from) << " to " << name_of(to) << " count "
                      << count << " at " << n;
              }
            // Rows of five from the second on.
            std::vector<To> rows(20);
            row->run({{}, from, to}, {5, numbers.data(), rows.data()}, {1, 4});
            for (std::size_t n = 0; n < 20; ++n)
              ASSERT_EQ(widened(rows[n]), n < 5 ? 0 : widened(whole[n])) << n;
          });
        });
  }
}

// Layers add 16-bit numbers in f32: rounded to f32 first or not, a sum is the same.
TEST(Convert, sums_of_16_bit_numbers_are_rounded_once) {
  const auto of_type = [](auto half) {
    using Half = decltype(half);
    Dice dice(2);
    std::vector<Half> a(300000), b = a, found;
    for (std::size_t n = 0; n < a.size(); ++n) {
      a[n].bits = static_cast<std::uint16_t>(dice.between(0, 65535));
      b[n].bits = static_cast<std::uint16_t>(dice.between(0, 65535));
      if (n % 2 == 0)  // of about one size, so that digits meet
        b[n].bits = static_cast<std::uint16_t>(a[n].bits + dice.between(-5000, 5000));
      if (n % 4 == 0) b[n].bits ^= 0x8000;
    }
    found = a;
    const Sums sums(dtype_of<Half>(), default_context());
    sums(a.data(), b.data(), static_cast<std::int64_t>(a.size()), found.data());
    for (std::size_t n = 0; n < a.size(); ++n) {
      const double sum = widened(a[n]) + widened(b[n]);
      if (std::isnan(sum)) ASSERT_TRUE(std::isnan(widened(found[n])));
      else ASSERT_EQ(found[n], Half(sum)) << widened(a[n]) << " + " << widened(b[n]);
    }
  };
  of_type(bf16{});
  of_type(f16{});
}

}  // namespace
}  // namespace attend::test
