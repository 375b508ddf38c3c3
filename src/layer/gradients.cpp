// Sums of gradients, and their common norm.
#include <attend/train.h>

#include "core/text.h"
#include "layer/check.h"
#include "layer/flat.h"
#include "layer/named.h"
#include "layer/numbers.h"

#include <cmath>
#include <utility>

namespace attend {
namespace {

// A copy, in f32 of what has 16 bits: sums of these would lose what is added to them.
Tensor wide_copy(const Tensor& tensor) {
  if (!tensor || !is_floating_point(tensor.dtype()) || size_of(tensor.dtype()) != 2) return tensor;
  return in_type(tensor, DType::f32);
}

// Calls use(values, count) for pieces of all gradients, in order.
template <class Use>
void for_values(const std::vector<NamedTensor>& gradients, Use use) {
  double values[kPiece];
  for (const NamedTensor& gradient : gradients) {
    const Numbers<double> numbers(gradient.tensor.dtype(), default_context());
    for_pieces(gradient.tensor.count(), [&](std::int64_t begin, std::int64_t count) {
      numbers.load(gradient.tensor.view().data(), begin, 1, count, values);
      use(values, count);
    });
  }
}

// sqrt(sum x^2), of x / the largest, so that no square overflows.
double norm_of(const std::vector<NamedTensor>& gradients) {
  double largest = 0, sum = 0;
  for_values(gradients, [&](const double* x, std::int64_t count) {
    for (std::int64_t n = 0; n < count; ++n) largest = std::fmax(largest, std::abs(x[n]));
  });
  const double scale = largest > 0 ? largest : 1;
  for_values(gradients, [&](const double* x, std::int64_t count) {
    for (std::int64_t n = 0; n < count; ++n) sum += (x[n] / scale) * (x[n] / scale);
  });
  return scale * std::sqrt(sum);
}

}  // namespace

void accumulate(std::vector<NamedTensor>& sum, const std::vector<NamedTensor>& more) {
  reporting("accumulate", [&] {
    for (const std::vector<NamedTensor>* list : {&std::as_const(sum), &more})
      for (const auto& [name, tensor] : *list)
        check_in_host_memory("accumulate: ", "the gradient of ", name, tensor.device());
    if (sum.empty()) {
      std::vector<NamedTensor> copy;
      copy.reserve(more.size());
      for (const auto& [name, tensor] : more) copy.push_back({name, wide_copy(tensor)});
      sum = std::move(copy);
      return;
    }
    check_gradients("accumulate: ", "sum", forms_of(sum), more);
    double a[kPiece], b[kPiece];
    for (std::size_t n = 0; n < sum.size(); ++n) {
      Tensor& to = sum[n].tensor;
      const Tensor& from = more[n].tensor;  // of any type
      const Numbers<double> of_sum(to.dtype(), default_context()),
          of_more(from.dtype(), default_context());
      for_pieces(to.count(), [&](std::int64_t begin, std::int64_t count) {
        of_sum.load(to.view().data(), begin, 1, count, a);
        of_more.load(from.view().data(), begin, 1, count, b);
        for (std::int64_t e = 0; e < count; ++e) a[e] += b[e];
        of_sum.store(a, count, to.view().data(), begin, 1);
      });
    }
  });
}

double clip_gradients(std::vector<NamedTensor>& gradients, double max_norm) {
  return reporting("clip_gradients", [&] {
    if (!(max_norm > 0))
      throw InvalidArgument(text("clip_gradients: max_norm is ", max_norm, ", not above 0"));
    check_gradients("clip_gradients: ", "gradient", forms_of(gradients), gradients);
    const double norm = norm_of(gradients);
    if (!std::isfinite(norm))
      throw InvalidArgument(text("clip_gradients: the norm of the gradients is ", norm));
    if (norm <= max_norm) return norm;
    double values[kPiece];
    for (NamedTensor& gradient : gradients) {
      const Numbers<double> numbers(gradient.tensor.dtype(), default_context());
      void* const data = gradient.tensor.view().data();
      for_pieces(gradient.tensor.count(), [&](std::int64_t begin, std::int64_t count) {
        numbers.load(data, begin, 1, count, values);
        for (std::int64_t n = 0; n < count; ++n) values[n] *= max_norm / norm;
        numbers.store(values, count, data, begin, 1);
      });
    }
    return norm;
  });
}

}  // namespace attend
