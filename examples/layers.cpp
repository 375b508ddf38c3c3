// Every layer in a few lines. The pages in docs/layers show these lines between the marks;
// tests/documents_test.py holds the two texts together.
#include <attend/attend.h>

#include <cstdio>

namespace {

using attend::DType;
using attend::Tensor;

// Some numbers to work on, the same every time.
Tensor some(const attend::Shape& shape) {
  Tensor tensor(shape);
  for (std::int64_t n = 0; n < tensor.count(); ++n)
    tensor.data<float>()[n] = static_cast<float>((n * 37 % 101) - 50) / 50;
  return tensor;
}

std::string shape_of(const Tensor& tensor) { return to_string(tensor.shape()); }

void linear() {
  // [linear]
  attend::Linear linear({.in = 3, .out = 2});  // weights from seed 0
  Tensor x = some({5, 3});
  Tensor y = linear.forward(x);  // [5, 2]

  auto [y2, saved] = linear.forward_train(x);
  attend::LayerGradients g = linear.backward(some({5, 2}), saved);
  // g.dx [5, 3]; g.parameters: weight [2, 3], bias [2]
  // [/linear]
  std::printf("linear: y %s, dx %s\n", shape_of(y).c_str(), shape_of(g.dx).c_str());
}

void norm() {
  // [norm]
  attend::LayerNorm layer_norm({.dim = 8});
  attend::RMSNorm rms_norm({.dim = 8, .epsilon = 1e-6});
  Tensor y = rms_norm.forward(layer_norm.forward(some({2, 4, 8})));
  // [/norm]
  std::printf("norm: y %s\n", shape_of(y).c_str());
}

void feed_forward() {
  // [feed_forward]
  attend::FeedForward network(
      {.model_dim = 8, .hidden_dim = 32, .activation = attend::Activation::swiglu});
  Tensor y = network.forward(some({2, 4, 8}));  // [2, 4, 8]
  // [/feed_forward]
  std::printf("feed_forward: y %s\n", shape_of(y).c_str());
}

void embedding() {
  // [embedding]
  attend::Embedding words({.vocabulary = 100, .dim = 8});
  attend::LearnedPositions learned({.length = 64, .dim = 8});
  attend::SinusoidalPositions sinusoidal({.dim = 8});
  const Tensor tokens(std::initializer_list<std::int64_t>{7, 42, 7}, {1, 3});
  Tensor x = learned.forward(words.forward(tokens));                      // [1, 3, 8]
  Tensor next = sinusoidal.forward(words.forward(tokens), /*offset=*/3);  // positions 3, 4, 5
  // [/embedding]
  std::printf("embedding: x %s %s\n", shape_of(x).c_str(), shape_of(next).c_str());
}

void multi_head_attention() {
  // [multi_head_attention]
  attend::MultiHeadAttention layer({.model_dim = 512, .heads = 8});
  Tensor x = some({2, 10, 512});
  Tensor y = layer.forward(x, {.causal = true});  // self-attention, [2, 10, 512]

  Tensor query = some({2, 4, 512}), memory = some({2, 10, 512});
  Tensor mask({10}, DType::u8);  // 0 = hidden
  for (int j = 0; j < 7; ++j) mask.at<std::uint8_t>({j}) = 1;
  auto [y2, saved] = layer.forward_train(query, memory, memory, {.mask = mask});  // cross-attention
  auto g = layer.backward(some({2, 4, 512}), saved);
  // g.dquery, g.dkey, g.dvalue; g.parameters: q.weight, q.bias, k.weight, ... o.bias
  // [/multi_head_attention]
  std::printf("multi_head_attention: y %s %s, %lld parameters, %zu gradients\n",
              shape_of(y).c_str(), shape_of(y2).c_str(),
              static_cast<long long>(attend::parameter_count(layer.parameters())),
              g.parameters.size());
}

void grouped() {
  // [grouped]
  attend::MultiHeadAttention layer({.model_dim = 64,
                                    .heads = 8,
                                    .key_heads = 2,  // four query heads share one key head
                                    .d_k = 16,
                                    .d_v = 24,
                                    .bias = false,
                                    .rotary = attend::Rotary{.base = 500000}});
  Tensor y = layer.forward(some({1, 6, 64}), {.causal = true, .window = {.left = 3}});
  // [/grouped]
  std::printf("grouped: y %s\n", shape_of(y).c_str());
}

void per_head() {
  // [per_head]
  const attend::MultiHeadAttentionOptions options{.model_dim = 6, .heads = 2, .d_v = 4};
  attend::MultiHeadAttention fused(options);
  auto heads = fused.split();  // heads[0].q is [3, 6], heads[0].o [6, 4]
  auto again = attend::MultiHeadAttention::join(options, heads, fused.o().bias());
  // [/per_head]
  std::printf("per_head: q %s o %s, %zu heads\n", shape_of(heads[0].q).c_str(),
              shape_of(heads[0].o).c_str(), again.split().size());
}

void trace() {
  // [trace]
  attend::MultiHeadAttention layer({.model_dim = 8, .heads = 2});
  attend::Trace trace = layer.trace(some({1, 3, 8}), {.causal = true});
  for (const attend::TraceStep& step : trace.steps)
    std::printf("%-14s %-14s %s\n", step.name.c_str(), to_string(step.value.shape()).c_str(),
                step.formula.c_str());
  const Tensor& weights = trace.at("weights");  // [1, 2, 3, 3]
  // [/trace]
  std::printf("trace: row 0 sees key 0 with weight %g\n", weights.at<float>({0, 0, 0, 0}));
}

void kv_cache() {
  // [kv_cache]
  attend::MultiHeadAttention layer({.model_dim = 64, .heads = 4, .rotary = attend::Rotary{}});
  attend::KvCache cache = layer.make_cache(/*batch=*/1, /*capacity=*/128);
  Tensor prompt = some({1, 5, 64}), token = some({1, 1, 64});
  Tensor first = layer.forward(prompt, cache, {.causal = true});  // the whole prompt: [1, 5, 64]
  Tensor next = layer.forward(token, cache, {.causal = true});    // one token more: [1, 1, 64]
  cache.truncate(0, 5);                                           // take it back
  // [/kv_cache]
  std::printf("kv_cache: %s, then %s; holds %lld\n", shape_of(first).c_str(),
              shape_of(next).c_str(), static_cast<long long>(cache.length(0)));
}

void block() {
  // [block]
  attend::AttentionBlock encoder({.attention = {.model_dim = 64, .heads = 4},
                                  .hidden_dim = 256,
                                  .placement = attend::NormPlacement::pre});
  attend::AttentionBlock decoder(
      {.attention = {.model_dim = 64, .heads = 4}, .cross = true, .hidden_dim = 256});
  Tensor memory = encoder.forward(some({2, 9, 64}));
  Tensor y = decoder.forward(some({2, 5, 64}), memory, {.causal = true});  // [2, 5, 64]
  // [/block]
  std::printf("block: y %s\n", shape_of(y).c_str());
}

void training() {
  // [training]
  attend::LanguageModel model({.vocabulary = 5, .length = 8, .layers = 1, .model_dim = 16});
  const Tensor tokens(std::initializer_list<std::int64_t>{0, 1, 2, 3, 4, 0, 1, 2}, {1, 8});
  const Tensor targets(std::initializer_list<std::int64_t>{1, 2, 3, 4, 0, 1, 2, 3}, {1, 8});
  attend::AdamW optimizer({.weight_decay = 0.01});
  const attend::LearningRate rate{.peak = 1e-2, .warmup = 5};
  double loss = 0;
  for (int step = 0; step < 60; ++step) {
    auto [logits, saved] = model.forward_train(tokens);
    attend::Loss error = attend::cross_entropy(logits, targets);
    auto gradients = model.backward(error.gradient, saved);
    attend::clip_gradients(gradients, 1.0);
    optimizer.step(model.writable_parameters(), gradients, rate.at(step));
    loss = error.value;
  }
  auto text = model.generate({0, 1}, 4);  // 2 3 4 0
  // [/training]
  std::printf("training: loss below 0.1: %s; generated", loss < 0.1 ? "yes" : "no");
  for (const std::int64_t token : text) std::printf(" %lld", static_cast<long long>(token));
  std::printf("\n");
}

void training_in_f16() {
  const Tensor tokens(std::initializer_list<std::int64_t>{0, 1, 2, 3, 4, 0, 1, 2}, {1, 8});
  const Tensor targets(std::initializer_list<std::int64_t>{1, 2, 3, 4, 0, 1, 2, 3}, {1, 8});
  const attend::LearningRate rate{.peak = 1e-2, .warmup = 5};
  // [loss_scale]
  attend::LanguageModel model(
      {.vocabulary = 5, .length = 8, .layers = 1, .model_dim = 16, .type = attend::DType::f16});
  attend::AdamW optimizer;
  attend::LossScale scale;
  while (optimizer.steps() < 60) {
    auto [logits, saved] = model.forward_train(tokens);
    auto loss = attend::cross_entropy(logits, targets, {.gradient_scale = scale.value()});
    auto gradients = model.backward(loss.gradient, saved);
    const bool finite = scale.unscale(gradients);  // f32 from here on
    if (finite) {
      attend::clip_gradients(gradients, 1.0);
      optimizer.step(model.writable_parameters(), gradients, rate.at(optimizer.steps()));
    }
    scale.update(finite);
  }
  // [/loss_scale]
  std::printf("training in f16: generated");
  for (const std::int64_t token : model.generate({0, 1}, 4))
    std::printf(" %lld", static_cast<long long>(token));
  std::printf("\n");
}

}  // namespace

int main() {
  linear();
  norm();
  feed_forward();
  embedding();
  multi_head_attention();
  grouped();
  per_head();
  trace();
  kv_cache();
  block();
  training();
  training_in_f16();
}
