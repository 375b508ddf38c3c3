// What the tests of attention layers share: layers with every parameter drawn, and how a list of
// tensors differs from another.
#pragma once

#include "io_files.h"
#include "layer_numbers.h"

#include <attend/multi_head_attention.h>

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace attend::test {

// Every parameter, biases too, from -0.5 to 0.5.
template <class Layer>
void draw_parameters(Layer& layer, unsigned seed) {
  for (Parameter& p : layer.writable_parameters()) {
    const Tensor drawn = numbers(p.value.shape(), p.value.dtype(), seed++);
    with_type(p.value.dtype(), [&]<class T>(T) {
      for (std::int64_t n = 0; n < drawn.count(); ++n)
        static_cast<T*>(p.value.data())[n] = static_cast<T>(widened(drawn.data<T>()[n]) / 2);
    });
  }
}

inline MultiHeadAttention drawn(const MultiHeadAttentionOptions& options, unsigned seed = 1) {
  MultiHeadAttention layer(options);
  draw_parameters(layer, seed);
  return layer;
}

// Element n of a tensor, in row-major order.
inline double element(const Tensor& t, std::int64_t n) {
  double x = 0;
  with_type(t.dtype(), [&]<class T>(T) { x = widened(t.data<T>()[n]); });
  return x;
}

// The largest difference; infinite if the shapes differ or anything is NaN.
inline double largest_difference(const ConstTensorView& a, const ConstTensorView& b) {
  if (a.shape() != b.shape()) return std::numeric_limits<double>::infinity();
  const Tensor x = Tensor::copy_of(a), y = Tensor::copy_of(b);
  double largest = 0;
  for (std::int64_t n = 0; n < x.count(); ++n) {
    const double difference = std::abs(element(x, n) - element(y, n));
    if (!(difference <= largest)) largest = std::isnan(difference) ? INFINITY : difference;
  }
  return largest;
}

inline bool all_finite(const ConstTensorView& t) {
  const Tensor copy = Tensor::copy_of(t);
  for (std::int64_t n = 0; n < copy.count(); ++n)
    if (!std::isfinite(element(copy, n))) return false;
  return true;
}

// "" or the first name, type, shape or bit in which two lists differ. List: of NamedView,
// NamedTensor or Parameter.
template <class List, class Other>
std::string lists_differ(const List& a, const Other& b) {
  if (a.size() != b.size()) return "one list is longer";
  for (std::size_t n = 0; n < a.size(); ++n) {
    if (a[n].name != b[n].name) return a[n].name + " is not " + b[n].name;
    const std::string found = difference(a[n].tensor, b[n].tensor);
    if (!found.empty()) return a[n].name + ": " + found;
  }
  return "";
}

// A block of rows [begin, end) of dimension `dim`, as a tensor of its own.
inline Tensor part_of(const ConstTensorView& x, int dim, std::int64_t begin, std::int64_t end) {
  return Tensor::copy_of(x.slice(dim, begin, end));
}

inline Tensor lengths_tensor(const std::vector<std::int64_t>& values) {
  Tensor t({static_cast<std::int64_t>(values.size())}, DType::i64);
  std::copy(values.begin(), values.end(), t.data<std::int64_t>());
  return t;
}

}  // namespace attend::test
