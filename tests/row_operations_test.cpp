// Norms, activations and rotary positions: every row of the kernel table that this processor runs,
// against the formula in long double, for every type, with lengths that leave parts of vectors.
#include "plan/plan.h"
#include "support/dice.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

namespace attend::test {
namespace {

using Real = long double;

constexpr DType kTypesUnderTest[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

template <class T>
constexpr double kEpsilon = std::is_same_v<T, double>  ? 0x1p-52
                            : std::is_same_v<T, float> ? 0x1p-23
                            : std::is_same_v<T, bf16>  ? 0x1p-7
                                                       : 0x1p-10;
// Where numbers lose digits.
template <class T>
constexpr double kTiny = std::is_same_v<T, double> ? 1e-305
                         : std::is_same_v<T, f16>  ? 0x1p-24
                                                   : 1e-35;

// Calls use(row, T{}) for every row that this machine runs and every type.
template <class Operation, class Use>
void for_rows(Use use, int least = 8) {
  int rows = 0;
  for (const Kernel<Operation>* kernel : kernel_table<Operation>())
    for (const DType type : kTypesUnderTest) {
      typename Operation::Problem problem;
      problem.type = type;
      if (kernel->launch != nullptr || !kernel->declines(problem, this_machine()).empty()) continue;
      SCOPED_TRACE(std::string(kernel->name) + " " + std::string(name_of(type)));
      with_type(type, [&]<class T>(T) { use(*kernel, T{}); });
      ++rows;
      if (testing::Test::HasFatalFailure()) return;
    }
  EXPECT_GE(rows, least) << "generic and reference at least";
}

template <class T>
std::vector<T> numbers(std::int64_t count, std::uint64_t seed, double middle = 0) {
  Dice dice(seed);
  std::vector<T> list(static_cast<std::size_t>(count));
  for (T& x : list) x = static_cast<T>(middle + dice.gaussian());
  return list;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

template <class T>
void expect_near(T found, Real truth, double allowed, std::int64_t at) {
  const Real error = std::abs(static_cast<Real>(widened(found)) - truth);
  ASSERT_LE(error, allowed + kEpsilon<T> / 2 * std::abs(static_cast<double>(truth)) + kTiny<T>)
      << "element " << at << ": " << widened(found) << ", truth " << static_cast<double>(truth);
}

// ---- Norms -------------------------------------------------------------------------------------

constexpr std::int64_t kDims[] = {1, 2, 3, 7, 8, 31, 32, 33, 64, 100, 769};

// normalised = (x - mean) * factor
struct Truth {
  Real mean = 0, factor = 0;
  template <class T>
  Truth(const T* x, std::int64_t dim, NormKind kind, double epsilon) {
    Real squares = 0;
    for (std::int64_t c = 0; c < dim && kind == NormKind::layer_norm; ++c) mean += widened(x[c]);
    mean /= static_cast<Real>(dim);
    for (std::int64_t c = 0; c < dim; ++c)
      squares += (widened(x[c]) - mean) * (widened(x[c]) - mean);
    factor = 1 / std::sqrt(squares / static_cast<Real>(dim) + epsilon);
  }
};

TEST(RowOperations, norms_are_their_formula) {
  for_rows<NormForward>([]<class T>(const Kernel<NormForward>& row, T) {
    for (const NormKind kind : {NormKind::layer_norm, NormKind::rms_norm})
      for (const std::int64_t dim : kDims)
        for (const bool biased : {false, true}) {
          constexpr std::int64_t kRows = 3;
          const auto x = numbers<T>(kRows * (dim + 2), 1, 1), weight = numbers<T>(dim, 2),
                     bias = numbers<T>(dim, 3);
          std::vector<T> y(static_cast<std::size_t>(kRows * (dim + 1))), alone = y;
          const NormProblem problem{{}, dtype_of<T>(), kind};
          NormCall call{.dim = dim,
                        .epsilon = 1e-5,
                        .x = {x.data(), dim + 2},
                        .weight = weight.data(),
                        .bias = biased ? bias.data() : nullptr,
                        .y = y.data(),
                        .y_row = dim + 1};
          row.run(problem, call, {0, kRows});
          for (std::int64_t r = 0; r < kRows; ++r) {
            const Truth truth(x.data() + r * (dim + 2), dim, kind, 1e-5);
            for (std::int64_t c = 0; c < dim; ++c) {
              const auto at = static_cast<std::size_t>(c);
              const Real n =
                  (widened(x[static_cast<std::size_t>(r * (dim + 2) + c)]) - truth.mean) *
                  truth.factor * widened(weight[at]);
              const Real b = biased ? widened(bias[at]) : 0.0;
              // One number is its own mean: what is left is rounding, times 1 / sqrt(epsilon).
              ASSERT_NO_FATAL_FAILURE(expect_near(
                  y[static_cast<std::size_t>(r * (dim + 1) + c)], n + b,
                  (dim == 1 ? 1e-11 : 1e-13) * (1 + std::abs(static_cast<double>(n))), c));
            }
            ASSERT_EQ(widened(y[static_cast<std::size_t>(r * (dim + 1) + dim)]), 0) << "between";
          }
          call.y = alone.data();
          for (std::int64_t r = kRows; r-- > 0;) row.run(problem, call, {r, r + 1});
          ASSERT_TRUE(same_bits(alone, y)) << "a row's bits depend on the rows beside it";
        }
  });
}

// By the definition of a gradient: the derivative of sum(dy * y) is a difference of sums.
TEST(RowOperations, gradients_of_norms_are_derivatives) {
  for_rows<NormBackward>([]<class T>(const Kernel<NormBackward>& row, T) {
    for (const NormKind kind : {NormKind::layer_norm, NormKind::rms_norm})
      for (const std::int64_t dim : kDims) {
        const auto x = numbers<T>(2 * dim, 1, 1), dy = numbers<T>(2 * dim, 2),
                   weight = numbers<T>(dim, 3);
        std::vector<T> dx(static_cast<std::size_t>(2 * dim));
        std::vector<double> sums(static_cast<std::size_t>(2 * dim), 0.5);
        row.run(
            {{}, dtype_of<T>(), kind},
            {dim, 1e-3, {x.data(), dim}, {dy.data(), dim}, weight.data(), dx.data(), sums.data()},
            {0, 2});
        std::vector<Real> dweight(static_cast<std::size_t>(dim), 0.5L), dbias = dweight;
        for (std::int64_t r = 0; r < 2; ++r) {
          const T* const at = x.data() + r * dim;
          const Truth truth(at, dim, kind, 1e-3);
          Real mean_g = 0, mean_gn = 0;
          const auto n = [&](std::int64_t c) {
            return (widened(at[c]) - truth.mean) * truth.factor;
          };
          const auto g = [&](std::int64_t c) {
            return static_cast<Real>(widened(dy[static_cast<std::size_t>(r * dim + c)])) *
                   widened(weight[static_cast<std::size_t>(c)]);
          };
          for (std::int64_t c = 0; c < dim; ++c) {
            mean_g += kind == NormKind::layer_norm ? g(c) / static_cast<Real>(dim) : 0;
            mean_gn += g(c) * n(c) / static_cast<Real>(dim);
            const Real d = widened(dy[static_cast<std::size_t>(r * dim + c)]);
            dweight[static_cast<std::size_t>(c)] += d * n(c);
            dbias[static_cast<std::size_t>(c)] += d;
          }
          for (std::int64_t c = 0; c < dim; ++c)
            ASSERT_NO_FATAL_FAILURE(expect_near(dx[static_cast<std::size_t>(r * dim + c)],
                                                truth.factor * (g(c) - mean_g - n(c) * mean_gn),
                                                2e-10, c));
        }
        for (std::int64_t c = 0; c < dim; ++c) {
          const auto at = static_cast<std::size_t>(c);
          ASSERT_NEAR(sums[at], static_cast<double>(dweight[at]), 1e-11) << c;
          ASSERT_NEAR(sums[at + static_cast<std::size_t>(dim)], static_cast<double>(dbias[at]),
                      1e-13);
        }
      }
  });
}

TEST(RowOperations, norms_of_extreme_rows) {
  constexpr double kMost = std::numeric_limits<double>::max();
  for_rows<NormForward>([]<class T>(const Kernel<NormForward>& row, T) {
    if constexpr (std::is_same_v<T, double>) {
      const std::vector<double> weight(40, 1.0);
      std::vector<double> x(40), y(40);
      for (std::size_t c = 0; c < 40; ++c) x[c] = c % 2 == 0 ? kMost : -kMost;
      row.run({{}, DType::f64, NormKind::layer_norm},
              {40, 1e-5, {x.data(), 40}, weight.data(), nullptr, y.data(), 40}, {0, 1});
      for (std::size_t c = 0; c < 40; ++c) EXPECT_NEAR(y[c], c % 2 == 0 ? 1 : -1, 1e-12) << c;
    }
    // NaN anywhere makes its row NaN, and no other.
    for (const std::int64_t at : {0, 5, 39}) {
      auto x = numbers<T>(120, 1), weight = numbers<T>(40, 2);
      std::vector<T> y(120);
      x[static_cast<std::size_t>(40 + at)] =
          static_cast<T>(std::numeric_limits<double>::quiet_NaN());
      row.run({{}, dtype_of<T>(), NormKind::rms_norm},
              {40, 1e-5, {x.data(), 40}, weight.data(), nullptr, y.data(), 40}, {0, 3});
      for (std::size_t n = 0; n < 120; ++n)
        EXPECT_EQ(std::isnan(widened(y[n])), n / 40 == 1) << "element " << n;
    }
  });
}

// ---- Activations -------------------------------------------------------------------------------

struct TruePoint {
  Real value, slope, size;  // size: of what the slope is a sum of
};

TruePoint truth_of(Activation kind, Real x) {
  if (kind == Activation::relu) return {x < 0 ? 0 : x, x > 0 ? 1.0L : 0.0L, 1};
  if (kind == Activation::gelu) {
    const Real phi = std::erfc(-x / std::numbers::sqrt2_v<Real>) / 2;
    const Real density =
        std::exp(-x * x / 2) * std::numbers::inv_sqrtpi_v<Real> / std::numbers::sqrt2_v<Real>;
    return {x * phi, phi + x * density, phi + std::abs(x) * density};
  }
  Real y = x, dy = 1;
  if (kind == Activation::gelu_tanh) {
    const Real twice = 2 * std::numbers::sqrt2_v<Real> * std::numbers::inv_sqrtpi_v<Real>;
    y = twice * (x + 0.044715L * x * x * x);
    dy = twice * (1 + 3 * 0.044715L * x * x);
  }
  const Real s = 1 / (1 + std::exp(-y)), rest = 1 / (1 + std::exp(y));
  return {x * s, s + x * s * rest * dy, s + std::abs(x * s * rest * dy)};
}

constexpr Activation kActivations[] = {Activation::relu, Activation::gelu, Activation::gelu_tanh,
                                       Activation::swiglu};

// How far x changed in its last digit changes the result, and some units in the last place.
template <class T>
double allowed(Activation kind, double x) {
  const double unit = std::is_same_v<T, double> ? 0x1p-52 : 0x1p-23;
  const double steep = kind == Activation::swiglu ? std::abs(x)
                       : kind == Activation::gelu ? x * x
                                                  : std::abs(x) + 0.3 * std::abs(x * x * x);
  return unit * (8 + 4 * steep);
}

TEST(RowOperations, activations_are_their_formula) {
  for_rows<ActivationForward>([]<class T>(const Kernel<ActivationForward>& row, T) {
    const Kernel<ActivationBackward>* back = nullptr;
    for (const Kernel<ActivationBackward>* kernel : kernel_table<ActivationBackward>())
      if (kernel->name == std::string(row.name) + "_backward") back = kernel;
    ASSERT_NE(back, nullptr);
    std::vector<T> x;
    for (double at = -40; at <= 40; at += 0.0371) x.push_back(static_cast<T>(at));
    for (const double at : {0.0, -0.0, 1e-30, -1e-30, 1e-3, -1e-3, 5e4, -5e4})
      x.push_back(static_cast<T>(at));
    const auto count = static_cast<std::int64_t>(x.size());
    const auto up = numbers<T>(count, 4), dhidden = numbers<T>(count, 5);
    std::vector<T> hidden(x.size()), dx(x.size()), dgate(x.size());
    for (const Activation kind : kActivations) {
      SCOPED_TRACE(static_cast<int>(kind));
      const bool gated = kind == Activation::swiglu;
      const ActivationProblem problem{{}, dtype_of<T>(), kind};
      const T *const u = gated ? up.data() : x.data(), *const gate = gated ? x.data() : nullptr;
      row.run(problem, {count, u, gate, hidden.data()}, {0, 1});
      back->run(problem,
                {count, u, gate, dhidden.data(), dx.data(), gated ? dgate.data() : nullptr},
                {0, 1});
      for (std::size_t n = 0; n < x.size(); ++n) {
        const double at = widened(x[n]), d = widened(dhidden[n]),
                     times = gated ? widened(up[n]) : 1;
        const TruePoint truth = truth_of(kind, at);
        const double error = allowed<T>(kind, at);
        const auto sized = [&](Real size) { return error * std::abs(static_cast<double>(size)); };
        ASSERT_NO_FATAL_FAILURE(expect_near(hidden[n], truth.value * times,
                                            sized(truth.value * times),
                                            static_cast<std::int64_t>(n)));
        const Real slope = gated ? d * truth.value : d * truth.slope;
        ASSERT_NO_FATAL_FAILURE(expect_near(dx[n], slope, sized(gated ? slope : d * truth.size),
                                            static_cast<std::int64_t>(n)));
        if (gated) {
          ASSERT_NO_FATAL_FAILURE(
              expect_near(dgate[n], d * times * truth.slope,
                          sized(d * times * truth.size) + kTiny<T> * std::abs(at),
                          static_cast<std::int64_t>(n)));
        }
      }
      // Whatever number of elements there is, and wherever they stand: the same bits.
      for (const std::int64_t some : {1, 2, 5, 17}) {
        std::vector<T> part(static_cast<std::size_t>(some) + 1, static_cast<T>(7.0));
        row.run(problem, {some, u + 3, gated ? gate + 3 : nullptr, part.data()}, {0, 1});
        ASSERT_EQ(
            std::memcmp(part.data(), hidden.data() + 3, static_cast<std::size_t>(some) * sizeof(T)),
            0);
        ASSERT_EQ(widened(part.back()), 7) << "written behind the end";
      }
      std::vector<T> nan(7, static_cast<T>(0.5));
      nan[3] = static_cast<T>(std::numeric_limits<double>::quiet_NaN());
      std::vector<T> out(7);
      row.run(problem,
              {7, gated ? up.data() : nan.data(), gated ? nan.data() : nullptr, out.data()},
              {0, 1});
      for (std::size_t n = 0; n < 7; ++n) EXPECT_EQ(std::isnan(widened(out[n])), n == 3) << n;
    }
  });
}

// ---- Rotary positions --------------------------------------------------------------------------

TEST(RowOperations, rotary_positions_turn_pairs) {
  for_rows<RotaryForward>([]<class T>(const Kernel<RotaryForward>& row, T) {
    const std::vector<std::int64_t> positions = {0, 1, -3, 7, 1000, 131071, 900000, 50000000};
    const auto rows = static_cast<std::int64_t>(positions.size());
    for (const std::int64_t pairs : {1, 3, 8, 17, 70})
      for (const auto pairing : {Rotary::Pairing::halves, Rotary::Pairing::neighbours}) {
        constexpr std::int64_t kHeads = 2;
        const std::int64_t d = 2 * pairs + 1, half = rows / 2;
        std::vector<double> frequency(static_cast<std::size_t>(pairs));
        for (std::int64_t c = 0; c < pairs; ++c)
          frequency[static_cast<std::size_t>(c)] =
              std::pow(10000.0, -static_cast<double>(c) / static_cast<double>(pairs));
        const auto before = numbers<T>(rows * kHeads * d, 6);
        auto x = before;
        RotaryCall call{kHeads,
                        half,
                        pairs,
                        {reinterpret_cast<std::byte*>(x.data()),
                         dtype_of<T>(),
                         true,
                         {half * kHeads * d, d, kHeads * d, 1}},
                        positions.data(),
                        frequency.data(),
                        false};
        const RotaryProblem problem{{}, dtype_of<T>(), pairing};
        row.run(problem, call, {0, rows});
        for (std::int64_t n = 0; n < rows; ++n)
          for (std::int64_t h = 0; h < kHeads; ++h) {
            const T* const was = before.data() + (n * kHeads + h) * d;
            const T* const is = x.data() + (n * kHeads + h) * d;
            for (std::int64_t c = 0; c < pairs; ++c) {
              const bool halves = pairing == Rotary::Pairing::halves;
              const std::int64_t a = halves ? c : 2 * c, b = halves ? c + pairs : 2 * c + 1;
              const Real angle = static_cast<double>(positions[static_cast<std::size_t>(n)]) *
                                 frequency[static_cast<std::size_t>(c)];
              const Real u = widened(was[a]), w = widened(was[b]);
              ASSERT_NO_FATAL_FAILURE(
                  expect_near(is[a], u * std::cos(angle) - w * std::sin(angle), 2e-15, n));
              ASSERT_NO_FATAL_FAILURE(
                  expect_near(is[b], u * std::sin(angle) + w * std::cos(angle), 2e-15, n));
            }
            ASSERT_EQ(widened(is[2 * pairs]), widened(was[2 * pairs]))
                << "turned a feature too many";
          }
        call.back = true;
        row.run(problem, call, {0, rows});
        for (std::size_t n = 0; n < x.size(); ++n)
          ASSERT_NEAR(widened(x[n]), widened(before[n]), 4 * kEpsilon<T> * 6) << "back again";
      }
  });
}

// The host has the reference alone: layers there add by loops of their own.
TEST(RowOperations, sums_of_any_strides) {
  for_rows<Add>(
      [](const Kernel<Add>& row, auto type) {
        using T = decltype(type);
        constexpr std::int64_t kRows = 5, kFeatures = 7;
        const auto a = numbers<T>(kRows * kFeatures, 1), b = numbers<T>(kRows * kFeatures, 2);
        std::vector<T> y(a.size());
        for (const bool both : {false, true}) {
          row.run({{}, dtype_of<T>()},
                  {.features = kFeatures,
                   .a = {a.data(), kFeatures, 1},
                   .b = {both ? b.data() : nullptr, 1, kRows},
                   .y = y.data(),
                   .y_row = 1,
                   .y_column = kRows},
                  {0, kRows});
          for (std::int64_t n = 0; n < kRows * kFeatures; ++n) {
            const std::int64_t r = n / kFeatures, c = n % kFeatures;
            const auto across = static_cast<std::size_t>(c * kRows + r);
            const T first = a[static_cast<std::size_t>(n)];
            const T sum = both ? static_cast<T>(widened(first) + widened(b[across])) : first;
            ASSERT_EQ(widened(y[across]), widened(sum)) << n;
          }
        }
      },
      4);
}

}  // namespace
}  // namespace attend::test
