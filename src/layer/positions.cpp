// Learned and sinusoidal positions: a row of a table is added to each token of a sequence.
#include "api/tensor_memory.h"
#include "core/text.h"
#include "layer/check.h"
#include "layer/elementwise.h"
#include "layer/flat.h"
#include "layer/initialise.h"
#include "layer/lists.h"
#include "layer/rows.h"
#include "layer/scratch.h"
#include "layer/tensors.h"

#include <attend/embedding.h>

#include <cmath>
#include <cstring>

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

// y[..., i, :] = x[..., i, :] + row i of a table: add(row of x, i, row of y).
template <class Add>
void add_table(const ConstTensorView& x, std::int64_t length, const TensorView& y,
               const Where& where, Add add) {
  const ReadRows rows = rows_of(x, where, true);
  const WrittenRows written(y, where, true);
  for_row_blocks(rows.view.size(0), rows.view.size(1), where, [&](auto, auto begin, auto end) {
    for (std::int64_t r = begin; r < end; ++r)
      add(row_at(rows.view, r), r % length, row_at(written.view(), r));
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
    const Sums sums(x.dtype(), where);
    const auto* const table = static_cast<const std::byte*>(weight_.view().data());
    add_table(x, length, y, where, [&](const void* from, std::int64_t i, void* to) {
      sums(from, table + (offset + i) * dim * size_of(x.dtype()), dim, to);
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
    Tensor dweight = where.context().make_tensor(weight_.shape(), weight_.dtype());
    const Numbers<double> numbers(dy.dtype(), where);
    void* const to = dweight.view().data();
    std::memset(to, 0, static_cast<std::size_t>(dweight.count() * size_of(dweight.dtype())));
    for_row_blocks(length, dim, where, [&](auto, auto begin, auto end) {
      for (std::int64_t i = begin; i < end; ++i)
        sum_rows(
            rows, rows.size(0) / length, [=](std::int64_t n) { return n * length + i; }, numbers,
            to, (saved.offset + i) * dim);
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
    double* table = static_cast<double*>(scratch.tensors[0].data());
    for_row_blocks(rows, dim, where, [&](auto, auto begin, auto end) {
      for (std::int64_t i = begin; i < end; ++i)
        for (std::int64_t c = 0; c < dim; c += 2) {
          const double angle =
              static_cast<double>(i + offset) /
              std::pow(options_.base, static_cast<double>(c) / static_cast<double>(dim));
          table[i * dim + c] = std::sin(angle);
          table[i * dim + c + 1] = std::cos(angle);
        }
    });
    const Numbers<double> numbers(x.dtype(), where);  // rounded once
    add_table(x, length, y, where, [&](const void* from, std::int64_t i, void* to) {
      for_pieces(dim, [&](std::int64_t c, std::int64_t count) {
        double sums[kPiece];
        numbers.load(from, c, 1, count, sums);
        for (std::int64_t n = 0; n < count; ++n) sums[n] += table[i * dim + c + n];
        numbers.store(sums, count, to, c, 1);
      });
    });
  });
}

std::pair<Tensor, SinusoidalPositions::Saved> SinusoidalPositions::forward_train(
    const ConstTensorView& x, std::int64_t offset, const Where& where) const {
  Tensor y = forward(x, offset, where);
  return {std::move(y), Saved{x.shape()}};
}

LayerGradients SinusoidalPositions::backward(const ConstTensorView& dy, const Saved& saved,
                                             const Where& where) const {
  return reporting(kSinusoidal, [&] {
    check_readable(kSinusoidal, "dy", dy);
    check_shape(kSinusoidal, "dy", dy, dy.dtype(), saved.shape);
    return LayerGradients{copied(dy, where), {}};
  });
}

}  // namespace attend
