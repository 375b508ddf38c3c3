// The block around attention: against its parts put together by hand, and its gradients by central
// differences.
#include "support/attention_layers.h"
#include "support/layer_gradients.h"
#include "support/thrown_by.h"

#include <attend/block.h>

namespace attend::test {
namespace {

struct Case {
  std::string name;
  AttentionBlockOptions options;
};

// Every placement and norm, with every feed-forward network or none, with and without a memory.
std::vector<Case> cases(DType type) {
  const std::pair<const char*, NormPlacement> placements[] = {
      {"post", NormPlacement::post}, {"pre", NormPlacement::pre}, {"none", NormPlacement::none}};
  const std::pair<const char*, NormKind> norms[] = {{"layer_norm", NormKind::layer_norm},
                                                    {"rms_norm", NormKind::rms_norm}};
  const std::pair<const char*, Activation> activations[] = {{"relu", Activation::relu},
                                                            {"gelu", Activation::gelu},
                                                            {"gelu_tanh", Activation::gelu_tanh},
                                                            {"swiglu", Activation::swiglu}};
  std::vector<Case> all;
  const MultiHeadAttentionOptions attention{.model_dim = 6,
                                            .heads = 2,
                                            .key_heads = 1,
                                            .d_k = 2,
                                            .rotary = Rotary{.base = 10},
                                            .type = type};
  for (const auto& [placement_name, placement] : placements)
    for (const auto& [norm_name, norm] : norms)
      for (const bool cross : {false, true}) {
        const std::string name =
            std::string(placement_name) + " " + norm_name + (cross ? " cross" : " self");
        AttentionBlockOptions options{.attention = attention,
                                      .cross = cross,
                                      .memory_dim = cross ? 5 : 0,
                                      .placement = placement,
                                      .norm = norm};
        all.push_back({name, options});
        options.hidden_dim = 7;
        for (const auto& [activation_name, activation] : activations) {
          options.activation = activation;
          all.push_back({name + " " + activation_name, options});
        }
      }
  all.push_back({"no_bias", {.attention = attention, .hidden_dim = 4}});
  all.back().options.attention.bias = false;
  all.push_back(
      {"no_output",
       {.attention = {.model_dim = 6, .heads = 3, .output_projection = false, .type = type}}});
  return all;
}

struct Inputs {
  explicit Inputs(const AttentionBlockOptions& o)
      : x(numbers({2, 3, 6}, o.attention.type, 51)),
        memory(o.cross ? numbers({2, 4, o.memory_dim}, o.attention.type, 52) : Tensor()) {}
  Tensor x, memory;
};

AttentionBlock drawn_block(const AttentionBlockOptions& options) {
  AttentionBlock block(options);
  draw_parameters(block, 53);
  return block;
}

// The layers of a block, each loaded from the block's parameters under its name.
struct BlockLayers {
  MultiHeadAttention attention, cross;
  FeedForward feed_forward;
  Norm norms[3];

