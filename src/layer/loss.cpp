// Losses and their gradients. All arithmetic is in f64, whatever the tensors' type; rows are summed
// in their order, so that threads change no bit.
#include <attend/train.h>

#include "api/tensor_memory.h"
#include "core/interruption.h"
#include "core/text.h"
#include "layer/check.h"
#include "layer/flat.h"
#include "layer/rows.h"
#include "layer/scratch.h"

#include <cmath>

namespace attend {
namespace {

// What can be read, one element behind the other: as it is, or else a copy of it.
class Contiguous {
 public:
  Contiguous(const ConstTensorView& given, const Where& where)
      : scratch_(where, {{is_contiguous(given) ? Shape{0} : given.shape(), given.dtype()}}),
        view(given) {
    if (is_contiguous(given)) return;
    view = scratch_.tensors[0];
    copy_elements(given, static_cast<std::byte*>(scratch_.tensors[0].data()));
  }

 private:
  Scratch<1> scratch_;

 public:
  ConstTensorView view;
};

void check_floating(const char* function, const char* name, DType type) {
  if (!is_floating_point(type))
    throw InvalidArgument(text(function, ": ", name, " is ", type, ", not a floating-point type"));
}

void check_gradient_scale(const char* function, double scale) {
  if (!(scale > 0 && std::isfinite(scale)))
    throw InvalidArgument(
        text(function, ": gradient_scale is ", scale, "; it must be finite and above 0"));
}

Shape without_last(const Shape& shape) { return Shape(std::span(shape.begin(), shape.end() - 1)); }

// How many targets count; each must be a class or the value to ignore.
std::int64_t count_targets(const ConstTensorView& targets, std::int64_t classes,
                           std::int64_t ignore) {
  const Strided t = flat(targets);
  std::int64_t count = 0;
  for (std::int64_t row = 0; row < targets.count(); ++row) {
    const std::int64_t target = load_integer(t, row);
    if (target == ignore) continue;
    if (target < 0 || target >= classes)
      throw InvalidArgument(text("cross_entropy: target ", index_of(targets.shape(), row), " is ",
                                 target, "; there are ", classes, " classes, from 0 on, and ",
                                 ignore, " is ignored"));
    ++count;
  }
  return count;
}

// One row z of logits. The wanted distribution is q = (1 - smoothing) at the target, and
// smoothing / classes everywhere; p = softmax(z).
//   loss = -sum_c q_c log p_c = lse(z) - (1 - smoothing) z_target - smoothing mean(z)
//   dz   = (p - q) scale                                                 in place of z
double cross_entropy_row(double* z, std::int64_t classes, std::int64_t target, double smoothing,
                         double scale) noexcept {
  const double largest = *std::max_element(z, z + classes);
  double sum = 0, mean = 0;
  for (std::int64_t c = 0; c < classes; ++c) sum += std::exp(z[c] - largest);
  const double lse = largest + std::log(sum);
  if (smoothing > 0)  // else a logit of -inf would give 0 * inf
    for (std::int64_t c = 0; c < classes; ++c) mean += z[c] / static_cast<double>(classes);
  const double loss = lse - (1 - smoothing) * z[target] - smoothing * mean;
  for (std::int64_t c = 0; c < classes; ++c)
    z[c] = (std::exp(z[c] - lse) - smoothing / static_cast<double>(classes)) * scale;
  z[target] -= (1 - smoothing) * scale;
  return loss;
}

}  // namespace

Loss cross_entropy(const ConstTensorView& logits, const ConstTensorView& targets,
                   const CrossEntropyOptions& options, const Where& where) {
  return reporting("cross_entropy", [&]() -> Loss {
    check_readable("cross_entropy", "logits", logits);
    check_readable("cross_entropy", "targets", targets);
    const Contiguous read_logits(logits, where), read_targets(targets, where);
    const ConstTensorView &z = read_logits.view, &t = read_targets.view;
    check_floating("cross_entropy", "logits", z.dtype());
    if (t.dtype() != DType::i64 && t.dtype() != DType::i32)
      throw InvalidArgument(text("cross_entropy: targets is ", t.dtype(), ", not i64 or i32"));
    if (z.shape().rank() == 0 || t.shape() != without_last(z.shape()))
      throw InvalidArgument(text("cross_entropy: targets is ", t.shape(), ", logits ", z.shape(),
                                 "; targets must have the sizes of logits without the last"));
    const std::int64_t rows = t.count(), classes = z.size(z.shape().rank() - 1);
    const double smoothing = options.label_smoothing;
    if (!(smoothing >= 0 && smoothing < 1))
      throw InvalidArgument(text("cross_entropy: label_smoothing is ", smoothing,
                                 "; it must be at least 0 and less than 1"));
    check_gradient_scale("cross_entropy", options.gradient_scale);
    const std::int64_t count = count_targets(t, classes, options.ignore);

    Loss loss{0, where.context().make_tensor(z.shape(), z.dtype()), count};
    const Numbers<double> numbers(z.dtype(), where);
    void* const to = loss.gradient.view().data();
    const Strided wanted = flat(t);
    const std::int64_t strips = std::min<std::int64_t>(rows, where.context().threads());
    const Scratch scratch(where, {{{rows}, DType::f64}, {{strips, classes}, DType::f64}});
    double* const losses = static_cast<double*>(scratch.tensors[0].data());
    double* const row_of_strip = static_cast<double*>(scratch.tensors[1].data());
    std::fill_n(losses, rows, 0.0);
    where.context().parallel_for(strips, [&](std::int64_t strip) {
      Interrupt* const interrupt = RunningTasks::interrupt();
      double* values = row_of_strip + strip * classes;
      const std::int64_t end = (strip + 1) * rows / strips;
      for (std::int64_t row = strip * rows / strips; row < end && !must_stop(interrupt); ++row) {
        const std::int64_t target = load_integer(wanted, row);
        if (target == options.ignore) {
          std::fill_n(values, classes, 0.0);
        } else {
          numbers.load(z.data(), row * classes, 1, classes, values);
          losses[row] = cross_entropy_row(values, classes, target, smoothing,
                                          options.gradient_scale / static_cast<double>(count));
        }
        numbers.store(values, classes, to, row * classes, 1);
      }
    });
    for (std::int64_t row = 0; row < rows; ++row) loss.value += losses[row];
    loss.value /= static_cast<double>(std::max<std::int64_t>(count, 1));
    return loss;
  });
}

Loss mse(const ConstTensorView& prediction, const ConstTensorView& target, const Where& where) {
  return mse(prediction, target, MseOptions{}, where);
}

// d/dprediction mean((prediction - target)^2) = 2 (prediction - target) / count
Loss mse(const ConstTensorView& prediction, const ConstTensorView& target,
         const MseOptions& options, const Where& where) {
  return reporting("mse", [&]() -> Loss {
    check_readable("mse", "prediction", prediction);
    check_readable("mse", "target", target);
    const Contiguous read_prediction(prediction, where), read_target(target, where);
    const ConstTensorView &x = read_prediction.view, &y = read_target.view;
    check_floating("mse", "prediction", x.dtype());
    check_floating("mse", "target", y.dtype());
    if (x.shape() != y.shape())
      throw InvalidArgument(text("mse: prediction is ", x.shape(), ", target ", y.shape(),
                                 "; they must be the same"));
    check_gradient_scale("mse", options.gradient_scale);
    Loss loss{0, where.context().make_tensor(x.shape(), x.dtype()), x.count()};
    const auto count = static_cast<double>(std::max<std::int64_t>(loss.count, 1));
    const Numbers<double> of_x(x.dtype(), where), of_y(y.dtype(), where);
    void* const to = loss.gradient.view().data();
    where.context().parallel_for(1, [&](std::int64_t) {  // one sum, in order
      Interrupt* const interrupt = RunningTasks::interrupt();
      double a[kPiece], b[kPiece];
      for_pieces(x.count(), [&](std::int64_t begin, std::int64_t size) {
        if (must_stop(interrupt)) return;
        of_x.load(x.data(), begin, 1, size, a);
        of_y.load(y.data(), begin, 1, size, b);
        double sum = loss.value;
        for (std::int64_t n = 0; n < size; ++n) {
          const double difference = a[n] - b[n];
          sum += difference * difference;
          a[n] = 2 * difference / count * options.gradient_scale;
        }
        loss.value = sum;
        of_x.store(a, size, to, begin, 1);
      });
    });
    loss.value /= count;
    return loss;
  });
}

}  // namespace attend
