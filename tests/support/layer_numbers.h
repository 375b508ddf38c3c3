// Tensors for the tests of layers.
#pragma once

#include "core/strided.h"

#include <attend/tensor.h>

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace attend::test {

inline constexpr DType kFloatTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

inline double value(const ConstTensorView& t, const Shape& index) {
  double x = 0;
  with_type(t.dtype(), [&]<class T>(T) { x = widened(t.at<T>(index)); });
  return x;
}

// Uniform from -1 to 1 in steps of 2^-10, never 0.
inline Tensor numbers(const Shape& shape, DType type, unsigned seed) {
  std::mt19937 random(seed);
  Tensor tensor(shape, type);
  with_type(type, [&]<class T>(T) {
    for (std::int64_t n = 0; n < tensor.count(); ++n)
      tensor.data<T>()[n] = static_cast<T>((static_cast<double>(random() % 2048) - 1023.5) / 1024);
  });
  return tensor;
}

inline void expect_near(const std::vector<double>& found, const std::vector<double>& expected,
                        double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t n = 0; n < found.size(); ++n)
    ASSERT_NEAR(found[n], expected[n], tolerance) << "element " << n;
}

// The same numbers in memory that is not contiguous: every dimension has gaps or runs backwards.
class Scattered {
 public:
  explicit Scattered(const ConstTensorView& t) : shape_(t.shape()) {
    Shape large = shape_;
    for (int dim = 0; dim < large.rank(); ++dim) large[dim] *= 2;
    memory_ = numbers(large, t.dtype(), 99);
    const Tensor from = Tensor::copy_of(t);
    const TensorView to = view();
    with_type(t.dtype(), [&]<class T>(T) {
      Shape index = shape_;
      for (std::int64_t n = 0; n < from.count(); ++n) {
        for (std::int64_t dim = index.rank() - 1, rest = n; dim >= 0; rest /= shape_[int(dim--)])
          index[static_cast<int>(dim)] = rest % shape_[static_cast<int>(dim)];
        to.at<T>(index) = from.data<T>()[n];
      }
    });
  }

  TensorView view() {
    TensorView v = memory_;
    for (int dim = 0; dim < shape_.rank(); ++dim)
      v = dim % 2 == 0 ? v.slice(dim, 0, 2 * shape_[dim], 2)
                       : v.slice(dim, 2 * shape_[dim] - 1, shape_[dim] == 0 ? -1 : 0, -2);
    return v;
  }

 private:
  Shape shape_;
  Tensor memory_;
};

}  // namespace attend::test
