// One layer, one block, shared by eight threads that each have inputs and caches of their own: what
// they get has the bits that they get alone.
#include "support/attention_layers.h"

#include <attend/block.h>

#include <thread>

namespace attend::test {
namespace {

constexpr int kThreads = 8;

// Everything that a thread computes, as one list.
using Work = std::function<std::vector<NamedTensor>(unsigned seed)>;

void expect_same_from_eight_threads(const Work& work) {
  std::vector<std::vector<NamedTensor>> alone(kThreads), together(kThreads);
  for (unsigned n = 0; n < kThreads; ++n) alone[n] = work(n + 1);
  std::vector<std::thread> threads;
  for (unsigned n = 0; n < kThreads; ++n)
    threads.emplace_back([&, n] {
      for (int round = 0; round < 3; ++round) together[n] = work(n + 1);
    });
  for (std::thread& thread : threads) thread.join();
  for (unsigned n = 0; n < kThreads; ++n)
    EXPECT_EQ(lists_differ(together[n], alone[n]), "") << "thread " << n;
  EXPECT_NE(lists_differ(alone[0], alone[1]), "");
}

void add(std::vector<NamedTensor>& list, const char* name, Tensor tensor) {
  list.push_back({name, std::move(tensor)});
}

// A prompt, then tokens one by one.
template <class Step>
void add_decoded(std::vector<NamedTensor>& list, const Tensor& x, const Step& step) {
  add(list, "prompt", step(part_of(x, 1, 0, 6)));
  for (std::int64_t i = 6; i < x.size(1); ++i) add(list, "token", step(part_of(x, 1, i, i + 1)));
}

TEST(LayerThreads, one_layer) {
  const MultiHeadAttention layer =
      drawn({.model_dim = 16, .heads = 4, .key_heads = 2, .rotary = Rotary{}});
  const AttentionOptions causal{.causal = true};
  Context own(ContextOptions{.threads = 3});
  for (Context* context : {&own, &default_context()})
    expect_same_from_eight_threads([&, context](unsigned seed) {
      const Tensor x = numbers({2, 9, 16}, DType::f32, seed);
      std::vector<NamedTensor> all;
      add(all, "y", layer.forward(x, causal, {}, *context));
      auto [y, saved] = layer.forward_train(x, causal, *context);
      MultiHeadAttention::Gradients g = layer.backward(y, saved, *context);
      add(all, "trained y", std::move(y));
      add(all, "dx", std::move(g.dx));
      for (NamedTensor& p : g.parameters) all.push_back(std::move(p));
      add(all, "weights", layer.trace(x, causal, *context).at("weights"));
      for (const std::int64_t page_size : {0, 2}) {
        KvCache cache = layer.make_cache(2, 9, page_size);
        add_decoded(all, x,
                    [&](const Tensor& t) { return layer.forward(t, cache, causal, {}, *context); });
      }
      return all;
    });
}

TEST(LayerThreads, one_block) {
  AttentionBlock block({.attention = {.model_dim = 16, .heads = 4},
                        .cross = true,
                        .hidden_dim = 20,
                        .activation = Activation::swiglu});
  draw_parameters(block, 9);
  const Tensor memory = numbers({2, 5, 16}, DType::f32, 99);
  KvCache kept = block.cross().make_cache(2, 5);  // read by all
  block.cross().append(memory, memory, kept);
  const AttentionOptions causal{.causal = true};
  expect_same_from_eight_threads([&](unsigned seed) {
    const Tensor x = numbers({2, 9, 16}, DType::f32, seed);
    std::vector<NamedTensor> all;
    add(all, "y", block.forward(x, memory, causal));
    auto [y, saved] = block.forward_train(x, memory, causal);
    AttentionBlock::Gradients g = block.backward(y, saved);
    add(all, "trained y", std::move(y));
    add(all, "dx", std::move(g.dx));
    add(all, "dmemory", std::move(g.dmemory));
    for (NamedTensor& p : g.parameters) all.push_back(std::move(p));
    KvCache cache = block.attention().make_cache(2, 9, 2);
    add_decoded(all, x, [&](const Tensor& t) { return block.forward(t, cache, kept, causal); });
    return all;
  });
}

}  // namespace
}  // namespace attend::test
