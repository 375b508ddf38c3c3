// Mistakes with the tensors that layers write. Each table entry also holds that nothing was
// written.
#include "errors/layer_mistakes.h"

#include <attend/block.h>
#include <attend/embedding.h>
#include <attend/feed_forward.h>
#include <attend/model.h>
#include <attend/norm.h>

#include <algorithm>
#include <utility>

namespace attend::test {
namespace {

// A tensor of sevens, that must still be so when the call has thrown.
template <class Call>
std::function<void()> unwritten(const Shape& shape, Call call) {
  return [=] {
    Tensor y(shape);
    std::fill_n(y.data<float>(), y.count(), 7.0F);
    try {
      call(y.view());
    } catch (...) {
      if (std::count(y.data<float>(), y.data<float>() + y.count(), 7.0F) != y.count())
        throw InvalidArgument("y was written");
      throw;
    }
  };
}

// y lies in a tensor of the cache, which holds one token of two features.
template <class Which>
std::function<void()> decoded_into_the_cache(Which which, DType type = DType::f32) {
  return [=] {
    static const MultiHeadAttention layer({.model_dim = 2});
    KvCache cache = layer.make_cache(1, 4, 2, 0, type);
    const Tensor x({1, 1, 2});
    layer.append(x, x, cache);
    const ConstTensorView memory = which(cache);
    layer.attend_into(x, cache,
                      TensorView(const_cast<void*>(memory.data()), DType::f32, {1, 1, 2}));
  };
}

// The view moved by one byte.
TensorView odd(const TensorView& y) {
  return {static_cast<std::byte*>(y.data()) + 1, y.dtype(), y.shape()};
}

}  // namespace

std::vector<LayerMistake> output_mistakes() {
  static const Linear linear({.in = 3, .out = 4}), square({.in = 4, .out = 4});
  static const LayerNorm norm({.dim = 4});
  static const FeedForward feed_forward({.model_dim = 4});
  static const Embedding embedding({.vocabulary = 5, .dim = 4});
  static const LearnedPositions learned({.length = 5, .dim = 4});
  static const SinusoidalPositions sinusoidal({.dim = 4});
  static const MultiHeadAttention attention({.model_dim = 4});
  static const AttentionBlock block({.attention = {.model_dim = 4}, .hidden_dim = 4}),
      decoder({.attention = {.model_dim = 4}, .cross = true});
  static const LanguageModel model({.vocabulary = 5, .length = 5, .model_dim = 4, .heads = 1});
  static const Tensor x({2, 3}), four({2, 4}), tokens({2, 2}, DType::i64);
  using V = const TensorView&;
  const std::string start = "InvalidArgument: ", must_not = " in memory; outputs must not";
  return {
      {"y_of_other_features", unwritten({2, 3}, [](V y) { linear.forward_into(x, y); }),
       start + "linear: y is [2, 3]; it must be [2, 4]"},
      {"y_of_another_type",
       [] {
         linear.forward_into(x, Tensor({2, 4}, DType::f64).view());
       },
       start + "linear: y is f64, the layer is f32"},
      {"y_is_missing", [] { linear.forward_into(x, {}); }, start + "linear: y is missing"},
      {"y_repeats_its_rows",
       unwritten({4},
                 [](V y) {
                   linear.forward_into(x, TensorView(y.data(), DType::f32, {2, 4}, {0, 1}));
                 }),
       start + "linear: y [2, 4] with strides [0, 1] has elements that share memory; outputs must "
               "not"},
      {"y_reaches_too_far",
       unwritten({4},
                 [](V y) {
                   linear.forward_into(
                       x, TensorView(y.data(), DType::f32, {2, 4}, {std::int64_t{1} << 61, 1}));
                 }),
       start + "linear: y [2, 4] with strides [2305843009213693952, 1] reaches further than 2^60 "
               "bytes"},
      {"y_at_an_odd_address",
       unwritten({3, 4}, [](V y) { linear.forward_into(x, odd(y.slice(0, 0, 2))); }),
       start + "linear: y is f32, but its address is not a multiple of 4"},
      {"x_at_an_odd_address",
       [] {
         norm.forward(odd(Tensor({3, 4}).view().slice(0, 0, 2)));
       },
       start + "layer_norm: x is f32, but its address is not a multiple of 4"},
      {"decoded_into_the_keys",
       decoded_into_the_cache([](const KvCache& cache) { return cache.keys(); }),
       start + "multi_head_attention: y overlaps cache.keys" + must_not},
      {"decoded_into_the_values",
       decoded_into_the_cache([](const KvCache& cache) { return cache.values(); }),
       start + "multi_head_attention: y overlaps cache.values" + must_not},
      {"y_in_the_scales_of_the_keys",
       decoded_into_the_cache([](const KvCache& cache) { return cache.k_scales(); }, DType::i8),
       start + "multi_head_attention: y overlaps cache.k_scales" + must_not},
      {"y_in_the_scales_of_the_values",
       decoded_into_the_cache([](const KvCache& cache) { return cache.v_scales(); }, DType::i8),
       start + "multi_head_attention: y overlaps cache.v_scales" + must_not},
      {"decoded_into_the_lengths",
       decoded_into_the_cache([](const KvCache& cache) { return cache.key_lengths(); }),
       start + "multi_head_attention: y overlaps cache.key_lengths" + must_not},
      {"decoded_into_the_block_table",
       decoded_into_the_cache([](const KvCache& cache) { return cache.block_table(); }),
       start + "multi_head_attention: y overlaps cache.block_table" + must_not},
      {"linear_in_place", unwritten({2, 4}, [](V y) { square.forward_into(y, y); }),
       start + "linear: y overlaps x" + must_not},
      {"norm_in_place", unwritten({2, 4}, [](V y) { norm.forward_into(y, y); }),
       start + "layer_norm: y overlaps x" + must_not},
      {"feed_forward_in_place", unwritten({2, 4}, [](V y) { feed_forward.forward_into(y, y); }),
       start + "feed_forward: y overlaps x" + must_not},
      {"learned_positions_in_place", unwritten({2, 4}, [](V y) { learned.forward_into(y, y); }),
       start + "learned_positions: y overlaps x" + must_not},
      {"sinusoidal_positions_in_place",
       unwritten({2, 4}, [](V y) { sinusoidal.forward_into(y, y); }),
       start + "sinusoidal_positions: y overlaps x" + must_not},
      {"embedding_over_its_tokens",
       unwritten(
           {2, 4},
           [](V y) { embedding.forward_into(ConstTensorView(y.data(), DType::i64, {2}), y); }),
       start + "embedding: y overlaps tokens" + must_not},
      {"embedding_of_an_unknown_token",
       unwritten({1, 4}, [](V y) { embedding.forward_into(Tensor({std::int64_t{7}}, {1}), y); }),
       start + "embedding: the token at [0] is 7; the vocabulary has the tokens 0 to 4"},
      {"attention_in_place", unwritten({2, 4}, [](V y) { attention.forward_into(y, y); }),
       start + "multi_head_attention: y overlaps query" + must_not},
      {"attention_over_its_lse",
       unwritten({2, 4},
                 [](V y) {
                   attention.forward_into(four, y, {},
                                          {.lse = TensorView(y.data(), DType::f32, {1, 1, 2})});
                 }),
       start + "multi_head_attention: y overlaps lse" + must_not},
      {"attention_over_its_bias",
       unwritten({2, 4}, [](V y) { attention.forward_into(four, y, {.bias = y.slice(1, 0, 2)}); }),
       start + "multi_head_attention: y overlaps bias" + must_not},
      {"attention_with_a_wrong_option",
       unwritten({2, 4}, [](V y) { attention.forward_into(four, y, {.softcap = -1}); }),
       start + "attention: softcap is -1; it must be finite and at least 0 (0: none)"},
      {"decoded_in_place",
       unwritten({1, 2, 4},
                 [](V y) {
                   KvCache cache = attention.make_cache(1, 4);
                   attention.forward_into(y, cache, y);
                 }),
       start + "multi_head_attention: y overlaps x" + must_not},
      {"decoded_over_its_lengths",
       unwritten({1, 2, 4},
                 [](V y) {
                   KvCache cache = attention.make_cache(1, 4);
                   attention.forward_into(Tensor({1, 2, 4}), cache, y, {},
                                          ConstTensorView(y.data(), DType::i32, {1}));
                 }),
       start + "multi_head_attention: y overlaps lengths" + must_not},
      {"attended_in_place",
       unwritten({1, 2, 4}, [](V y) { attention.attend_into(y, attention.make_cache(1, 4), y); }),
       start + "multi_head_attention: y overlaps query" + must_not},
      {"block_in_place", unwritten({2, 4}, [](V y) { block.forward_into(y, y); }),
       start + "attention_block: y overlaps x" + must_not},
      {"block_over_its_memory", unwritten({2, 4}, [](V y) { decoder.forward_into(four, y, y); }),
       start + "attention_block: y overlaps memory" + must_not},
      {"block_over_its_lengths",
       unwritten({1, 2, 4},
                 [](V y) {
                   KvCache cache = block.attention().make_cache(1, 4);
                   block.forward_into(Tensor({1, 2, 4}), cache, y, {},
                                      ConstTensorView(y.data(), DType::i32, {1}));
                 }),
       start + "attention_block: y overlaps lengths" + must_not},
      {"block_with_a_wrong_option",
       unwritten({2, 4}, [](V y) { decoder.forward_into(four, four, y, {}, {.softcap = -1}); }),
       start + "attention: softcap is -1; it must be finite and at least 0 (0: none)"},
      {"logits_of_another_shape", unwritten({2, 4}, [](V y) { model.forward_into(tokens, y); }),
       start + "language_model: logits is [2, 4]; it must be [2, 2, 5]"},
      {"logits_over_the_tokens",
       unwritten({2, 2, 5},
                 [](V y) {
                   model.forward_into(ConstTensorView(y.data(), DType::i64, {2, 2}), y);
                 }),
       start + "language_model: logits overlaps tokens" + must_not},
  };
}

}  // namespace attend::test
