#include "property_compare.h"

#include "cases/arena.h"
#include "cases/random.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace attend::test {
namespace {

bool is_same(double a, double b) {
  return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b);
}

// "[0, 1, 2, 3]" of the nth element.
std::string place_of(const Shape& shape, std::int64_t n) {
  Shape index = shape;
  for (int dim = shape.rank() - 1; dim >= 0; --dim) {
    index[dim] = n % shape[dim];
    n /= shape[dim];
  }
  return to_string(index);
}

testing::AssertionResult different(const ConstTensorView& a, std::size_t n, double x, double y) {
  char values[128];
  std::snprintf(values, sizeof values, "%.17g and %.17g (%a, %a)", x, y, x, y);
  return testing::AssertionFailure()
         << name_of(a.dtype()) << " " << to_string(a.shape()) << " differs at "
         << place_of(a.shape(), static_cast<std::int64_t>(n)) << ": " << values;
}

}  // namespace

double value_at(const ConstTensorView& view, const Shape& index) {
  switch (view.dtype()) {
    case DType::f64: return view.at<double>(index);
    case DType::f32: return view.at<float>(index);
    case DType::bf16: return static_cast<float>(view.at<bf16>(index));
    case DType::f16: return static_cast<float>(view.at<f16>(index));
    case DType::i64: return static_cast<double>(view.at<std::int64_t>(index));
    case DType::i32: return view.at<std::int32_t>(index);
    case DType::i8: return view.at<std::int8_t>(index);
    case DType::u8: return view.at<std::uint8_t>(index);
    case DType::boolean: break;
  }
  return view.at<bool>(index);
}

void set_value(const TensorView& view, const Shape& index, double value) {
  static_cast<void>(value_at(view, index));  // throws if the index is outside
  cases::store(view, index, value);
}

void fill(Tensor& tensor, double value) {
  cases::for_each_index(tensor.shape(),
                        [&](const Shape& index) { cases::store(tensor, index, value); });
}

void fill_gaussian(Tensor& tensor, std::uint64_t seed, double deviation) {
  const cases::Random random(seed, 99);
  std::uint64_t n = 0;
  cases::for_each_index(tensor.shape(), [&](const Shape& index) {
    cases::store(tensor, index, deviation * random.gaussian(n++));
  });
}

Tensor gaussian(const Shape& shape, DType type, std::uint64_t seed, double deviation) {
  Tensor tensor(shape, type);
  fill_gaussian(tensor, seed, deviation);
  return tensor;
}

Tensor integers_of(const std::vector<std::int64_t>& values) {
  Tensor tensor({static_cast<std::int64_t>(values.size())}, DType::i64);
  std::copy(values.begin(), values.end(), tensor.data<std::int64_t>());
  return tensor;
}

testing::AssertionResult same_bits(const ConstTensorView& a, const ConstTensorView& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype())
    return testing::AssertionFailure()
           << name_of(a.dtype()) << " " << to_string(a.shape()) << " compared with "
           << name_of(b.dtype()) << " " << to_string(b.shape());
  if (!a) return testing::AssertionSuccess();
  const std::vector<double> x = widen(a), y = widen(b);  // exact: equal values are equal bits
  for (std::size_t n = 0; n < x.size(); ++n)
    if (!is_same(x[n], y[n])) return different(a, n, x[n], y[n]);
  return testing::AssertionSuccess();
}

testing::AssertionResult same_bits(const Written& a, const Written& b) {
  const std::pair<const char*, Tensor Written::*> members[] = {
      {"out", &Written::out},       {"lse", &Written::lse},      {"dq", &Written::dq},
      {"dk", &Written::dk},         {"dv", &Written::dv},        {"dbias", &Written::dbias},
      {"dsinks", &Written::dsinks}, {"dalibi", &Written::dalibi}};
  for (const auto& [name, member] : members)
    if (const auto same = same_bits(a.*member, b.*member); !same)
      return testing::AssertionFailure() << name << ": " << same.message();
  return testing::AssertionSuccess();
}

testing::AssertionResult close(const ConstTensorView& a, const ConstTensorView& b, double error,
                               double scale) {
  if (a.shape() != b.shape())
    return testing::AssertionFailure()
           << to_string(a.shape()) << " compared with " << to_string(b.shape());
  if (!a) return testing::AssertionSuccess();
  const std::vector<double> x = widen(a), y = widen(b);
  for (const double value : x)
    if (std::isfinite(value)) scale = std::max(scale, std::abs(value));
  for (std::size_t n = 0; n < x.size(); ++n)
    if (!is_same(x[n], y[n]) && !(std::abs(x[n] - y[n]) <= error * scale))
      return different(a, n, x[n], y[n])
             << ", by " << std::abs(x[n] - y[n]) << "; allowed " << error * scale;
  return testing::AssertionSuccess();
}

double usual_error(DType type) {
  const DType sums = type == DType::f64 ? DType::f64 : DType::f32;
  return 4 * unit_roundoff(type) + 64 * unit_roundoff(sums);
}

bool all_zero(const ConstTensorView& view) {
  const std::vector<double> values = widen(view);
  return std::all_of(values.begin(), values.end(), [](double x) { return x == 0; });
}

bool all_finite(const ConstTensorView& view) {
  const std::vector<double> values = widen(view);
  return std::all_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); });
}

}  // namespace attend::test
