// What src/layer/quantise.h promises of a row, whoever holds it.
#pragma once

#include "core/strided.h"
#include "support/layer_numbers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace attend::test {

struct QuantisedRow {
  std::vector<int> numbers;
  float scale;
};

// Rows from subnormal numbers to nearly the largest, within a row and between rows. `quantised` is
// given numbers and a type, and gives what became of them.
template <class Quantised>
void expect_half_a_scale(int rows, Quantised quantised) {
  std::mt19937 random(5);
  for (const DType type : kFloatTypes)
    for (int n = 0; n < rows; ++n) {
      const int most = type == DType::f16 ? 15 : 126, least = type == DType::f16 ? -24 : -149;
      const int top = least + static_cast<int>(random() % static_cast<unsigned>(most - least));
      std::vector<double> row(1 + random() % 9);
      for (double& x : row)
        x = std::ldexp(static_cast<double>(random()) / 0x1p31 - 1,
                       top - static_cast<int>(random() % 4));
      const QuantisedRow found = quantised(row, type);
      const auto scale = static_cast<double>(found.scale);
      double largest = 0;
      for (std::size_t x = 0; x < row.size(); ++x) {
        double given = row[x];
        with_type(type, [&]<class T>(T) { given = widened(static_cast<T>(row[x])); });
        largest = std::max(largest, std::abs(given));
        EXPECT_LE(std::abs(given - found.numbers[x] * scale), scale / 2) << given;
      }
      if (largest == 0) EXPECT_EQ(scale, 0);
      else EXPECT_EQ(scale, std::max(static_cast<float>(largest / 127), 0x1p-126F)) << largest;
    }
}

}  // namespace attend::test
