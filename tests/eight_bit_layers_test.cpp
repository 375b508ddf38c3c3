// Layers and models with weights of 8 bits: they compute what the numbers times their scales mean,
// have no gradients, and come back from files as they were.
#include "support/attention_layers.h"
#include "support/io_files.h"

#include <attend/block.h>
#include <attend/model.h>
#include <attend/train.h>

#include <functional>

namespace attend::test {
namespace {

// `layer` with the weights that a quantized copy of it has, each rounded to its type.
template <class Layer>
Layer with_weights_of(const Layer& quantized, Layer layer) {
  const std::vector<NamedView> from = quantized.parameters();
  const auto find = [&](const std::string& name) -> ConstTensorView {
    for (const NamedView& named : from)
      if (named.name == name) return named.tensor;
    return {};
  };
  for (Parameter& p : layer.writable_parameters()) {
    const ConstTensorView numbers = find(p.name), scales = find(p.name + "_scales");
    EXPECT_EQ(static_cast<bool>(scales), numbers.dtype() == DType::i8) << p.name;
    if (!scales) continue;
    with_type(p.value.dtype(), [&]<class T>(T) {
      for (std::int64_t row = 0; row < numbers.size(0); ++row)
        for (std::int64_t x = 0; x < numbers.size(1); ++x)
          p.value.template at<T>({row, x}) = static_cast<T>(
              numbers.at<std::int8_t>({row, x}) * static_cast<double>(scales.at<float>({row})));
    });
  }
  return layer;
}

// How far a layer may be from one whose weights were rounded once more.
double tolerance(DType type) {
  return type == DType::f64 ? 1e-12 : type == DType::f32 ? 1e-5 : type == DType::f16 ? 0.02 : 0.15;
}

// Every map is of 8 bits, nothing else is.
template <class Layer>
void expect_maps_quantized(const Layer& layer, const Layer& quantized) {
  EXPECT_TRUE(quantized.quantized());
  EXPECT_FALSE(layer.quantized());
  std::size_t maps = 0;
  for (const NamedView& named : quantized.parameters()) {
    const bool map = named.tensor.dtype() == DType::i8;
    maps += map ? 1 : 0;
    EXPECT_EQ(map, named.name.ends_with(".weight") &&
                       named.name.find("norm") == std::string::npos &&
                       !named.name.starts_with("tokens.") && !named.name.starts_with("positions."))
        << named.name;
  }
  EXPECT_EQ(quantized.parameters().size(), layer.parameters().size() + maps);
}

template <class Layer, class Forward>
void expect_what_the_weights_mean(Layer layer, DType type, const Forward& forward) {
  draw_parameters(layer, 5);
  const Layer quantized = layer.quantize(), meant = with_weights_of(quantized, layer);
  expect_maps_quantized(layer, quantized);
  const Tensor y = forward(quantized);
  EXPECT_LE(largest_difference(y, forward(meant)), tolerance(type)) << name_of(type);
  EXPECT_NE(difference(y, forward(layer)), "") << "not quantized at all";
}

TEST(EightBitLayers, compute_what_their_weights_mean) {
  for (const DType type : kFloatTypes) {
    const Tensor x = numbers({2, 6, 16}, type, 1), memory = numbers({2, 4, 16}, type, 2);
    for (const Activation activation :
         {Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::swiglu})
      expect_what_the_weights_mean(
          FeedForward({.model_dim = 16, .hidden_dim = 70, .activation = activation, .type = type}),
          type, [&](const FeedForward& layer) { return layer.forward(x); });
    expect_what_the_weights_mean(
        MultiHeadAttention(
            {.model_dim = 16, .heads = 4, .key_heads = 2, .rotary = Rotary{}, .type = type}),
        type, [&](const MultiHeadAttention& layer) { return layer.forward(x, {.causal = true}); });
    AttentionBlockOptions block{.attention = {.model_dim = 16, .heads = 2, .type = type},
                                .cross = true,
                                .hidden_dim = 24,
                                .activation = Activation::swiglu};
    for (const NormPlacement placement :
         {NormPlacement::pre, NormPlacement::post, NormPlacement::none}) {
      block.placement = placement;
      expect_what_the_weights_mean(AttentionBlock(block), type, [&](const AttentionBlock& layer) {
        return layer.forward(x, memory);
      });
    }
  }
}

LanguageModel small_model(DType type = DType::f32) {
  LanguageModel model({.vocabulary = 11,
                       .length = 12,
                       .layers = 2,
                       .model_dim = 16,
                       .heads = 2,
                       .hidden_dim = 24,
                       .type = type});
  draw_parameters(model, 3);
  return model;
}
const std::vector<std::int64_t> kTokens = {3, 1, 4, 1, 5, 9, 2, 6, 5, 10};
ConstTensorView tokens() { return {kTokens.data(), {1, std::int64_t(kTokens.size())}}; }

TEST(EightBitLayers, a_model_computes_what_its_weights_mean) {
  for (const DType type : kFloatTypes)
    expect_what_the_weights_mean(small_model(type), type, [&](const LanguageModel& model) {
      return model.forward(tokens());
    });
}

// Prefill and decode are one another's bits, over caches of the model's type and of 8 bits.
TEST(EightBitLayers, a_prompt_at_once_or_token_by_token_has_the_same_bits) {
  for (const DType type : kFloatTypes) {
    const LanguageModel model = small_model(type).quantize();
    for (const DType cache : {type, DType::i8}) {
      std::vector<KvCache> at_once = model.make_caches(1, cache),
                           each = model.make_caches(1, cache);
      const Tensor whole = model.forward(tokens(), at_once);
      for (std::int64_t n = 0; n < tokens().size(1); ++n)
        EXPECT_EQ(difference(model.forward(tokens().slice(1, n, n + 1), each),
                             whole.view().slice(1, n, n + 1)),
                  "")
            << name_of(type) << " token " << n;
    }
    EXPECT_EQ(model.generate({1, 2}, 20).size(), 20U);
  }
}

// What each head adds to the output is made of W^O's columns, and of the scales of its rows.
TEST(EightBitLayers, heads_and_traces_see_the_scales) {
  MultiHeadAttention layer = drawn({.model_dim = 16, .heads = 4}, 1);
  const MultiHeadAttention quantized = layer.quantize();
  const MultiHeadAttention meant = with_weights_of(quantized, layer);
  const Tensor x = numbers({2, 5, 16}, DType::f32, 2);
  expect_near(quantized.heads(x).contribution, meant.heads(x).contribution, 1e-5);
  const Trace found = quantized.trace(x), expected = meant.trace(x);
  ASSERT_EQ(found.steps.size(), expected.steps.size());
  for (std::size_t n = 0; n < found.steps.size(); ++n)
    EXPECT_LE(largest_difference(found.steps[n].value, expected.steps[n].value), 1e-5)
        << found.steps[n].name;
}

// ---- what they refuse --------------------------------------------------------------------------

template <class Call>
void expect_no_gradients(const char* layer, const Call& call) {
  try {
    call();
    ADD_FAILURE() << layer;
  } catch (const Unsupported& error) {
    EXPECT_EQ(error.what(), std::string(layer) +
                                ": the weights are i8, of quantize(); gradients need weights of "
                                "f64, f32, bf16 or f16: train the layer first, then quantize it");
  }
}

TEST(EightBitLayers, have_no_gradients) {
  const Tensor x = numbers({1, 3, 8}, DType::f32, 1);
  const Linear linear({.in = 8, .out = 8});
  const FeedForward network({.model_dim = 8});
  const MultiHeadAttention attention({.model_dim = 8, .heads = 2});
  const AttentionBlock block({.attention = {.model_dim = 8, .heads = 2}, .hidden_dim = 8});
  const LanguageModel model = small_model();
  const auto expect = [&](const char* name, const auto& layer, const auto& input) {
    const auto quantized = layer.quantize();
    const auto trained = layer.forward_train(input);
    expect_no_gradients(name, [&] { quantized.forward_train(input); });
    expect_no_gradients(name, [&] { quantized.backward(trained.first, trained.second); });
  };
  expect("linear", linear, x.view());
  expect("feed_forward", network, x.view());
  expect("multi_head_attention", attention, x.view());
  expect("attention_block", block, x.view());
  expect("language_model", model, tokens());
  expect_no_gradients("linear", [&] { linear.quantize().backward(x, x.view()); });
  expect_no_gradients("multi_head_attention", [&] { attention.quantize().forward_train(x, x, x); });
  AdamW optimizer;
  LanguageModel other = model.quantize();
  EXPECT_THROW(optimizer.step(other.writable_parameters(), {}, 1e-3), InvalidArgument);
}

TEST(EightBitLayers, have_no_matrices_of_each_head) {
  const MultiHeadAttention layer = drawn({.model_dim = 8, .heads = 2}, 1).quantize();
  EXPECT_THROW(layer.split(), Unsupported);
  const TemporaryFolder folder;
  EXPECT_THROW(layer.save(folder / "x.safetensors", true), Unsupported);
  EXPECT_FALSE(std::filesystem::exists(folder / "x.safetensors"));
}

// ---- files -------------------------------------------------------------------------------------

TEST(EightBitLayers, come_back_from_files_as_they_were) {
  const TemporaryFolder folder;
  const auto path = folder / "x.safetensors";
  for (const DType type : kFloatTypes) {
    for (const bool bias : {true, false}) {
      const MultiHeadAttention layer =
          drawn({.model_dim = 8, .heads = 4, .key_heads = 2, .bias = bias, .type = type}, 1)
              .quantize();
      layer.save(path);
      const MultiHeadAttention loaded = MultiHeadAttention::load(path);
      EXPECT_EQ(lists_differ(loaded.parameters(), layer.parameters()), "");
      EXPECT_EQ(loaded.options().type, type);
      const Tensor x = numbers({2, 3, 8}, type, 2);
      EXPECT_EQ(difference(loaded.forward(x), layer.forward(x)), "");
    }
    AttentionBlock block(
        {.attention = {.model_dim = 8, .heads = 2, .type = type}, .cross = true, .hidden_dim = 6});
    draw_parameters(block, 2);
    const AttentionBlock quantized = block.quantize();
    quantized.save(path);
    EXPECT_EQ(lists_differ(AttentionBlock::load(path).parameters(), quantized.parameters()), "");

    const LanguageModel model = small_model(type).quantize();
    model.save(path);
    const LanguageModel loaded = LanguageModel::load(path);
    EXPECT_EQ(lists_differ(loaded.parameters(), model.parameters()), "");
    EXPECT_EQ(difference(loaded.forward(tokens()), model.forward(tokens())), "");
    const MultiHeadAttention part =
        MultiHeadAttention::load(path, {.prefix = "blocks.1.attention.", .heads = 2});
    EXPECT_EQ(lists_differ(part.parameters(), model.blocks()[1].attention().parameters()), "");
  }
}

std::string file_error(const std::function<void()>& call) {
  try {
    call();
  } catch (const FileError& error) {
    return error.what();
  }
  return "no error";
}

// Any of the four weights may be of 8 bits, whatever the others are.
TEST(EightBitLayers, a_file_may_have_some_weights_of_8_bits) {
  const TemporaryFolder folder;
  const auto path = folder / "x.safetensors";
  for (const DType type : {DType::f32, DType::bf16})
    for (const bool bias : {true, false}) {
      MultiHeadAttention plain({.model_dim = 16, .heads = 2, .bias = bias, .type = type});
      draw_parameters(plain, 5);
      const MultiHeadAttention quantized = plain.quantize();
      quantized.save(path);
      const TensorFile bytes = load_safetensors(path);
      plain.save(path);
      TensorFile whole = load_safetensors(path);
      whole.metadata.erase("type");
      const Tensor x = numbers({1, 6, 16}, type, 1);
      const auto of_plain = plain.heads(x), of_quantized = quantized.heads(x);
      for (const std::string name : {"q", "k", "v", "o"}) {
        SCOPED_TRACE(name + " of " + std::string(name_of(type)));
        TensorFile mixed = whole;
        for (NamedTensor& named : mixed.tensors)
          if (named.name == name + ".weight") named.tensor = bytes.at(named.name);
        const std::string scales = name + ".weight_scales";
        mixed.tensors.push_back({scales, bytes.at(scales)});
        const MultiHeadAttention loaded = MultiHeadAttention::load(mixed);
        EXPECT_TRUE(loaded.quantized());
        EXPECT_EQ(loaded.options().type, type);
        const auto heads = loaded.heads(x);
        EXPECT_EQ(difference(heads.q, name == "q" ? of_quantized.q : of_plain.q), "");
        EXPECT_EQ(difference(heads.k, name == "k" ? of_quantized.k : of_plain.k), "");
        EXPECT_EQ(difference(heads.v, name == "v" ? of_quantized.v : of_plain.v), "");
        EXPECT_NE(difference(loaded.forward(x), plain.forward(x)), "") << "not quantized at all";
        const std::string message = file_error([&] {
          MultiHeadAttention::load(mixed, {.orientation = WeightsFormat::Orientation::in_out});
        });
        EXPECT_NE(message.find(name + ".weight is i8; weights of 8 bits must be as save() writes"),
                  std::string::npos)
            << message;
      }
    }
}

TEST(EightBitLayers, files_of_other_weights_are_refused) {
  const TemporaryFolder folder;
  const auto path = folder / "x.safetensors";
  LanguageModel model = small_model(), quantized = model.quantize();
  quantized.save(path);
  const TensorFile file = load_safetensors(path);
  EXPECT_NE(file_error([&] {
              load_parameters(file, model.writable_parameters());
            }).find("no parameter takes 'blocks.0.attention.q.weight_scales'"),
            std::string::npos);
  EXPECT_NE(file_error([&] {
              load_parameters(file, model.writable_parameters(), {}, true);
            }).find("is i8; a parameter needs a floating-point type"),
            std::string::npos);
  TensorFile mixed = file;
  for (NamedTensor& named : mixed.tensors)
    if (named.name == "head.weight") named.tensor = numbers(named.tensor.shape(), DType::f32, 1);
  const std::string message =
      file_error([&] { load_parameters(mixed, quantized.writable_parameters()); });
  EXPECT_NE(message.find("tensor 'head.weight' is f32; the parameter is i8, of quantize(), and "
                         "takes i8 alone"),
            std::string::npos)
      << message;
  EXPECT_EQ(lists_differ(quantized.parameters(), model.quantize().parameters()), "");

  // Without their scales.
  TensorFile bare = file;
  std::erase_if(bare.tensors, [](const NamedTensor& named) {
    return named.name == "blocks.0.attention.k.weight_scales";
  });
  EXPECT_NE(file_error([&] {
              MultiHeadAttention::load(bare, {.prefix = "blocks.0.attention.", .heads = 2});
            }).find("k.weight_scales"),
            std::string::npos);
}

}  // namespace
}  // namespace attend::test
