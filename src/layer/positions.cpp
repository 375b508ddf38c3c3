// Learned and sinusoidal positions: a row of a table is added to each token of a sequence.
#include "api/tensor_memory.h"
#include "core/strided.h"
#include "core/text.h"
#include "layer/check.h"
#include "layer/initialise.h"
#include "layer/lists.h"
#include "layer/rows.h"
#include "layer/scratch.h"
#include "layer/tensors.h"

#include <attend/embedding.h>

#include <cmath>

namespace attend {
namespace {

constexpr const char* kLearned = "learned_positions";
constexpr const char* kSinusoidal = "sinusoidal_positions";
constexpr std::int64_t kMostOffset = std::int64_t{1} << 52;  // f64 counts so far without a gap

// x [..., length, dim]; the length is returned.
std::int64_t check_sequence(const char* layer, const char* name, const ConstTensorView& x,
                            DType type, std::int64_t dim) {
  check_input(layer, name, x, type, dim);
  if (x.rank() < 2)
    throw InvalidArgument(
        text(layer, ": ", name, " is ", x.shape(), "; it must be [..., length, ", dim, "]"));
  return x.size(x.rank() - 2);
}

void check_positions(std::int64_t positions, std::int64_t offset, std::int64_t length) {
  if (offset < 0 || offset > positions || length > positions - offset)
    throw InvalidArgument(text("learned_positions: a length of ", length, " from offset ", offset,
                               "; the table has the positions 0 to ", positions - 1));
}

// y[..., i, :] = x[..., i, :] + table[i, :], rounded once.
template <class Entry>
void add_table(const ConstTensorView& x, std::int64_t length, const Entry* table,
               const TensorView& y, const Where& where) {
  const Rows rows = rows_of(x, where);
  const WrittenRows written(y, where);
  const std::int64_t dim = rows.view.size(1);
  const std::int64_t row = written.view().strides()[0], column = written.view().strides()[1];
  with_type(x.dtype(), [&]<class T>(T) {
    T* to = static_cast<T*>(written.view().data());
    for_row_blocks(rows.view.size(0), dim, where, [&](auto, auto begin, auto end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const Row<T> from(rows.view, r);
        for (std::int64_t c = 0; c < dim; ++c)
          to[r * row + c * column] = static_cast<T>(from[c] + widened(table[r % length * dim + c]));
      }
    });
  });
  written.finish();
}

}  // namespace

// ---- Learned -----------------------------------------------------------------------------------

LearnedPositions::LearnedPositions(const LearnedPositionsOptions& options) {
  reporting("learned_positions", [&] {
    check_size(kLearned, "length", options.length);
    check_size(kLearned, "dim", options.dim);
    check_type(kLearned, options.type);
    check_deviation(kLearned, options.deviation);
    weight_ = normal({options.length, options.dim}, options.deviation, options.type, options.seed,
                     "weight");
  });
}

void LearnedPositions::forward_into(const ConstTensorView& x, const TensorView& y,
                                    std::int64_t offset, const Where& where) const {
  reporting(kLearned, [&] {
    check_made(kLearned, static_cast<bool>(*this));
    const std::int64_t dim = weight_.size(1);
    const std::int64_t length = check_sequence(kLearned, "x", x, weight_.dtype(), dim);
    check_positions(weight_.size(0), offset, length);
    check_output(kLearned, "y", y, x.dtype(), x.shape());
    check_apart(kLearned, "y", y, "x", x);
    check_apart_from_tensors(kLearned, "y", y, *this);
    with_type(x.dtype(), [&]<class T>(T) {
      add_table(x, length, weight_.data<T>() + offset * dim, y, where);
    });
  });
}

Tensor LearnedPositions::forward(const ConstTensorView& x, std::int64_t offset,
                                 const Where& where) const {
  return reporting(kLearned, [&] {
    check_made(kLearned, static_cast<bool>(*this));
    check_sequence(kLearned, "x", x, weight_.dtype(), weight_.size(1));
    Tensor y = where.context().make_tensor(x.shape(), x.dtype());
    forward_into(x, y, offset, where);
    return y;
  });
}

std::pair<Tensor, LearnedPositions::Saved> LearnedPositions::forward_train(
    const ConstTensorView& x, std::int64_t offset, const Where& where) const {
  return {forward(x, offset, where), {offset}};
}

