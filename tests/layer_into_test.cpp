// Results in the caller's memory: the same bits whatever its strides, and nothing beside them is
// touched; outputs that overlap what the call reads are refused. And where memory comes from:
// results are the Context's, and what a layer makes on the way is kept for the next call.
#include "support/attention_layers.h"
#include "support/counted_allocations.h"
#include "support/layer_cases.h"
#include "support/small_call.h"
#include "support/thrown_by.h"

#include <attend/block.h>
#include <attend/model.h>
#include <attend/train.h>

namespace attend::test {
namespace {

const AttentionOptions kCausal{.causal = true};

// Memory for a tensor of this shape, and the view of it: 0 contiguous, 1 with gaps between rows,
// 2 with gaps between features, 3 with the first dimension as the second (or gaps, if there is
// one).
struct Layout {
  Layout(int kind, const Shape& shape, DType type) {
    Shape large = shape;
    const int last = shape.rank() - 1;
    if (kind == 1 || kind == 2) large[last] = 2 * shape[last] + 3;
    if (kind == 3) std::swap(large[0], large[last > 1 ? 1 : 0]);
    memory = numbers(large, type, 77);
    view = memory.view();
    if (kind == 1) view = view.slice(last, 2, 2 + shape[last]);
    if (kind == 2) {
      Shape strides = view.strides();
      strides[last] = 2;
      view = TensorView(view.data(), type, shape, strides);
    }
    if (kind == 3 && shape.rank() == 3) view = view.permute({1, 0, 2});
    if (kind == 3 && shape.rank() == 4) view = view.permute({1, 0, 2, 3});
  }
  Tensor memory;
  TensorView view;
};

void write(const ConstTensorView& from, const TensorView& to) {
  with_type(to.dtype(), [&]<class T>(T) {
    Shape index = to.shape();
    for (std::int64_t n = 0; n < to.count(); ++n) {
      std::int64_t rest = n;
      for (int dim = index.rank(); dim-- > 0; rest /= to.size(dim))
        index[dim] = rest % to.size(dim);
      to.at<T>(index) = from.at<T>(index);
    }
  });
}

// call(y) writes what is expected, and nothing else.
template <class Call>
void expect_into(const std::string& name, const Tensor& expected, const Call& call) {
  for (int kind = 0; kind < 4; ++kind) {
    Layout y(kind, expected.shape(), expected.dtype());
    const Tensor before = y.memory, shown = Tensor::copy_of(y.view);
    call(y.view);
    EXPECT_EQ(difference(y.view, expected), "") << name << " layout " << kind;
    write(shown, y.view);
    EXPECT_EQ(difference(y.memory, before), "") << name << " layout " << kind;
  }
}

template <class Layer>
void expect_forward_into(const std::string& name, Layer layer, const ConstTensorView& x) {
  fill(layer.writable_parameters(), 5);
  expect_into(name, layer.forward(x), [&](const TensorView& y) { layer.forward_into(x, y); });
}

TEST(LayerInto, simple_layers_write_the_same_bits_with_any_strides) {
  for (const DType type : kFloatTypes) {
    const Tensor x = numbers({2, 5, 6}, type, 1);
    expect_forward_into("linear", Linear({.in = 6, .out = 9, .type = type}), x);
    expect_forward_into("linear, one feature", Linear({.in = 6, .out = 1, .type = type}), x);
    expect_forward_into("layer_norm", LayerNorm({.dim = 6, .type = type}), x);
    expect_forward_into("rms_norm", RMSNorm({.dim = 6, .type = type}), x);
    for (const Activation activation : {Activation::gelu, Activation::swiglu})
      expect_forward_into(
          "feed_forward",
          FeedForward({.model_dim = 6, .hidden_dim = 7, .activation = activation, .type = type}),
          x);
    expect_forward_into("learned", LearnedPositions({.length = 5, .dim = 6, .type = type}), x);
    expect_forward_into("sinusoidal", SinusoidalPositions({.dim = 6}), x);
    const Tensor wide({1L, 0L, 3L, 2L, 2L, 1L}, {2, 3});
    const Tensor narrow({1, 0, 3, 2, 2, 1}, {2, 3});
    expect_forward_into("tokens", Embedding({.vocabulary = 4, .dim = 5, .type = type}), wide);
    expect_forward_into("i32 tokens", Embedding({.vocabulary = 4, .dim = 5, .type = type}), narrow);
  }
}

TEST(LayerInto, attention_writes_the_same_bits_with_any_strides) {
  for (const DType type : {DType::f32, DType::bf16})
    for (const bool projected : {true, false}) {
      const MultiHeadAttention layer = drawn({.model_dim = 8,
                                              .heads = 4,
                                              .key_heads = 2,
                                              .output_projection = projected,
                                              .rotary = Rotary{},
                                              .type = type});
      const Tensor x = numbers({2, 5, 8}, type, 1), memory = numbers({2, 7, 8}, type, 2);
      expect_into("self", layer.forward(x, kCausal),
                  [&](const TensorView& y) { layer.forward_into(x, y, kCausal); });
      expect_into("cross", layer.forward(x, memory, memory),
                  [&](const TensorView& y) { layer.forward_into(x, memory, memory, y); });
      KvCache cache = layer.make_cache(2, 5);
      expect_into("cache", layer.forward(x, kCausal), [&](const TensorView& y) {
        layer.forward_into(x, cache, y, kCausal);
        for (const std::int64_t b : {0, 1}) cache.truncate(b, 0);
      });
      layer.append(x, x, cache);
      expect_into("attend", layer.attend(x, cache),
                  [&](const TensorView& y) { layer.attend_into(x, cache, y); });
    }
}

TEST(LayerInto, blocks_and_models_write_the_same_bits_with_any_strides) {
  for (const NormPlacement placement :
       {NormPlacement::post, NormPlacement::pre, NormPlacement::none})
    for (const std::int64_t hidden_dim : {0, 11}) {
      const AttentionBlockOptions options{.attention = {.model_dim = 8, .heads = 2},
                                          .hidden_dim = hidden_dim,
                                          .placement = placement};
      AttentionBlock block(options);
      AttentionBlockOptions with_cross = options;
      with_cross.cross = true;
      AttentionBlock decoder(with_cross);
      draw_parameters(block, 3);
      draw_parameters(decoder, 4);
      const Tensor x = numbers({2, 5, 8}, DType::f32, 1),
                   memory = numbers({2, 7, 8}, DType::f32, 2);
      expect_into("block", block.forward(x, kCausal),
                  [&](const TensorView& y) { block.forward_into(x, y, kCausal); });
      expect_into("decoder", decoder.forward(x, memory, kCausal),
                  [&](const TensorView& y) { decoder.forward_into(x, memory, y, kCausal); });
      KvCache cache = block.attention().make_cache(2, 5), kept = decoder.cross().make_cache(2, 7);
      decoder.cross().append(memory, memory, kept);
      const auto empty = [&] {
        for (const std::int64_t b : {0, 1}) cache.truncate(b, 0);
      };
      expect_into("block with a cache", block.forward(x, kCausal), [&](const TensorView& y) {
        block.forward_into(x, cache, y, kCausal);
        empty();
      });
      expect_into("decoder with caches", decoder.forward(x, memory, kCausal),
                  [&](const TensorView& y) {
                    decoder.forward_into(x, cache, kept, y, kCausal);
                    empty();
                  });
    }
  const LanguageModel model({.vocabulary = 9, .length = 6, .model_dim = 8, .heads = 2});
  const Tensor tokens({1L, 0L, 8L, 2L, 2L, 1L}, {2, 3});
  expect_into("model", model.forward(tokens),
              [&](const TensorView& logits) { model.forward_into(tokens, logits); });
  expect_into("model with caches", model.forward(tokens), [&](const TensorView& logits) {
    std::vector<KvCache> caches = model.make_caches(2);
    model.forward_into(tokens, caches, logits);
  });
}

// ---- outputs that overlap ----------------------------------------------------------------------

// call(y) is refused wherever y lies in one of the layer's parameters, which keep their bits.
template <class Layer, class Call>
void expect_apart_from_parameters(const std::string& output, Layer& layer, const Shape& shape,
                                  const Call& call) {
  for (const Parameter& p : layer.writable_parameters()) {
    const Tensor before = Tensor::copy_of(p.value);
    const std::int64_t last = p.value.count() - element_count(shape);
    ASSERT_GE(last, 0) << p.name << ": what is written has no room in it";
    for (const std::int64_t first : {std::int64_t{0}, last}) {
      const TensorView y(static_cast<float*>(p.value.data()) + first, shape);
      EXPECT_EQ(thrown_by([&] { call(y); }), "InvalidArgument: " + output + " overlaps " + p.name +
                                                 " in memory; outputs must not");
      EXPECT_EQ(difference(p.value, before), "") << p.name;
    }
  }
}

TEST(LayerOverlap, no_layer_writes_its_own_parameters) {
  const Tensor x = numbers({1, 1, 8}, DType::f32, 1), tokens({1L}, {1, 1});
  const auto expect = [](const std::string& output, auto layer, const ConstTensorView& in,
                         const Shape& shape) {
    expect_apart_from_parameters(output, layer, shape,
                                 [&](const TensorView& y) { layer.forward_into(in, y); });
  };
  expect("linear: y", Linear({.in = 8, .out = 8}), x, x.shape());
  expect("layer_norm: y", LayerNorm({.dim = 8}), x, x.shape());
  expect("rms_norm: y", RMSNorm({.dim = 8}), x, x.shape());
  expect("feed_forward: y", FeedForward({.model_dim = 8, .activation = Activation::swiglu}), x,
         x.shape());
  expect("learned_positions: y", LearnedPositions({.length = 2, .dim = 8}), x, x.shape());
  expect("embedding: y", Embedding({.vocabulary = 3, .dim = 8}), tokens, x.shape());
  expect("multi_head_attention: y", MultiHeadAttention({.model_dim = 8, .heads = 2}), x, x.shape());
  expect("attention_block: y",
         AttentionBlock({.attention = {.model_dim = 8, .heads = 2}, .hidden_dim = 9}), x,
         x.shape());
  expect("language_model: logits",
         LanguageModel({.vocabulary = 4, .length = 6, .model_dim = 8, .heads = 2}), tokens,
         {1, 1, 4});
  AttentionBlock decoder({.attention = {.model_dim = 8, .heads = 2}, .cross = true});
  expect_apart_from_parameters("attention_block: y", decoder, x.shape(),
                               [&](const TensorView& y) { decoder.forward_into(x, x, y); });
}

// Each output of multi-head attention, in each input and parameter, and in the others.
TEST(LayerOverlap, no_output_of_attention_lies_in_what_the_call_reads) {
  MultiHeadAttention layer({.model_dim = 8, .heads = 2});
  Tensor query = numbers({1, 1, 8}, DType::f32, 1), key = numbers({1, 1, 8}, DType::f32, 2),
         value = numbers({1, 1, 8}, DType::f32, 3), result({1, 1, 8});
  const Tensor visible({std::uint8_t{1}}, {1, 1, 1, 1});
  const AttentionOptions options{.blocks = {visible, 8, 8}};
  const Shape lse{1, 2, 1}, square{1, 2, 1, 1};
  const auto outputs_in = [&](const std::string& name, float* memory) {
    AttentionOutputs outputs;
    if (name == "lse") outputs.lse = TensorView(memory, lse);
    if (name == "weights") outputs.weights = TensorView(memory, square);
    if (name == "scores") outputs.scores = TensorView(memory, square);
    if (name == "visited_blocks")
      outputs.visited_blocks = static_cast<std::int64_t*>(static_cast<void*>(memory));
    return outputs;
  };
  for (const std::string name : {"lse", "weights", "scores", "visited_blocks"}) {
    const std::string start = "InvalidArgument: multi_head_attention: ",
                      end = " in memory; outputs must not";
    // In memory of its own nothing is refused.
    float alone[2] = {};
    EXPECT_EQ(
        thrown_by([&] { layer.forward(query, key, value, options, outputs_in(name, alone)); }),
        "nothing");
    const auto refused = [&](const char* other, float* memory) {
      EXPECT_EQ(
          thrown_by([&] { layer.forward(query, key, value, options, outputs_in(name, memory)); }),
          start + name + " overlaps " + other + end);
      EXPECT_EQ(thrown_by([&] {
                  layer.forward_into(query, key, value, result, options, outputs_in(name, memory));
                }),
                start + name + " overlaps " + other + end);
    };
    refused("query", query.data<float>() + 6);
    refused("key", key.data<float>());
    refused("value", value.data<float>() + 2);
    for (const Parameter& p : layer.writable_parameters())
      refused(p.name.c_str(), static_cast<float*>(p.value.data()) + p.value.count() - 2);
    EXPECT_EQ(thrown_by([&] {
                layer.forward_into(query, key, value, result, options,
                                   outputs_in(name, result.data<float>() + 4));
              }),
              start + "y overlaps " + name + end);
  }
}

TEST(LayerOverlap, nothing_is_written_into_a_cache_that_is_read) {
  MultiHeadAttention layer({.model_dim = 8, .heads = 2});
  AttentionBlock block({.attention = {.model_dim = 8, .heads = 2}}),
      decoder({.attention = {.model_dim = 8, .heads = 2}, .cross = true});
  const LanguageModel model(
      {.vocabulary = 4, .length = 6, .layers = 1, .model_dim = 8, .heads = 2});
  const Tensor x = numbers({1, 1, 8}, DType::f32, 1), tokens({1L}, {1, 1});
  for (const std::int64_t page_size : {0, 3})
    for (const bool keys : {true, false}) {
      KvCache cache = layer.make_cache(1, 6, page_size), other = layer.make_cache(1, 6, page_size);
      layer.append(x, x, cache);
      layer.append(x, x, other);
      const ConstTensorView read = keys ? cache.keys() : cache.values();
      const Tensor before = Tensor::copy_of(read);
      auto* const memory = static_cast<float*>(const_cast<void*>(read.data()));
      const TensorView y(memory, x.shape()), logits(memory, {1, 1, 4});
      const std::string in = keys ? "cache.keys" : "cache.values";
      const auto refused = [&](const std::string& message, const auto& call) {
        EXPECT_EQ(thrown_by(call), "InvalidArgument: " + message + " in memory; outputs must not");
        EXPECT_EQ(difference(read, before), "");
        EXPECT_EQ(cache.length(0), 1);
        EXPECT_EQ(other.length(0), 1);
      };
      refused("multi_head_attention: y overlaps " + in, [&] { layer.attend_into(x, cache, y); });
      refused("multi_head_attention: y overlaps " + in, [&] { layer.forward_into(x, cache, y); });
      refused("multi_head_attention: " + in + " overlaps x", [&] { layer.forward(y, cache); });
      refused("attention_block: y overlaps " + in, [&] { block.forward_into(x, cache, y); });
      refused("attention_block: " + in + " overlaps x", [&] { block.forward(y, cache); });
      refused("attention_block: y overlaps " + in,
              [&] { decoder.forward_into(x, other, cache, y); });
      std::vector<KvCache> caches;
      caches.push_back(std::move(cache));
      EXPECT_EQ(thrown_by([&] { model.forward_into(tokens, caches, logits); }),
                "InvalidArgument: language_model: logits overlaps " + in +
                    " in memory; outputs must not");
      cache = std::move(caches[0]);
    }
}

// A cache does not take its own memory, whichever of its tensors it is.
TEST(LayerOverlap, a_cache_takes_nothing_from_itself) {
  for (const std::int64_t page_size : {0, 3})
    for (const DType type : {DType::f32, DType::i8}) {
      KvCache cache(
          {.key_heads = 1, .d_k = 4, .capacity = 6, .page_size = page_size, .type = type});
      const Tensor x = numbers({1, 1, 2, 4}, DType::f32, 1);
      cache.append(x, x);
      const auto rows_in = [](const ConstTensorView& t) {
        return ConstTensorView(static_cast<const float*>(t.data()), {1, 1, 1, 4});
      };
      const auto refused = [&](const std::string& message, const ConstTensorView& k,
                               const ConstTensorView& v, const ConstTensorView& lengths = {}) {
        EXPECT_EQ(thrown_by([&] { cache.append(k, v, lengths); }),
                  "InvalidArgument: kv_cache: " + message + " in memory; outputs must not");
        EXPECT_EQ(cache.length(0), 2);
      };
      refused("cache.keys overlaps k", rows_in(cache.keys()), x.view().slice(2, 0, 1));
      refused("cache.values overlaps v", x.view().slice(2, 0, 1), rows_in(cache.values()));
      refused("cache.key_lengths overlaps lengths", x, x, cache.key_lengths());
      if (type == DType::i8) {
        refused("cache.k_scales overlaps v", x.view().slice(2, 0, 1), rows_in(cache.k_scales()));
        refused("cache.v_scales overlaps k", rows_in(cache.v_scales()), x.view().slice(2, 0, 1));
      }
      if (page_size != 0)
        refused("cache.block_table overlaps lengths", x, x,
                ConstTensorView(static_cast<const std::int64_t*>(cache.block_table().data()), {1}));
    }
}

// ---- memory ------------------------------------------------------------------------------------

// Asks of its Context's allocator, and bytes of all memory, by the last of three calls.
struct Cost {
  int asked = 0;
  std::size_t bytes = 0;
};
template <class Call>
Cost cost_of(const Call& call) {
  CountingAllocator memory;
  Context context({.threads = 1, .allocator = memory.allocator()});
  Cost cost;
  for (int n = 0; n < 3; ++n) {  // plans and packed weights are made by the first
    const int asked = memory.allocated;
    const std::size_t bytes = bytes_allocated;
    call(context);
    cost = {memory.allocated - asked, bytes_allocated - bytes};
  }
  return cost;
}

// Lists of a call's products, and what attention() checks, come from the C++ runtime: as much
// whatever the length, and less than the smallest tensor on the way would be below.
constexpr std::size_t kLists = std::size_t{44} << 10;
static_assert(kLists < std::size_t{2} * 400 * 32 * sizeof(bf16));

TEST(LayerMemoryOfAContext, a_block_allocates_its_result_alone) {
  for (const DType type : {DType::f32, DType::bf16})
    for (const NormPlacement placement :
         {NormPlacement::post, NormPlacement::pre, NormPlacement::none})
      for (const Activation activation : {Activation::gelu, Activation::swiglu}) {
        AttentionBlock block({.attention = {.model_dim = 32, .heads = 4, .type = type},
                              .cross = true,
                              .hidden_dim = 48,
                              .activation = activation,
                              .placement = placement});
        draw_parameters(block, 3);
        const Tensor x = numbers({2, 400, 32}, type, 1);
        Tensor y(x.shape(), type);
        const Cost made = cost_of([&](Context& c) { block.forward(x, x, kCausal, {}, c); });
        EXPECT_EQ(made.asked, 1);
        EXPECT_LT(made.bytes, kLists);
        const Cost given =
            cost_of([&](Context& c) { block.forward_into(x, x, y, kCausal, {}, c); });
        EXPECT_EQ(given.asked, 0);
        EXPECT_LT(given.bytes, kLists);
      }
}

// While somebody may write the weights they are packed for each call anew, also without new memory.
TEST(LayerMemoryOfAContext, weights_that_may_be_written_cost_none) {
  AttentionBlock block({.attention = {.model_dim = 32, .heads = 4}, .hidden_dim = 48});
  const std::vector<Parameter> writing = block.writable_parameters();
  const Tensor x = numbers({1, 300, 32}, DType::f32, 1);
  Tensor y(x.shape());
  EXPECT_EQ(cost_of([&](Context& c) { block.forward_into(x, y, {}, c); }).asked, 0);
}

TEST(LayerMemoryOfAContext, decoding_allocates_nothing) {
  AttentionBlock block(
      {.attention = {.model_dim = 32, .heads = 4, .rotary = Rotary{}}, .hidden_dim = 48});
  const Tensor x = numbers({2, 1, 32}, DType::f32, 1);
  Tensor y(x.shape());
  KvCache cache = block.attention().make_cache(2, 8);
  EXPECT_EQ(cost_of([&](Context& c) { block.forward_into(x, cache, y, kCausal, {}, c); }).asked, 0);
  EXPECT_EQ(cache.length(1), 3);
}

TEST(LayerMemoryOfAContext, a_model_allocates_nothing_on_the_way) {
  const LanguageModel model({.vocabulary = 19, .length = 64, .hidden_dim = 96});
  Tensor tokens({2, 60}, DType::i32), logits({2, 60, 19});
  EXPECT_EQ(cost_of([&](Context& c) { model.forward_into(tokens, logits, c); }).asked, 0);
  EXPECT_EQ(cost_of([&](Context& c) { model.forward(tokens, c); }).asked, 1);
}

TEST(LayerMemoryOfAContext, simple_layers_allocate_nothing_on_the_way) {
  const Tensor x = numbers({3, 200, 6}, DType::f32, 1);
  const ConstTensorView turned = x.view().permute({1, 0, 2});  // no stride leads from row to row
  Tensor y({200, 3, 6});
  const auto expect_none = [&](const auto& layer) {
    EXPECT_EQ(cost_of([&](Context& c) { layer.forward_into(turned, y, c); }).asked, 0);
  };
  expect_none(Linear({.in = 6, .out = 6}));
  expect_none(LayerNorm({.dim = 6}));
  expect_none(FeedForward({.model_dim = 6, .activation = Activation::swiglu}));
  const SinusoidalPositions positions({.dim = 6});
  EXPECT_EQ(cost_of([&](Context& c) { positions.forward_into(turned, y, 0, c); }).asked, 0);
}

// What grows with the length comes from its allocator, not from the C++ runtime: on the way, saved,
// returned.
TEST(LayerMemoryOfAContext, the_length_is_of_no_matter_to_the_heap) {
  const auto expect_same = [](const char* name, const auto& call) {
    const auto bytes = [&](std::int64_t length) {
      return cost_of([&](Context& c) { call(length, c); }).bytes;
    };
    EXPECT_EQ(bytes(300), bytes(200)) << name;
  };
  const Tensor all = numbers({300, 32}, DType::f32, 1);
  const auto x_of = [&](std::int64_t length) { return all.view().slice(0, 0, length); };

  AttentionBlock block(
      {.attention = {.model_dim = 32, .heads = 4, .rotary = Rotary{}}, .hidden_dim = 48});
  Tensor result({300, 32});
  expect_same("rotary block", [&](std::int64_t length, Context& c) {
    block.forward_into(x_of(length), result.view().slice(0, 0, length), kCausal, c);
  });
  const Tensor mask({300, 300}, DType::u8);
  expect_same("training", [&](std::int64_t length, Context& c) {
    const AttentionOptions options{.mask = mask.view().slice(0, 0, length).slice(1, 0, length)};
    const auto [y, saved] = block.forward_train(x_of(length), options, c);
    block.backward(y, saved, c);
  });
  const MultiHeadAttention& attention = block.attention();
  expect_same("a cache", [&](std::int64_t length, Context& c) {
    const ConstTensorView x(all.data<float>(), {1, length, 32});
    KvCache cache = attention.make_cache(1, 300);
    attention.forward(x, cache, kCausal, {}, c);
  });
  expect_same("heads",
              [&](std::int64_t length, Context& c) { attention.heads(x_of(length), kCausal, c); });
  expect_same("a trace",
              [&](std::int64_t length, Context& c) { attention.trace(x_of(length), kCausal, c); });

  expect_same("a norm", [&](std::int64_t length, Context& c) {
    const LayerNorm norm({.dim = 32});
    norm.backward(x_of(length), norm.forward_train(x_of(length), c).second, c);
  });
  const LearnedPositions shorter({.length = 200, .dim = 32}), longer({.length = 300, .dim = 32});
  expect_same("learned positions", [&](std::int64_t length, Context& c) {
    (length == 200 ? shorter : longer).backward(x_of(length), {}, c);
  });
  expect_same("sinusoidal positions", [&](std::int64_t length, Context& c) {
    SinusoidalPositions({.dim = 32}).backward(x_of(length), {.shape = {length, 32}}, c);
  });
  const Tensor tokens({300}, DType::i64);
  expect_same("an embedding", [&](std::int64_t length, Context& c) {
    const Embedding embedding({.vocabulary = 7, .dim = 32});
    const auto saved = embedding.forward_train(tokens.view().slice(0, 0, length), c).second;
    embedding.backward(x_of(length), saved, c);
  });
  expect_same("losses", [&](std::int64_t length, Context& c) {
    const ConstTensorView turned = all.view().slice(1, 0, 7).slice(0, 0, length);
    cross_entropy(turned, tokens.view().slice(0, 0, length), {}, c);
    mse(turned, turned, c);
  });
}

// Memory of a Context holds anything, here NaN.
TEST(LayerMemoryOfAContext, gradients_do_not_depend_on_what_was_there) {
  const auto expect_same = [](const char* name, const auto& backward) {
    CountingAllocator memory;
    Context context({.threads = 1, .allocator = memory.allocator()});
    const auto expected = backward(default_context()), found = backward(context);
    EXPECT_EQ(difference(found.dx, expected.dx), "") << name;
    for (std::size_t n = 0; n < expected.parameters.size(); ++n)
      EXPECT_EQ(difference(found.parameters[n].tensor, expected.parameters[n].tensor), "")
          << name << " " << expected.parameters[n].name;
  };
  const Tensor x = numbers({2, 70, 8}, DType::f32, 1), tokens({2, 70}, DType::i32);
  const Embedding embedding({.vocabulary = 4, .dim = 8});
  expect_same("embedding", [&](Context& c) {
    return embedding.backward(x, embedding.forward_train(tokens, c).second, c);
  });
  const LearnedPositions positions({.length = 90, .dim = 8});
  expect_same("learned", [&](Context& c) { return positions.backward(x, {.offset = 5}, c); });
  AttentionBlock block(
      {.attention = {.model_dim = 8, .heads = 2, .rotary = Rotary{}}, .hidden_dim = 9});
  draw_parameters(block, 3);
  expect_same("block", [&](Context& c) {
    return block.backward(x, block.forward_train(x, kCausal, c).second, c);
  });
}

// Also those that have outlived it.
TEST(LayerMemoryOfAContext, results_come_from_its_allocator) {
  const auto expect_taken = [](const char* name, const auto& call) {
    CountingAllocator memory;
    Tensor y;
    {
      Context context({.threads = 1, .allocator = memory.allocator()});
      y = call(context);
    }
    EXPECT_EQ(memory.allocated - memory.deallocated, 1) << name;
    EXPECT_GE(memory.bytes, static_cast<std::size_t>(y.count() * size_of(y.dtype()))) << name;
    y = {};
    EXPECT_EQ(memory.bytes, 0U) << name;
  };
  const Tensor x = numbers({2, 3, 8}, DType::f32, 1), tokens({1L, 0L, 3L, 2L}, {2, 2});
  for (const LayerCase& c : layer_cases(DType::f32)) {
    const Tensor in = numbers({2, 3, c.in}, DType::f32, 1);
    expect_taken(c.name.c_str(), [&](Context& context) { return c.forward(in, context); });
  }
  const Embedding embedding({.vocabulary = 4, .dim = 8});
  expect_taken("embedding", [&](Context& context) { return embedding.forward(tokens, context); });
  const MultiHeadAttention attention({.model_dim = 8, .heads = 2});
  expect_taken("attention",
               [&](Context& context) { return attention.forward(x, kCausal, context); });
  const AttentionBlock block({.attention = {.model_dim = 8, .heads = 2}, .hidden_dim = 9});
  expect_taken("block", [&](Context& context) { return block.forward(x, kCausal, context); });
  const LanguageModel model({.vocabulary = 4, .length = 6, .model_dim = 8, .heads = 2});
  expect_taken("model", [&](Context& context) { return model.forward(tokens, context); });
}

}  // namespace
}  // namespace attend::test
