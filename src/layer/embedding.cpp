// Rows of a table, one for each token.
#include "api/tensor_memory.h"
#include "core/strided.h"
#include "core/text.h"
#include "layer/check.h"
#include "layer/initialise.h"
#include "layer/lists.h"
#include "layer/rows.h"

#include <attend/embedding.h>

#include <cstring>
#include <numeric>

namespace attend {
namespace {

constexpr const char* kLayer = "embedding";

// All tokens in order, each of them known to the vocabulary.
std::vector<std::int64_t> checked_tokens(const ConstTensorView& tokens, std::int64_t vocabulary) {
  check_readable(kLayer, "tokens", tokens);
  if (tokens.dtype() != DType::i64 && tokens.dtype() != DType::i32)
    throw InvalidArgument(
        text("embedding: tokens are ", tokens.dtype(), "; they must be i64 or i32"));
  if (tokens.rank() == kMaxRank)
    throw InvalidArgument(text("embedding: tokens have ", kMaxRank, " dimensions; at most ",
                               kMaxRank - 1, " are allowed"));
  const Tensor copy = Tensor::copy_of(tokens);
  std::vector<std::int64_t> list(static_cast<std::size_t>(copy.count()));
  if (copy.dtype() == DType::i64) std::copy_n(copy.data<std::int64_t>(), list.size(), list.begin());
  else std::copy_n(copy.data<std::int32_t>(), list.size(), list.begin());
  for (std::size_t n = 0; n < list.size(); ++n)
    if (list[n] < 0 || list[n] >= vocabulary)
      throw InvalidArgument(text("embedding: the token at ",
                                 index_of(tokens.shape(), static_cast<std::int64_t>(n)), " is ",
                                 list[n], "; the vocabulary has the tokens 0 to ", vocabulary - 1));
  return list;
}

Shape output_shape(const Shape& tokens, std::int64_t dim) {
  std::array<std::int64_t, kMaxRank> sizes{};
  std::copy(tokens.begin(), tokens.end(), sizes.begin());
  sizes[static_cast<std::size_t>(tokens.rank())] = dim;
  return Shape(std::span(sizes).first(static_cast<std::size_t>(tokens.rank()) + 1));
}

// Where each token occurs: places[begin[t]] ... places[begin[t + 1] - 1], ascending.
struct Occurrences {
  std::vector<std::int64_t> begin, places;

  Occurrences(const std::vector<std::int64_t>& tokens, std::int64_t vocabulary)
      : begin(static_cast<std::size_t>(vocabulary) + 1), places(tokens.size()) {
    for (const std::int64_t token : tokens) ++begin[static_cast<std::size_t>(token) + 1];
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    std::vector<std::int64_t> next(begin.begin(), begin.end() - 1);
    for (std::size_t n = 0; n < tokens.size(); ++n)
      places[static_cast<std::size_t>(next[static_cast<std::size_t>(tokens[n])]++)] =
          static_cast<std::int64_t>(n);
  }
};

}  // namespace

Embedding::Embedding(const EmbeddingOptions& options) {
  reporting("embedding", [&] {
    check_size(kLayer, "vocabulary", options.vocabulary);
    check_size(kLayer, "dim", options.dim);
    check_type(kLayer, options.type);
    check_deviation(kLayer, options.deviation);
    weight_ = normal({options.vocabulary, options.dim}, options.deviation, options.type,
                     options.seed, "weight");
  });
}

Tensor Embedding::forward(const ConstTensorView& tokens, const Where& where) const {
  return reporting(kLayer, [&] {
    check_made(kLayer, static_cast<bool>(*this));
    const std::vector<std::int64_t> list = checked_tokens(tokens, weight_.size(0));
    const std::int64_t dim = weight_.size(1);
    Tensor y = where.context().make_tensor(output_shape(tokens.shape(), dim), weight_.dtype());
    const std::int64_t bytes = dim * size_of(weight_.dtype());
    const auto* from = static_cast<const std::byte*>(weight_.view().data());
    auto* to = static_cast<std::byte*>(y.view().data());
    for_row_blocks(static_cast<std::int64_t>(list.size()), dim, where,
                   [&](auto, auto begin, auto end) {
                     for (std::int64_t n = begin; n < end; ++n)
                       std::memcpy(to + n * bytes, from + list[static_cast<std::size_t>(n)] * bytes,
                                   static_cast<std::size_t>(bytes));
                   });
    return y;
  });
}

std::pair<Tensor, Embedding::Saved> Embedding::forward_train(const ConstTensorView& tokens,
                                                             const Where& where) const {
  Tensor y = forward(tokens, where);
  return {std::move(y), Saved{copied(tokens, where)}};
}

//   dweight[t] = sum of dy over the places of token t, in ascending order, in f64
LayerGradients Embedding::backward(const ConstTensorView& dy, const Saved& saved,
                                   const Where& where) const {
  return reporting(kLayer, [&] {
    check_made(kLayer, static_cast<bool>(*this));
    const std::int64_t vocabulary = weight_.size(0), dim = weight_.size(1);
    const std::vector<std::int64_t> list = checked_tokens(saved.tokens, vocabulary);
    check_shape(kLayer, "dy", dy, weight_.dtype(), output_shape(saved.tokens.shape(), dim));
    const Occurrences occurrences(list, vocabulary);
    const Rows rows = rows_of(dy);
    Tensor dweight = where.context().make_tensor(weight_.shape(), weight_.dtype());
    with_type(weight_.dtype(), [&]<class T>(T) {
      T* to = dweight.data<T>();
      for_row_blocks(vocabulary, dim, where, [&](auto, auto begin, auto end) {
        for (std::int64_t token = begin; token < end; ++token) {
          const auto t = static_cast<std::size_t>(token);
          const std::int64_t* places = occurrences.places.data() + occurrences.begin[t];
          sum_rows(
              rows.view, occurrences.begin[t + 1] - occurrences.begin[t],
              [=](std::int64_t n) { return places[n]; }, to + token * dim);
        }
      });
    });
    LayerGradients gradients;
    gradients.parameters.push_back({"weight", std::move(dweight)});
    return gradients;
  });
}

std::vector<NamedView> Embedding::parameters() const {
  return listed<NamedView, const Tensor>(kLayer, {{"weight", &weight_}});
}
std::vector<Parameter> Embedding::writable_parameters() {
  return listed<Parameter, Tensor>(kLayer, {{"weight", &weight_}});
}

}  // namespace attend