//   dx = dy      dweight[i + offset] = sum of dy[..., i, :] over all sequences, in order, in f64
LayerGradients LearnedPositions::backward(const ConstTensorView& dy, const Saved& saved,
                                          const Where& where) const {
  return reporting(kLearned, [&] {
    check_made(kLearned, static_cast<bool>(*this));
    const std::int64_t dim = weight_.size(1);
    const std::int64_t length = check_sequence(kLearned, "dy", dy, weight_.dtype(), dim);
    check_positions(weight_.size(0), saved.offset, length);
    LayerGradients gradients{copied(dy, where), {}};
    const ConstTensorView rows = rows_of(gradients.dx);
    Tensor dweight(weight_.shape(), weight_.dtype());
    with_type(dy.dtype(), [&]<class T>(T) {
      T* to = dweight.data<T>() + saved.offset * dim;
      for_row_blocks(length, dim, where, [&](auto, auto begin, auto end) {
        for (std::int64_t i = begin; i < end; ++i)
          sum_rows(
              rows, rows.size(0) / length, [=](std::int64_t n) { return n * length + i; },
              to + i * dim);
      });
    });
    gradients.parameters.push_back({"weight", std::move(dweight)});
    return gradients;
  });
}

std::vector<NamedView> LearnedPositions::parameters() const {
  return listed<NamedView, const Tensor>(kLearned, {{"weight", &weight_}});
}
std::vector<Parameter> LearnedPositions::writable_parameters() {
  return listed<Parameter, Tensor>(kLearned, {{"weight", &weight_}});
}

// ---- Sinusoidal --------------------------------------------------------------------------------

SinusoidalPositions::SinusoidalPositions(const SinusoidalPositionsOptions& options)
    : options_(options) {
  reporting("sinusoidal_positions", [&] {
    check_size(kSinusoidal, "dim", options.dim);
    if (options.dim % 2 != 0)
      throw InvalidArgument(
          text("sinusoidal_positions: dim is ", options.dim, "; it must be even"));
    if (!(options.base > 0 && std::isfinite(options.base)))
      throw InvalidArgument(
          text("sinusoidal_positions: base is ", options.base, "; it must be positive and finite"));
  });
}

Tensor SinusoidalPositions::forward(const ConstTensorView& x, std::int64_t offset,
                                    const Where& where) const {
  return reporting(kSinusoidal, [&] {
    check_readable(kSinusoidal, "x", x);
    check_type(kSinusoidal, x.dtype());
    Tensor y = where.context().make_tensor(x.shape(), x.dtype());
    forward_into(x, y, offset, where);
    return y;
  });
}

void SinusoidalPositions::forward_into(const ConstTensorView& x, const TensorView& y,
                                       std::int64_t offset, const Where& where) const {
  reporting(kSinusoidal, [&] {
    check_readable(kSinusoidal, "x", x);
    check_type(kSinusoidal, x.dtype());
    const std::int64_t dim = options_.dim;
    const std::int64_t length = check_sequence(kSinusoidal, "x", x, x.dtype(), dim);
    if (offset < 0 || offset > kMostOffset)
      throw InvalidArgument(
          text("sinusoidal_positions: offset is ", offset, "; it must be from 0 to ", kMostOffset));
    check_output(kSinusoidal, "y", y, x.dtype(), x.shape());
    check_apart(kSinusoidal, "y", y, "x", x);
    const std::int64_t rows = x.count() == 0 ? 0 : length;
    const Scratch scratch(where, {{{rows, dim}, DType::f64}});
    double* to = static_cast<double*>(scratch.tensors[0].data());
    for_row_blocks(rows, dim, where, [&](auto, auto begin, auto end) {
      for (std::int64_t i = begin; i < end; ++i)
        for (std::int64_t c = 0; c < dim; c += 2) {
          const double angle =
              static_cast<double>(i + offset) /
              std::pow(options_.base, static_cast<double>(c) / static_cast<double>(dim));
          to[i * dim + c] = std::sin(angle);
          to[i * dim + c + 1] = std::cos(angle);
        }
    });
    add_table(x, length, to, y, where);
  });
}

std::pair<Tensor, SinusoidalPositions::Saved> SinusoidalPositions::forward_train(
    const ConstTensorView& x, std::int64_t offset, const Where& where) const {
  Tensor y = forward(x, offset, where);
  return {std::move(y), Saved{x.shape()}};
}

LayerGradients SinusoidalPositions::backward(const ConstTensorView& dy, const Saved& saved,
                                             const Where&) const {
  return reporting(kSinusoidal, [&] {
    check_readable(kSinusoidal, "dy", dy);
    check_shape(kSinusoidal, "dy", dy, dy.dtype(), saved.shape);
    return LayerGradients{Tensor::copy_of(dy), {}};
  });
}

}  // namespace attend
