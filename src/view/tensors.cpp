#include "view/tensors.h"

#include <algorithm>
#include <cmath>

namespace attend::view {

Json add_tensor(const ConstTensorView& x, Blobs& blobs) {
  const Shape shape{x.size(1), x.size(2), x.size(3)};
  if (x.dtype() == DType::f64) {
    std::vector<float> numbers;
    const Strided t = strided(x);
    std::vector<double> row(static_cast<std::size_t>(x.size(3)));
    for (std::int64_t h = 0; h < x.size(1); ++h)
      for (std::int64_t i = 0; i < x.size(2); ++i) {
        load_row(t, t.offset(0, h, i), x.size(3), row.data());
        numbers.insert(numbers.end(), row.begin(), row.end());
      }
    return blobs.add("f32", shape, numbers);
  }
  const Tensor copy = Tensor::copy_of(x);
  return blobs.add(name_of(x.dtype()), shape,
                   std::string(static_cast<const char*>(copy.view().data()),
                               static_cast<std::size_t>(x.count() * size_of(x.dtype()))));
}

Json add_mask(const Single& s, Blobs& blobs) {
  const std::int64_t heads = s.masked_by_head() ? s.heads() : 1;
  std::vector<std::uint8_t> bits(
      static_cast<std::size_t>((heads * s.queries() * s.keys() + 7) / 8));
  std::size_t n = 0;
  for (std::int64_t h = 0; h < heads; ++h)
    for (std::int64_t i = 0; i < s.queries(); ++i)
      for (std::int64_t j = 0; j < s.keys(); ++j, ++n)
        if (j < s.key_length && s.allowed(h, i, j))
          bits[n / 8] = static_cast<std::uint8_t>(bits[n / 8] | 1U << n % 8);
  return blobs.add("bits", {heads, s.queries(), s.keys()}, bits);
}

Json add_bias(const Single& s, Blobs& blobs) {
  const ConstTensorView& view = s.options.bias;
  const Strided t = strided(view);
  std::vector<float> numbers;
  for (std::int64_t h = 0; h < view.size(1); ++h)
    for (std::int64_t i = 0; i < view.size(2); ++i)
      for (std::int64_t j = 0; j < s.keys(); ++j)
        numbers.push_back(view.size(3) == 1 || j < view.size(3)
                              ? static_cast<float>(load(t, t.offset(0, h, i, j)))
                              : 0.0F);
  return blobs.add("f32", {view.size(1), view.size(2), s.keys()}, numbers);
}

std::int64_t not_finite(const ConstTensorView& x) {
  const Strided t = strided(x);
  std::vector<double> row(static_cast<std::size_t>(x.size(3)));
  std::int64_t count = 0;
  for (std::int64_t h = 0; h < x.size(1); ++h)
    for (std::int64_t i = 0; i < x.size(2); ++i) {
      load_row(t, t.offset(0, h, i), x.size(3), row.data());
      count += std::count_if(row.begin(), row.end(), [](double v) { return !std::isfinite(v); });
    }
  return count;
}

}  // namespace attend::view
