// Mistakes with multi-head attention, caches, traces and blocks.
#include "errors/layer_mistakes.h"

#include <attend/block.h>

#include <cmath>

namespace attend::test {
namespace {

using Options = MultiHeadAttentionOptions;

Tensor of(const Shape& shape, DType type = DType::f32) { return Tensor(shape, type); }
Linear linear(std::int64_t out, std::int64_t in, DType type = DType::f32) {
  return Linear({.in = in, .out = out, .type = type});
}
const MultiHeadAttention& layer() {
  static const MultiHeadAttention made({.model_dim = 6, .heads = 2, .key_dim = 4, .value_dim = 5});
  return made;
}
KvCache cache_of(std::int64_t batch = 2) { return layer().make_cache(batch, 8); }
std::function<void()> made(const Options& options) {
  return [=] { MultiHeadAttention{options}; };
}

// Of the four projections, with one that does not fit.
std::function<void()> made_of(const Linear& q, const Linear& k, const Linear& v, const Linear& o) {
  return [=] { MultiHeadAttention({.model_dim = 6, .heads = 2}, q, k, v, o); };
}

}  // namespace

std::vector<LayerMistake> multi_head_mistakes() {
  const Linear good = linear(6, 6);
  const std::string start = "InvalidArgument: multi_head_attention: ";
  const auto forward = [](const ConstTensorView& q, const ConstTensorView& k,
                          const ConstTensorView& v) {
    return [q = Tensor::copy_of(q), k = Tensor::copy_of(k), v = Tensor::copy_of(v)] {
      layer().forward(q, k, v);
    };
  };
  const auto joined = [](const auto& change) {
    return [=] {
      std::vector<MultiHeadAttention::HeadWeights> heads = layer().split();
      change(heads);
      MultiHeadAttention::join(layer().options(), heads);
    };
  };
  return {
      {"no_model_dim", made({}), start + "model_dim is 0; it must be at least 1"},
      {"no_heads", made({.model_dim = 6, .heads = 0}), start + "heads is 0; it must be at least 1"},
      {"negative_key_heads", made({.model_dim = 6, .key_heads = -1}),
       start + "key_heads is -1; it must be at least 1"},
      {"negative_d_k", made({.model_dim = 6, .d_k = -1}),
       start + "d_k is -1; it must be at least 1"},
      {"negative_d_v", made({.model_dim = 6, .d_v = -1}),
       start + "d_v is -1; it must be at least 1"},
      {"negative_key_dim", made({.model_dim = 6, .key_dim = -1}),
       start + "key_dim is -1; it must be at least 1"},
      {"negative_value_dim", made({.model_dim = 6, .value_dim = -1}),
       start + "value_dim is -1; it must be at least 1"},
      {"heads_that_do_not_divide", made({.model_dim = 6, .heads = 4}),
       start + "model_dim 6 is not divisible by heads 4; give d_k, or one of 1 2 3 6"},
      {"key_heads_that_do_not_divide", made({.model_dim = 6, .heads = 6, .key_heads = 4}),
       start + "heads 6 is not a multiple of key_heads 4"},
      {"too_many_features", made({.model_dim = 6, .heads = 8, .d_k = std::int64_t{1} << 61}),
       start + "8 heads of 2305843009213693952 features are too many"},
      {"attention_of_whole_numbers", made({.model_dim = 6, .type = DType::i32}),
       start + "type is i32; it must be f64, f32, bf16 or f16"},
      {"odd_rotary_dim", made({.model_dim = 6, .rotary = Rotary{.dim = 3}}),
       start + "rotary.dim is 3; it must be even and at most d_k 6"},
      {"rotary_base_of_zero", made({.model_dim = 6, .rotary = Rotary{.base = 0}}),
       start + "rotary.base is 0; it must be finite and above 0"},
      {"no_q", made_of({}, good, good, good), start + "q is not given"},
      {"k_of_another_shape", made_of(good, linear(6, 5), good, good),
       start + "k.weight is [6, 5]; as [out, in] it must be [6, 6]"},
      {"v_of_another_type", made_of(good, good, linear(6, 6, DType::f64), good),
       start + "v.weight is f64, the layer f32"},
      {"o_of_another_shape", made_of(good, good, good, linear(5, 6)),
       start + "o.weight is [5, 6]; as [out, in] it must be [6, 6]"},
      {"no_query", forward({}, of({3, 4}), of({3, 5})), start + "query is missing"},
      {"key_of_another_width", forward(of({3, 6}), of({3, 6}), of({3, 5})),
       start + "key is [3, 6]; it must be [batch, length, key_dim] or [length, key_dim] with "
               "key_dim 4"},
      {"value_of_another_type", forward(of({3, 6}), of({3, 4}), of({3, 5}, DType::f16)),
       start + "value is f16, the layer is f32; convert it, or the layer with to()"},
      {"value_of_another_width", forward(of({3, 6}), of({3, 4}), of({3, 4})),
       start + "value is [3, 4]; it must be [batch, length, value_dim] or [length, value_dim] with "
               "value_dim 5"},
      {"query_of_four_dimensions", forward(of({1, 2, 3, 6}), of({3, 4}), of({3, 5})),
       start +
           "query is [1, 2, 3, 6]; it must be [batch, length, model_dim] or [length, model_dim] "
           "with model_dim 6"},
      {"query_on_a_device",
       [] {
         const ConstTensorView q(nullptr, DType::f32, {3, 6}, Device{Device::Kind::cuda, 0});
         layer().forward(q, of({3, 4}), of({3, 5}));
       },
       start + "query is on cuda:0, not in host memory"},
      {"value_without_an_address",
       [] {
         const ConstTensorView v(nullptr, DType::f32, {3, 5});
         layer().forward(of({3, 6}), of({3, 4}), v);
       },
       start + "value [3, 5] has no address"},
      {"mask_on_a_device_in_training",
       [] {
         const ConstTensorView mask(nullptr, DType::u8, {3, 3}, Device{Device::Kind::cuda, 0});
         layer().forward_train(of({3, 6}), of({3, 4}), of({3, 5}), {.mask = mask});
       },
       start + "mask is on cuda:0, not in host memory"},
      {"key_without_batch", forward(of({1, 3, 6}), of({3, 4}), of({3, 5})),
       start + "query is [1, 3, 6], key [3, 4], value [3, 5]; all must have a batch dimension, or "
               "none"},
      {"key_of_another_batch", forward(of({2, 3, 6}), of({1, 3, 4}), of({1, 3, 5})),
       "InvalidArgument: attention: k has batch size 1, q has 2; they must be equal"},
      {"pages_without_a_cache",
       [] {
         const Tensor table = of({1, 1}, DType::i64);
         layer().forward(of({3, 6}), of({3, 4}), of({3, 5}), {.block_table = table});
       },
       start + "block_table is given; a layer takes paged keys as a KvCache"},
      {"a_part_of_the_keys",
       [] {
         layer().forward(of({3, 6}), of({3, 4}), of({3, 5}), {.key_offset = 2});
       },
       start +
           "key_offset is given; a layer attends to all of its keys, parts are for attention()"},
      {"attention_of_none",
       [] {
         MultiHeadAttention().forward(of({3, 6}));
       },
       start + "the layer is none; make it from options first"},
      {"backward_of_nothing",
       [] {
         layer().backward(of({3, 6}), {});
       },
       start + "saved is not from this layer's forward_train"},
      {"dy_of_another_length",
       [] {
         layer().backward(of({2, 6}),
                          layer().forward_train(of({3, 6}), of({3, 4}), of({3, 5})).second);
       },
       start + "dy is [2, 6]; it must be [3, 6]"},
      {"an_o_that_is_not_wanted",
       [] {
         const MultiHeadAttention whole({.model_dim = 6, .heads = 2});
         MultiHeadAttention({.model_dim = 6, .heads = 2, .output_projection = false}, whole.q(),
                            whole.k(), whole.v(), whole.o());
       },
       start + "o is given, but output_projection is false"},
      {"heads_of_8_bits", [] { layer().quantize().split(); },
       "Unsupported: multi_head_attention: split: the weights are i8, of quantize(); heads of "
       "their "
       "own need weights of f64, f32, bf16 or f16: split the layer before"},
      {"a_head_with_an_o_that_is_not_wanted",
       [] {
         MultiHeadAttention::join({.model_dim = 6, .heads = 2, .output_projection = false},
                                  MultiHeadAttention({.model_dim = 6, .heads = 2}).split());
       },
       start + "head 0 has an o, but output_projection is false"},
      {"rotary_of_no_pairing",
       [] {
         MultiHeadAttention(
             {.model_dim = 6, .rotary = Rotary{.pairing = static_cast<Rotary::Pairing>(7)}});
       },
       start + "rotary.pairing is 7; its choices go from 0 to 1"},
      {"a_head_too_few", joined([](auto& heads) { heads.pop_back(); }),
       start + "there are 1 sets of matrices for 2 heads"},
      {"a_head_without_q", joined([](auto& heads) { heads[1].q = Tensor(); }),
       start + "head 1: q is missing"},
      {"a_head_of_another_shape", joined([](auto& heads) {
         heads[0].v = of({3, 4});
       }),
       start + "head 0: v is [3, 4]; it must be [3, 5]"},
      {"a_head_of_another_type", joined([](auto& heads) {
         heads[0].o = of({6, 3}, DType::f64);
       }),
       start + "head 0: o is f64, the layer is f32"},
      {"a_bias_of_a_head", joined([](auto& heads) { heads[0].k_bias = of({4}); }),
       start + "head 0: k_bias is [4]; it must be [3]"},
      {"heads_of_a_group_that_differ",
       [] {
         const MultiHeadAttention two({.model_dim = 6, .heads = 2});
         MultiHeadAttention::join({.model_dim = 6, .heads = 2, .key_heads = 1}, two.split());
       },
       start + "heads 0 and 1 share a key head, but their k or v differ"},
      {"a_bias_without_output",
       [] {
         const MultiHeadAttention one({.model_dim = 6, .output_projection = false});
         MultiHeadAttention::join(one.options(), one.split(), of({6}));
       },
       start + "o_bias is given, but there is no output projection"},
      {"an_unknown_step",
       [] {
         static_cast<void>(
             trace_attention(of({1, 1, 1, 1}), of({1, 1, 1, 1}), of({1, 1, 1, 1})).at("x"));
       },
       "InvalidArgument: trace: there is no step x; there are: scores scaled_scores masked_scores "
       "lse "
       "weights heads"},
  };
}

std::vector<LayerMistake> kv_cache_mistakes() {
  const std::string start = "InvalidArgument: kv_cache: ",
                    of_layer = "InvalidArgument: multi_head_attention: ";
  const auto sized = [](const KvCacheOptions& options) { return [=] { KvCache{options}; }; };
  const auto append = [](const Tensor& k, const Tensor& v, const Tensor& lengths = {}) {
    return [=] { cache_of().append(k, v, lengths); };
  };
  const auto attend = [](const Tensor& query, const AttentionOptions& options = {}) {
    return [=] { layer().attend(query, cache_of(), options); };
  };
  static const Tensor one = of({1}, DType::i64);
  return {
      {"cache_of_a_negative_batch", sized({.batch = -1}),
       start + "batch is -1; it must be at least 0"},
      {"cache_without_heads", sized({}), start + "key_heads is 0; it must be at least 1"},
      {"cache_without_d_k", sized({.key_heads = 1}), start + "d_k is 0; it must be at least 1"},
      {"cache_of_negative_d_v", sized({.key_heads = 1, .d_k = 1, .d_v = -1}),
       start + "d_v is -1; it must be at least 1"},
      {"cache_without_capacity", sized({.key_heads = 1, .d_k = 1}),
       start + "capacity is 0; it must be at least 1"},
      {"cache_of_negative_pages", sized({.key_heads = 1, .d_k = 1, .capacity = 1, .page_size = -1}),
       start + "page_size is -1; it must be at least 0"},
      {"cache_of_fewer_than_no_pages",
       sized({.key_heads = 1, .d_k = 1, .capacity = 1, .page_size = 1, .pages = -1}),
       start + "pages is -1; it must be at least 0"},
      {"pages_of_a_dense_cache", sized({.key_heads = 1, .d_k = 1, .capacity = 1, .pages = 3}),
       start + "pages is 3, but page_size is 0 (dense)"},
      {"cache_of_whole_numbers",
       sized({.key_heads = 1, .d_k = 1, .capacity = 1, .type = DType::u8}),
       start + "type is u8; it must be f64, f32, bf16, f16 or i8"},
      {"cache_of_too_many_pages",
       sized({.batch = 4,
              .key_heads = 1,
              .d_k = 1,
              .capacity = std::int64_t{1} << 62,
              .page_size = 1}),
       start + "batch 4 times 4611686018427387904 pages each is too many"},
      {"cache_of_too_many_tokens",
       sized({.key_heads = 1, .d_k = 4, .capacity = std::int64_t{1} << 62}),
       start + "tensor: [1, 1, 4611686018427387904, 4] has 2^63 elements or more"},
      {"cache_larger_than_memory_can_be",
       sized({.key_heads = 1, .d_k = 1, .capacity = std::int64_t{1} << 62}),
       start + "tensor: [1, 1, 4611686018427387904, 1] of f32 is larger than memory can be"},
      {"no_keys", append({}, of({2, 2, 1, 3})), start + "k is missing"},
      {"keys_of_another_size", append(of({2, 2, 1, 4}), of({2, 2, 1, 3})),
       start + "k is [2, 2, 1, 4]; it must be [2, 2, n, 3]"},
      {"values_of_another_type", append(of({2, 2, 1, 3}), of({2, 2, 1, 3}, DType::bf16)),
       start + "v is bf16, the cache f32"},
      {"whole_numbers_for_a_cache_that_quantises",
       [] {
         KvCache({.batch = 2, .key_heads = 2, .d_k = 3, .capacity = 8, .type = DType::i8})
             .append(of({2, 2, 1, 3}), of({2, 2, 1, 3}, DType::i8));
       },
       start + "v is i8; a cache of i8 quantises f64, f32, bf16 or f16"},
      {"keys_on_a_device",
       [] {
         const ConstTensorView k(nullptr, DType::f32, {2, 2, 1, 3}, Device{Device::Kind::cuda, 0});
         cache_of().append(k, k);
       },
       start + "k is on cuda:0, not in host memory"},
      {"values_of_another_length", append(of({2, 2, 1, 3}), of({2, 2, 2, 3})),
       start + "k has 1 tokens, v 2"},
      {"lengths_without_an_address",
       [] {
         cache_of().append(of({2, 2, 1, 3}), of({2, 2, 1, 3}),
                           ConstTensorView(static_cast<const std::int64_t*>(nullptr), {2}));
       },
       start + "lengths [2] has no address"},
      {"lengths_of_another_batch", append(of({2, 2, 1, 3}), of({2, 2, 1, 3}), one),
       start + "lengths is [1] i64; it must be [2], i32 or i64"},
      {"lengths_beyond_the_tokens", append(of({2, 2, 1, 3}), of({2, 2, 1, 3}), Tensor({1, 2}, {2})),
       start + "lengths[1] is 2; it must be from 0 to the 1 tokens given"},
      {"more_than_the_capacity", append(of({2, 2, 9, 3}), of({2, 2, 9, 3})),
       start + "sequence 0 holds 0 tokens and 9 more are given; the capacity is 8"},
      {"more_than_the_pages",
       [] {
         KvCache({.key_heads = 1, .d_k = 1, .capacity = 8, .page_size = 2, .pages = 1})
             .append(of({1, 1, 3, 1}), of({1, 1, 3, 1}));
       },
       start + "2 more pages of 2 tokens are needed, 1 of 1 are free"},
      {"no_such_sequence", [] { static_cast<void>(cache_of().length(2)); },
       start + "there is no sequence 2; there are 2"},
      {"cut_to_more", [] { cache_of().truncate(0, 1); },
       start + "sequence 0 holds 0 tokens; it cannot be cut to 1"},
      {"cache_of_another_layer",
       [] {
         KvCache cache({.key_heads = 2, .d_k = 4, .capacity = 8});
         layer().append(of({1, 1, 4}), of({1, 1, 5}), cache);
       },
       of_layer + "the cache is for 2 key heads, d_k 4, d_v 4, f32; the layer has 2, 3, 3, f32"},
      {"cache_of_no_layer",
       [] {
         MultiHeadAttention().attend(of({2, 1, 6}), cache_of());
       },
       of_layer + "the layer is none; make it from options first"},
      {"cache_of_a_layer_that_was_moved",
       [] {
         MultiHeadAttention from = layer();
         const MultiHeadAttention to = std::move(from);
         from.attend(of({2, 1, 6}), cache_of());  // NOLINT
       },
       of_layer + "the layer is none; make it from options first"},
      {"cache_that_was_moved",
       [] {
         KvCache from = cache_of();
         const KvCache to = std::move(from);
         layer().attend(of({2, 1, 6}), from);  // NOLINT
       },
       of_layer + "the cache was moved from; make another"},
      {"length_of_a_cache_that_was_moved",
       [] {
         KvCache from = cache_of();
         const KvCache to = std::move(from);
         from.truncate(0, 0);  // NOLINT
       },
       start + "the cache was moved from; make another"},
      {"no_query_for_a_cache", attend({}), of_layer + "query is missing"},
      {"query_without_batch", attend(of({1, 6})),
       of_layer + "query is [1, 6]; with this cache it must be [2, n, 6]"},
      {"query_of_another_type", attend(of({2, 1, 6}, DType::f64)),
       of_layer + "query is f64, the layer is f32; convert it, or the layer with to()"},
      {"key_of_another_width_for_a_cache",
       [] {
         KvCache cache = cache_of();
         layer().append(of({2, 1, 6}), of({2, 1, 5}), cache);
       },
       of_layer + "key is [2, 1, 6]; with this cache it must be [2, n, 4]"},
      {"value_of_another_width_for_a_cache",
       [] {
         KvCache cache = cache_of();
         layer().append(of({2, 1, 4}), of({2, 1, 6}), cache);
       },
       of_layer + "value is [2, 1, 6]; with this cache it must be [2, n, 5]"},
      {"lengths_besides_the_cache", attend(of({2, 1, 6}), {.key_lengths = one}),
       of_layer +
           "key_lengths, block_table or cu_seqlens is given; with a cache they come from it"},
      {"a_part_of_the_cache", attend(of({2, 1, 6}), {.key_offset = 1}),
       of_layer + "key_offset is given; with a cache key 0 is at position 0"},
      {"scales_besides_the_cache",
       [] {
         static const Tensor scales = of({2, 2, 8});
         layer().attend(of({2, 1, 6}), layer().make_cache(2, 8, 0, 0, DType::i8),
                        {.v_scales = scales});
       },
       of_layer + "k_scales or v_scales is given; a cache of i8 has its own"},
      {"a_cache_of_another_type", [] { layer().make_cache(2, 8, 0, 0, DType::f16); },
       of_layer + "a cache of f16 is asked for; the layer takes f32 or i8"},
      {"an_offset_besides_the_cache",
       [] {
         KvCache cache = cache_of();
         layer().forward(of({2, 1, 6}), cache, {.query_offset = 3});
       },
       of_layer + "query_offset is given; with a cache the new tokens follow those it holds"},
  };
}

std::vector<LayerMistake> block_mistakes() {
  const std::string start = "InvalidArgument: attention_block: ";
  static const AttentionBlock plain({.attention = {.model_dim = 6}}),
      decoder({.attention = {.model_dim = 6}, .cross = true});
  const auto block = [](const AttentionBlockOptions& options) {
    return [=] { AttentionBlock{options}; };
  };
  return {
      {"block_of_other_keys", block({.attention = {.model_dim = 6, .key_dim = 5}}),
       start + "attention.key_dim is 5 and attention.value_dim 5; in a block both are model_dim 6, "
               "give memory_dim for cross-attention"},
      {"block_without_a_way_back",
       block({.attention = {.model_dim = 6, .d_k = 5, .output_projection = false}}),
       start +
           "without output_projection the heads give 5 features; the residual needs model_dim 6"},
      {"block_of_no_activation",
       block({.attention = {.model_dim = 6}, .activation = static_cast<Activation>(4)}),
       start + "activation is 4; its choices go from 0 to 3"},
      {"block_of_no_placement",
       block({.attention = {.model_dim = 6}, .placement = static_cast<NormPlacement>(7)}),
       start + "placement is 7; its choices go from 0 to 2"},
      {"block_of_no_norm", block({.attention = {.model_dim = 6}, .norm = static_cast<NormKind>(2)}),
       start + "norm is 2; its choices go from 0 to 1"},
      {"block_with_a_memory_nobody_reads", block({.attention = {.model_dim = 6}, .memory_dim = 4}),
       start + "memory_dim is 4; it must be at least 1 with cross-attention, and 0 without"},
      {"block_of_negative_memory_dim",
       block({.attention = {.model_dim = 6}, .cross = true, .memory_dim = -3}),
       start + "memory_dim is -3; it must be at least 1 with cross-attention, and 0 without"},
      {"block_without_an_address",
       [] {
         plain.forward(ConstTensorView(static_cast<const float*>(nullptr), {1, 2, 6}));
       },
       start + "x [1, 2, 6] has no address"},
      {"block_of_none_saved", [] { AttentionBlock().save("nowhere"); },
       start + "the layer is none; make it from options first"},
      {"block_of_negative_hidden_dim", block({.attention = {.model_dim = 6}, .hidden_dim = -1}),
       start + "hidden_dim is -1; it must be at least 0 (0: no feed-forward)"},
      {"block_of_none",
       [] {
         AttentionBlock().forward(of({3, 6}));
       },
       start + "the layer is none; make it from options first"},
      {"block_backward_of_none",
       [] {
         AttentionBlock().backward(of({3, 6}), {});
       },
       start + "the layer is none; make it from options first"},
      {"block_without_memory",
       [] {
         decoder.forward(of({3, 6}));
       },
       start + "memory is not given; the block has cross-attention"},
      {"memory_without_cross",
       [] {
         plain.forward(of({3, 6}), of({3, 6}));
       },
       start + "memory is given, but the block has no cross-attention"},
      {"memory_on_a_device",
       [] {
         decoder.forward(of({3, 6}), ConstTensorView(nullptr, DType::f32, {3, 6},
                                                     Device{Device::Kind::cuda, 0}));
       },
       start + "memory is on cuda:0, not in host memory"},
      {"memory_without_an_address",
       [] {
         decoder.forward_train(of({3, 6}), ConstTensorView(nullptr, DType::f32, {3, 6}));
       },
       start + "memory [3, 6] has no address"},
      {"block_training_without_rows", [] { plain.forward_train(of({6})); },
       "InvalidArgument: multi_head_attention: query is [6]; it must be [batch, length, model_dim] "
       "or [length, model_dim] with model_dim 6"},
      {"block_backward_of_nothing",
       [] {
         plain.backward(of({3, 6}), {});
       },
       start + "saved is not from this block's forward_train"},
      {"block_dy_of_another_length",
       [] {
         plain.backward(of({2, 6}), plain.forward_train(of({3, 6})).second);
       },
       start + "dy is [2, 6]; it must be [3, 6]"},
  };
}

}  // namespace attend::test
