// Every layer, forward and its gradients, at sizes on both sides of the product's tiles; blocks of
// each kind; decoding by a cache; and two models over 20 steps of training.
#include "lines.h"

#include "support/layer_cases.h"

namespace attend::baseline {
namespace {

using test::layer_case;
using test::LayerCase;
using test::numbers;

Line named(const std::string& what, DType type) {
  return Line("layer " + what + " " + std::string(name_of(type)) + " :");
}

std::vector<LayerCase> cases_of(DType type) {
  std::vector<LayerCase> list = test::layer_cases(type);
  list.push_back(
      layer_case("linear_70_300", Linear({.in = 70, .out = 300, .type = type}), 70, 300));
  list.push_back(
      layer_case("linear_512_512", Linear({.in = 512, .out = 512, .type = type}), 512, 512));
  list.push_back(layer_case("layer_norm_300", LayerNorm({.dim = 300, .type = type}), 300, 300));
  list.push_back(layer_case("rms_norm_300", RMSNorm({.dim = 300, .type = type}), 300, 300));
  for (const Activation activation :
       {Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::swiglu})
    list.push_back(layer_case(
        "feed_forward_96_" + std::to_string(static_cast<int>(activation)),
        FeedForward({.model_dim = 96, .hidden_dim = 200, .activation = activation, .type = type}),
        96, 96));
  return list;
}

void print_simple(DType type, Context& context) {
  for (const LayerCase& c : cases_of(type))
    for (const std::int64_t rows : {1, 3, 50}) {
      const Tensor x = numbers({rows, c.in}, type, 1), dy = numbers({rows, c.out}, type, 2);
      const test::Trained trained = c.train(x, dy, context);
      Line line = named(c.name + " rows=" + std::to_string(rows), type);
      line.add("y", c.forward(x, context)).add("dx", trained.gradients.dx);
      line.add(trained.gradients.parameters).print();
    }
}

std::vector<std::pair<std::string, MultiHeadAttentionOptions>> attention_layers(DType type) {
  return {
      {"attention", {.model_dim = 64, .heads = 8, .type = type}},
      {"grouped_halves",
       {.model_dim = 64, .heads = 8, .key_heads = 2, .rotary = Rotary{}, .type = type}},
      {"own_sizes_neighbours",
       {.model_dim = 48,
        .heads = 3,
        .d_k = 20,
        .d_v = 12,
        .bias = false,
        .rotary = Rotary{.pairing = Rotary::Pairing::neighbours, .dim = 8},
        .type = type}},
      {"no_output", {.model_dim = 24, .heads = 2, .output_projection = false, .type = type}},
      {"wide", {.model_dim = 512, .heads = 8, .type = type}},
  };
}

void print_attention_layers(DType type, Context& context) {
  for (const auto& [name, options] : attention_layers(type)) {
    MultiHeadAttention layer(options);
    test::fill(layer.writable_parameters(), 7);
    const MultiHeadAttention& fixed = layer;
    const Tensor x = numbers({2, 21, options.model_dim}, type, 3);
    for (const bool causal : {false, true}) {
      const auto [y, saved] = fixed.forward_train(x, {.causal = causal}, context);
      const Tensor dy = numbers(y.shape(), type, 4);
      const auto gradients = fixed.backward(dy, saved, context);
      Line line = named(name + (causal ? " causal" : ""), type);
      line.add("y", fixed.forward(x, {.causal = causal}, {}, context)).add("y_train", y);
      line.add("dx", gradients.dx).add(gradients.parameters).print();
    }
    KvCache cache = fixed.make_cache(2, 21);
    Line line = named(name + " decode", type);
    line.add("prompt",
             fixed.forward(x.view().slice(1, 0, 19), cache, {.causal = true}, {}, context));
    line.add("token",
             fixed.forward(x.view().slice(1, 19, 20), cache, {.causal = true}, {}, context));
    line.add("next",
             fixed.forward(x.view().slice(1, 20, 21), cache, {.causal = true}, {}, context));
    line.print();
  }
}

void print_blocks(DType type, Context& context) {
  for (const NormPlacement placement :
       {NormPlacement::post, NormPlacement::pre, NormPlacement::none})
    for (const bool cross : {false, true})
      for (const NormKind norm : {NormKind::layer_norm, NormKind::rms_norm}) {
        AttentionBlock block({.attention = {.model_dim = 48, .heads = 4, .type = type},
                              .cross = cross,
                              .memory_dim = cross ? 32 : 0,
                              .hidden_dim = 80,
                              .activation = cross ? Activation::swiglu : Activation::gelu,
                              .placement = placement,
                              .norm = norm});
        test::fill(block.writable_parameters(), 9);
        const AttentionBlock& fixed = block;
        const Tensor x = numbers({2, 17, 48}, type, 5), memory = numbers({2, 9, 32}, type, 6);
        const ConstTensorView given = cross ? ConstTensorView(memory) : ConstTensorView();
        const auto [y, saved] = fixed.forward_train(x, given, {.causal = true}, {}, context);
        const auto gradients = fixed.backward(numbers(y.shape(), type, 8), saved, context);
        Line line = named("block placement=" + std::to_string(static_cast<int>(placement)) +
                              " cross=" + std::to_string(cross) +
                              " norm=" + std::to_string(static_cast<int>(norm)),
                          type);
        line.add("y", y).add("dx", gradients.dx).add("dmemory", gradients.dmemory);
        line.add(gradients.parameters).print();
      }
}

Tensor tokens_of(std::int64_t batch, std::int64_t length, std::int64_t vocabulary,
                 std::int64_t at) {
  Tensor tokens({batch, length}, DType::i64);
  for (std::int64_t n = 0; n < tokens.count(); ++n)
    tokens.data<std::int64_t>()[n] = ((n + at) * (n + at) + 3 * n + at) % vocabulary;
  return tokens;
}

}  // namespace

void print_layers(Context& context) {
  for (const DType type : test::kFloatTypes) {
    print_simple(type, context);
    print_attention_layers(type, context);
    print_blocks(type, context);
  }
}

void print_training(Context& context) {
  for (const DType type : test::kFloatTypes)
    for (const bool adam : {true, false}) {
      LanguageModel model({.vocabulary = 31,
                           .length = 40,
                           .layers = 2,
                           .model_dim = 48,
                           .heads = 4,
                           .hidden_dim = 96,
                           .type = type,
                           .seed = 3});
      AdamW adamw;
      SGD sgd({.momentum = 0.9});
      Optimizer& optimizer = adam ? static_cast<Optimizer&>(adamw) : sgd;
      std::vector<double> losses;
      for (int step = 0; step < 20; ++step) {
        const Tensor tokens = tokens_of(3, 40, 31, step), targets = tokens_of(3, 40, 31, step + 1);
        const auto [logits, saved] = model.forward_train(tokens, context);
        const Loss loss = cross_entropy(logits, targets, {}, context);
        losses.push_back(loss.value);
        std::vector<NamedTensor> gradients = model.backward(loss.gradient, saved, context);
        clip_gradients(gradients, 1);
        optimizer.step(model.writable_parameters(), gradients, 1e-2);
      }
      Line line = named(std::string("training ") + optimizer.kind(), type);
      line.add("losses", losses);
      const LanguageModel& trained = model;
      for (const NamedView& p : trained.parameters()) line.add(p.name, p.tensor);
      line.print();
    }
}

}  // namespace attend::baseline
