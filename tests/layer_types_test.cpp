// Layers in another type: to().
#include "support/attention_layers.h"

#include <attend/model.h>

namespace attend::test {
namespace {

// Another type has the names and shapes of the parameters, each rounded once.
template <class Layer>
void expect_rounded(const Layer& layer, const Layer& other, DType type) {
  const auto from = layer.parameters(), to = other.parameters();
  ASSERT_EQ(from.size(), to.size());
  for (std::size_t n = 0; n < from.size(); ++n) {
    EXPECT_EQ(to[n].name, from[n].name);
    const Tensor wide = Tensor::copy_of(from[n].tensor), found = Tensor::copy_of(to[n].tensor);
    Tensor expected(wide.shape(), type);
    with_type(type, [&]<class T>(T) {
      for (std::int64_t e = 0; e < wide.count(); ++e)
        expected.data<T>()[e] = static_cast<T>(element(wide, e));
    });
    EXPECT_EQ(difference(found, expected), "") << from[n].name << " in " << name_of(type);
  }
}

// In every type, from every type; and back to the first bits where nothing was lost.
template <class Layer, class Options>
void expect_every_type(Options options, DType Options::*type, unsigned seed) {
  for (const DType from : kFloatTypes) {
    options.*type = from;
    Layer layer(options);
    draw_parameters(layer, seed);
    for (const DType to : kFloatTypes) {
      const Layer other = layer.to(to);
      expect_rounded(layer, other, to);
      if (size_of(to) > size_of(from)) {
        EXPECT_EQ(lists_differ(other.to(from).parameters(), layer.parameters()), "");
      }
    }
  }
}

TEST(AnotherType, rounds_every_parameter_once) {
  expect_every_type<Linear>(LinearOptions{.in = 5, .out = 3}, &LinearOptions::type, 1);
  expect_every_type<Norm>(NormOptions{.dim = 5}, &NormOptions::type, 2);
  expect_every_type<Embedding>(EmbeddingOptions{.vocabulary = 4, .dim = 3}, &EmbeddingOptions::type,
                               3);
  expect_every_type<LearnedPositions>(LearnedPositionsOptions{.length = 4, .dim = 3},
                                      &LearnedPositionsOptions::type, 4);
  expect_every_type<FeedForward>(
      FeedForwardOptions{.model_dim = 4, .hidden_dim = 6, .activation = Activation::swiglu},
      &FeedForwardOptions::type, 5);
  expect_every_type<MultiHeadAttention>(
      MultiHeadAttentionOptions{.model_dim = 8, .heads = 4, .key_heads = 2, .rotary = Rotary{}},
      &MultiHeadAttentionOptions::type, 6);
  expect_every_type<LanguageModel>(
      LanguageModelOptions{.vocabulary = 5, .length = 4, .model_dim = 8, .hidden_dim = 6},
      &LanguageModelOptions::type, 7);
}

// The copy computes as a layer that was made in its type with the same weights.
TEST(AnotherType, of_a_block_computes_in_it) {
  AttentionBlock block({.attention = {.model_dim = 8, .heads = 2},
                        .cross = true,
                        .hidden_dim = 12,
                        .activation = Activation::swiglu});
  draw_parameters(block, 1);
  for (const DType type : kFloatTypes) {
    const AttentionBlock other = block.to(type);
    expect_rounded(block, other, type);
    EXPECT_EQ(other.options().attention.type, type);
    AttentionBlock made(other.options());
    const auto from = other.parameters();
    auto to = made.writable_parameters();
    for (std::size_t n = 0; n < to.size(); ++n)
      std::memcpy(to[n].value.data(), from[n].tensor.data(),
                  static_cast<std::size_t>(from[n].tensor.count() * size_of(type)));
    to.clear();
    const Tensor x = numbers({2, 5, 8}, type, 3), memory = numbers({2, 4, 8}, type, 4);
    EXPECT_EQ(difference(other.forward(x, memory), made.forward(x, memory)), "");
    EXPECT_EQ(other.attention().make_cache(1, 4).options().type, type);
  }
}

TEST(AnotherType, is_a_copy) {
  Linear layer({.in = 3, .out = 2});
  const Linear before = layer;
  for (const DType type : {DType::f32, DType::bf16}) {
    Linear other = layer.to(type);
    for (Parameter& p : other.writable_parameters())
      std::memset(p.value.data(), 0,
                  static_cast<std::size_t>(p.value.count() * size_of(p.value.dtype())));
    EXPECT_EQ(lists_differ(layer.parameters(), before.parameters()), "");
  }
}

TEST(AnotherType, of_none_is_none) {
  EXPECT_FALSE(Linear().to(DType::bf16));
  EXPECT_FALSE(Norm().to(DType::bf16));
  EXPECT_FALSE(Embedding().to(DType::bf16));
  EXPECT_FALSE(LearnedPositions().to(DType::bf16));
  EXPECT_FALSE(FeedForward().to(DType::bf16));
  EXPECT_FALSE(MultiHeadAttention().to(DType::bf16));
  EXPECT_FALSE(AttentionBlock().to(DType::bf16));
}

TEST(AnotherType, must_be_a_floating_point_one) {
  EXPECT_EQ(error_of([] { Linear({.in = 3, .out = 2}).to(DType::i8); }),
            "InvalidArgument: linear: the type is i8; it must be f64, f32, bf16 or f16");
  EXPECT_EQ(error_of([] { MultiHeadAttention({.model_dim = 4}).to(DType::i64); }),
            "InvalidArgument: multi_head_attention: the type is i64; it must be f64, f32, bf16 or "
            "f16");
}

}  // namespace
}  // namespace attend::test