  explicit BlockLayers(const AttentionBlock& block) {
    const AttentionBlockOptions& o = block.options();
    TensorFile file;
    for (const NamedView& p : block.parameters())
      file.tensors.push_back({p.name, Tensor::copy_of(p.tensor)});
    const auto load = [&](const char* prefix, auto& layer) {
      load_parameters(file, layer.writable_parameters(), prefix);
    };
    attention = MultiHeadAttention(o.attention);
    load("attention.", attention);
    if (o.cross) {
      MultiHeadAttentionOptions c = o.attention;
      c.key_dim = c.value_dim = o.memory_dim;
      c.rotary.reset();
      cross = MultiHeadAttention(c);
      load("cross.", cross);
    }
    if (o.hidden_dim > 0) {
      feed_forward = FeedForward({.model_dim = 6,
                                  .hidden_dim = o.hidden_dim,
                                  .activation = o.activation,
                                  .bias = o.attention.bias,
                                  .type = o.attention.type});
      load("feed_forward.", feed_forward);
    }
    for (int n = 0; n < 3 && o.placement != NormPlacement::none; ++n) {
      if ((n == 1 && !o.cross) || (n == 2 && o.hidden_dim == 0)) continue;
      norms[n] = Norm({.dim = 6,
                       .kind = o.norm,
                       .epsilon = o.epsilon,
                       .bias = o.attention.bias,
                       .type = o.attention.type});
      load(n == 0 ? "norm_1." : n == 1 ? "norm_2." : "norm_3.", norms[n]);
    }
  }
};

Tensor sum(const Tensor& a, const Tensor& b) {
  Tensor c(a.shape(), a.dtype());
  with_type(a.dtype(), [&]<class T>(T) {
    for (std::int64_t n = 0; n < c.count(); ++n)
      c.data<T>()[n] = static_cast<T>(element(a, n) + element(b, n));
  });
  return c;
}

TEST(Block, is_its_parts_put_together) {
  for (const DType type : {DType::f64, DType::f32, DType::bf16})
    for (const Case& c : cases(type)) {
      const AttentionBlock block = drawn_block(c.options);
      const BlockLayers layers(block);
      const Inputs in(block.options());
      const AttentionOptions causal{.causal = true}, window{.window = {2, 2}};
      const auto wrap = [&](int n, const Tensor& x, const auto& f) {
        switch (c.options.placement) {
          case NormPlacement::post: return layers.norms[n].forward(sum(x, f(x)));
          case NormPlacement::pre: return sum(x, f(layers.norms[n].forward(x)));
          case NormPlacement::none: break;
        }
        return sum(x, f(x));
      };
      Tensor y =
          wrap(0, in.x, [&](const Tensor& u) { return layers.attention.forward(u, causal); });
      if (layers.cross)
        y = wrap(1, y, [&](const Tensor& u) {
          return layers.cross.forward(u, in.memory, in.memory, window);
        });
      if (layers.feed_forward)
        y = wrap(2, y, [&](const Tensor& u) { return layers.feed_forward.forward(u); });
      const Tensor found = c.options.cross ? block.forward(in.x, in.memory, causal, window)
                                           : block.forward(in.x, causal);
      EXPECT_EQ(difference(found, y), "") << c.name << " " << name_of(type);
      EXPECT_EQ(difference(block.forward_train(in.x, in.memory, causal, window).first, y), "")
          << c.name;
      EXPECT_EQ(difference(block.trace(in.x, in.memory, causal, window).at("output"), y), "")
          << c.name;
    }
}

TEST(Block, gradients_are_what_differences_say) {
  for (const Case& c : cases(DType::f64)) {
    AttentionBlock block = drawn_block(c.options);
    Inputs in(block.options());
    const auto trained = [&] { return block.forward_train(in.x, in.memory, {.causal = true}); };
    const auto [y, saved] = trained();
    const Tensor dy = numbers(y.shape(), DType::f64, 54);
    const AttentionBlock::Gradients g = block.backward(dy, saved);
    std::vector<Differentiated> all = paired(block.writable_parameters(), g.parameters);
    all.push_back({"x", in.x, g.dx});
    if (c.options.cross) all.push_back({"memory", in.memory, g.dmemory});
    else EXPECT_FALSE(g.dmemory);
    const GradientCheck found =
        check_gradients([&] { return weighted_sum(trained().first, dy); }, all);
    EXPECT_EQ(found.failures, "") << c.name;
    EXPECT_GT(found.noticing, found.differences / 2) << c.name;
  }
}

// Each attention's bias, once changed by hand in both directions.
TEST(Block, gradients_of_the_options_come_back_too) {
  const AttentionBlock block({.attention = {.model_dim = 4, .heads = 2, .type = DType::f64},
                              .cross = true,
                              .placement = NormPlacement::pre});
  const auto waves = [](const Shape& shape, double step) {
    Tensor t(shape, DType::f64);
    for (std::int64_t n = 0; n < t.count(); ++n)
      t.data<double>()[n] = std::sin(step * static_cast<double>(n + 1));
    return t;
  };
  const Tensor x = waves({1, 3, 4}, 0.7), memory = waves({1, 2, 4}, 1.1),
               dy = waves({1, 3, 4}, 1.7);
  Tensor self_bias = waves({2, 3, 3}, 0.3), cross_bias = waves({2, 3, 2}, 0.9);
  const auto loss = [&] {
    const Tensor y = block.forward(x, memory, {.bias = self_bias}, {.bias = cross_bias});
    double sum = 0;
    for (std::int64_t n = 0; n < y.count(); ++n) sum += y.data<double>()[n] * dy.data<double>()[n];
    return sum;
  };
  const auto saved =
      block.forward_train(x, memory, {.bias = self_bias}, {.bias = cross_bias}).second;
  const AttentionBlock::Gradients gradients = block.backward(dy, saved);
  EXPECT_FALSE(gradients.self.dsinks);
  for (const auto& [bias, dbias] : {std::pair{&self_bias, &gradients.self.dbias},
                                    std::pair{&cross_bias, &gradients.cross.dbias}}) {
    ASSERT_EQ(dbias->shape(), bias->shape());
    for (std::int64_t n = 0; n < bias->count(); ++n) {
      double& element = bias->data<double>()[n];
      const double before = element, step = 1e-5;
      element = before + step;
      const double above = loss();
      element = before - step;
      const double below = loss();
      element = before;
      EXPECT_NEAR(dbias->data<double>()[n], (above - below) / (2 * step), 1e-8) << "element " << n;
    }
  }
}

TEST(Block, a_sequence_without_batch_has_the_bits_of_a_batch_of_one) {
  for (const Case& c : cases(DType::f32)) {
    const AttentionBlock block = drawn_block(c.options);
    const Inputs in(block.options());
    const auto alone = [](const Tensor& t) {
      return t ? Tensor::copy_of(ConstTensorView(t.data<float>(), {t.size(1), t.size(2)}))
               : Tensor();
    };
    const Tensor x = alone(in.x), memory = alone(in.memory);
    const auto [y, saved] = block.forward_train(x, memory);
    const auto [batched, batched_saved] = block.forward_train(in.x, in.memory);
    EXPECT_EQ(difference(y, alone(batched)), "") << c.name;
    EXPECT_EQ(block.backward(x, saved).dx.shape(), x.shape()) << c.name;
  }
}

TEST(Block, parts_are_named) {
  const auto names = [](const AttentionBlockOptions& options) {
    std::string list, last;
    const AttentionBlock block(options);
    for (const NamedView& p : block.parameters()) {
      const std::string part = p.name.substr(0, p.name.find('.'));
      if (part != last) list += (list.empty() ? "" : " ") + part;
      last = part;
    }
    return list;
  };
  const MultiHeadAttentionOptions attention{.model_dim = 6, .heads = 2};
  EXPECT_EQ(names({.attention = attention}), "attention norm_1");
  EXPECT_EQ(names({.attention = attention, .cross = true, .hidden_dim = 5}),
            "attention norm_1 cross norm_2 feed_forward norm_3");
  EXPECT_EQ(names({.attention = attention, .hidden_dim = 5, .placement = NormPlacement::none}),
            "attention feed_forward");
}

TEST(Block, every_part_has_first_values_of_its_own) {
  const AttentionBlock block({.attention = {.model_dim = 6, .seed = 9}, .cross = true});
  EXPECT_NE(difference(block.attention().q().weight(), block.cross().q().weight()), "");
  const AttentionBlock again({.attention = {.model_dim = 6, .seed = 9}, .cross = true});
  EXPECT_EQ(lists_differ(block.parameters(), again.parameters()), "");
  EXPECT_EQ(AttentionBlock(block.options()).attention().options().seed,
            block.attention().options().seed);
}

TEST(Block, a_memory_is_for_a_block_with_cross_attention) {
  const AttentionBlock plain({.attention = {.model_dim = 6}}),
      decoder({.attention = {.model_dim = 6}, .cross = true});
  const Tensor x({1, 2, 6});
  const std::string start = "InvalidArgument: attention_block: ";
  EXPECT_EQ(thrown_by([&] { plain.forward(x, x); }),
            start + "memory is given, but the block has no cross-attention");
  EXPECT_EQ(thrown_by([&] { decoder.forward(x); }),
            start + "memory is not given; the block has cross-attention");
  EXPECT_EQ(thrown_by([&] { AttentionBlock().forward(x); }),
            start + "the layer is none; make it from options first");
  KvCache cache = decoder.attention().make_cache(1, 4);
  EXPECT_EQ(thrown_by([&] { decoder.forward(x, cache); }),
            start + "memory is not given; the block has cross-attention");
  EXPECT_EQ(cache.length(0), 0);
}

}  // namespace
}  // namespace attend::test
