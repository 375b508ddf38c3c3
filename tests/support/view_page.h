// A small page and its numbers, for the tests of the writer.
#pragma once

#include <attend/view.h>

#include <random>

namespace attend::test {

// Numbers between -1 and 1.
inline Tensor numbers(const Shape& shape, unsigned seed) {
  std::mt19937 random(seed);
  Tensor tensor(shape);
  for (std::int64_t n = 0; n < tensor.count(); ++n)
    tensor.data<float>()[n] = static_cast<float>(random() % 2001) / 1000.0F - 1.0F;
  return tensor;
}

// One run of one layer, 2 sequences, 4 heads on 2 key heads, 3 queries, 5 keys.
struct Page {
  Tensor q = numbers({2, 4, 3, 6}, 1), k = numbers({2, 2, 5, 6}, 2), v = numbers({2, 2, 5, 7}, 3);
  std::vector<ViewRun> runs{1};
  ViewOptions options{};
  Page() { runs[0].layers.push_back({.q = q, .k = k, .v = v}); }
  std::string text() const { return view_page(runs, options); }
};

}  // namespace attend::test
