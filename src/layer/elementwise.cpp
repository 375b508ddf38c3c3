#include "layer/elementwise.h"

#include "core/strided.h"

namespace attend {

Tensor sum_of(const Tensor& a, const Tensor& b) {
  Tensor sum = Tensor::uninitialized(a.shape(), a.dtype());
  with_type(a.dtype(), [&]<class T>(T) {
    const auto *x = static_cast<const T*>(a.view().data()),
               *y = static_cast<const T*>(b.view().data());
    auto* z = static_cast<T*>(sum.view().data());
    for (std::int64_t n = 0, count = a.count(); n < count; ++n)
      z[n] = static_cast<T>(widened(x[n]) + widened(y[n]));
  });
  return sum;
}

}  // namespace attend
