// Comparing tensors: bit for bit, or within an error. The sign of zero is exempt, and a NaN equals
// any NaN.
#pragma once

#include "property_trial.h"

#include <gtest/gtest.h>

namespace attend::test {

double value_at(const ConstTensorView& view, const Shape& index);
void set_value(const TensorView& view, const Shape& index, double value);
void fill(Tensor& tensor, double value);
void fill_gaussian(Tensor& tensor, std::uint64_t seed, double deviation = 1);
Tensor gaussian(const Shape& shape, DType type, std::uint64_t seed, double deviation = 1);
Tensor integers_of(const std::vector<std::int64_t>& values);  // [n], i64

testing::AssertionResult same_bits(const ConstTensorView& a, const ConstTensorView& b);
testing::AssertionResult same_bits(const Written& a, const Written& b);  // every tensor

// Largest |a - b| <= error * (the largest |a|, or `scale` if that is larger); infinities and NaN
// must be the same.
testing::AssertionResult close(const ConstTensorView& a, const ConstTensorView& b, double error,
                               double scale = 0);

// What two correct computations of the same value may differ by, relative to the largest value:
// each may round to the type at the end, and sums are held in f32 (f64 for f64).
double usual_error(DType type);

bool all_zero(const ConstTensorView& view);
bool all_finite(const ConstTensorView& view);

}  // namespace attend::test
