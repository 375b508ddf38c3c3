// Rows of a table, one for each token.
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

#include <cstring>
#include <numeric>
#include <span>

namespace attend {
namespace {

constexpr const char* kEmbeddingName = "embedding";

void check_token_ids(const ConstTensorView& tokens) {
  check_readable(kEmbeddingName, "tokens", tokens);
  if (tokens.dtype() != DType::i64 && tokens.dtype() != DType::i32)
    throw InvalidArgument(
        text("embedding: tokens are ", tokens.dtype(), "; they must be i64 or i32"));
  if (tokens.rank() == kMaxRank)
    throw InvalidArgument(text("embedding: tokens have ", kMaxRank, " dimensions; at most ",
                               kMaxRank - 1, " are allowed"));
}

// All tokens in order, each of them known to the vocabulary.
class Tokens {
 public:
  Tokens(const ConstTensorView& tokens, std::int64_t vocabulary, const Where& where)
      : count_(tokens.count()),
        scratch_(where, {{{count_}, DType::i64},
                         {{tokens.dtype() == DType::i32 ? count_ : 0}, DType::i32}}) {
    auto* const to = static_cast<std::int64_t*>(scratch_.tensors[0].data());
    if (tokens.dtype() == DType::i64) {
      copy_elements(tokens, reinterpret_cast<std::byte*>(to));
    } else {
      auto* const narrow = static_cast<std::int32_t*>(scratch_.tensors[1].data());
      copy_elements(tokens, reinterpret_cast<std::byte*>(narrow));
      std::copy_n(narrow, count_, to);
    }
    for (std::int64_t n = 0; n < count_; ++n)
      if (to[n] < 0 || to[n] >= vocabulary)
        throw InvalidArgument(text("embedding: the token at ", index_of(tokens.shape(), n), " is ",
                                   to[n], "; the vocabulary has the tokens 0 to ", vocabulary - 1));
  }
  std::span<const std::int64_t> list() const {
    return {static_cast<const std::int64_t*>(scratch_.tensors[0].data()),
            static_cast<std::size_t>(count_)};
  }

 private:
  std::int64_t count_;
  Scratch<2> scratch_;
};

Shape output_shape(const Shape& tokens, std::int64_t dim) {
  std::array<std::int64_t, kMaxRank> sizes{};
  std::copy(tokens.begin(), tokens.end(), sizes.begin());
  sizes[static_cast<std::size_t>(tokens.rank())] = dim;
  return Shape(std::span(sizes).first(static_cast<std::size_t>(tokens.rank()) + 1));
}

// Where each token occurs: places[begin[t]] ... places[begin[t + 1] - 1], ascending.
class Occurrences {
 public:
  Occurrences(std::span<const std::int64_t> tokens, std::int64_t vocabulary, const Where& where)
      : scratch_(where, {{{vocabulary + 1}, DType::i64},
                         {{static_cast<std::int64_t>(tokens.size())}, DType::i64},
                         {{vocabulary}, DType::i64}}),
        begin(list(0)), places(list(1)) {
    std::int64_t* const next = list(2);
    std::fill_n(begin, vocabulary + 1, 0);
    for (const std::int64_t token : tokens) ++begin[token + 1];
    std::partial_sum(begin, begin + vocabulary + 1, begin);
    std::copy_n(begin, vocabulary, next);
    for (std::size_t n = 0; n < tokens.size(); ++n)
      places[next[tokens[n]]++] = static_cast<std::int64_t>(n);
  }

 private:
  std::int64_t* list(std::size_t n) const {
    return static_cast<std::int64_t*>(scratch_.tensors[n].data());
  }
  Scratch<3> scratch_;

 public:
  std::int64_t *const begin, *const places;
};

}  // namespace

Embedding::Embedding(const EmbeddingOptions& options) {
  reporting("embedding", [&] {
    check_size(kEmbeddingName, "vocabulary", options.vocabulary);
    check_size(kEmbeddingName, "dim", options.dim);
    check_type(kEmbeddingName, options.type);
    check_deviation(kEmbeddingName, options.deviation);
    weight_ = normal({options.vocabulary, options.dim}, options.deviation, options.type,
                     options.seed, "weight");
  });
}

void Embedding::forward_into(const ConstTensorView& tokens, const TensorView& y,
                             const Where& where) const {
  reporting(kEmbeddingName, [&] {
    check_made(kEmbeddingName, static_cast<bool>(*this));
    check_token_ids(tokens);
    const std::int64_t dim = weight_.size(1);
    check_output(kEmbeddingName, "y", y, weight_.dtype(), output_shape(tokens.shape(), dim));
    check_apart(kEmbeddingName, "y", y, "tokens", tokens);
    check_apart_from_tensors(kEmbeddingName, "y", y, *this);
    const Tokens checked(tokens, weight_.size(0), where);
    const std::int64_t* const list = checked.list().data();
    const WrittenRows rows(y, where, true);
    const std::int64_t size = size_of(weight_.dtype()), stride = rows.view().strides()[0];
    const auto* from = static_cast<const std::byte*>(weight_.view().data());
    auto* to = static_cast<std::byte*>(rows.view().data());
    for_row_blocks(tokens.count(), dim, where, [&](auto, std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n)
        std::memcpy(to + n * stride * size, from + list[n] * dim * size,
                    static_cast<std::size_t>(dim * size));
    });
    rows.finish();
  });
}

Tensor Embedding::forward(const ConstTensorView& tokens, const Where& where) const {
  return reporting(kEmbeddingName, [&] {
    check_made(kEmbeddingName, static_cast<bool>(*this));
    check_token_ids(tokens);
    Tensor y =
        where.context().make_tensor(output_shape(tokens.shape(), weight_.size(1)), weight_.dtype());
    forward_into(tokens, y, where);
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
  return reporting(kEmbeddingName, [&] {
    check_made(kEmbeddingName, static_cast<bool>(*this));
    const std::int64_t vocabulary = weight_.size(0), dim = weight_.size(1);
    check_token_ids(saved.tokens);
    const Tokens tokens(saved.tokens, vocabulary, where);
    check_shape(kEmbeddingName, "dy", dy, weight_.dtype(), output_shape(saved.tokens.shape(), dim));
    const Occurrences occurrences(tokens.list(), vocabulary, where);
    const ReadRows rows = rows_of(dy, where);
    Tensor dweight = where.context().make_tensor(weight_.shape(), weight_.dtype());
    const Numbers<double> numbers(weight_.dtype(), where);
    void* const to = dweight.view().data();
    for_row_blocks(vocabulary, dim, where, [&](auto, auto begin, auto end) {
      for (std::int64_t token = begin; token < end; ++token) {
        const std::int64_t first = occurrences.begin[token];
        const std::int64_t* places = occurrences.places + first;
        sum_rows(
            rows.view, occurrences.begin[token + 1] - first,
            [=](std::int64_t n) { return places[n]; }, numbers, to, token * dim);
      }
    });
    LayerGradients gradients;
    gradients.parameters.push_back({"weight", std::move(dweight)});
    return gradients;
  });
}

std::vector<NamedView> Embedding::parameters() const {
  return listed<NamedView, const Tensor>(kEmbeddingName, {{"weight", &weight_}});
}
std::vector<Parameter> Embedding::writable_parameters() {
  return listed<Parameter, Tensor>(kEmbeddingName, {{"weight", &weight_}});
}

}  // namespace attend
