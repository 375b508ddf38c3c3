// Options go through the layer untouched: its heads have the bits of attention() on the
// projections. Then the notes' worked examples, weights by head, and rows that see nothing.
#include "support/attention_layers.h"

#include <attend/option_list.h>

#include <cmath>

namespace attend::test {
namespace {

constexpr std::int64_t kBatch = 2, kLength = 7, kHeads = 4;

// The tensors that the options show.
struct OptionTensors {
  Tensor offset = lengths_tensor({3, -2}), lengths = lengths_tensor({4, 0}),
         packed = lengths_tensor({0, 3, 3, 7});
  Tensor mask, short_mask, bias, blocks, alibi, sinks;

  explicit OptionTensors(DType type)
      : mask({kBatch, 1, kLength, kLength}, DType::boolean), short_mask({5}, DType::u8),
        bias(numbers({kHeads, kLength, kLength}, type, 21)), blocks({1, kHeads, 4, 3}, DType::u8),
        alibi(numbers({kHeads}, type == DType::f64 ? type : DType::f32, 22)),
        sinks(numbers({kHeads}, type == DType::f64 ? type : DType::f32, 23)) {
    for (std::int64_t n = 0; n < mask.count(); ++n) mask.data<bool>()[n] = n % 3 != 0;
    for (std::int64_t n = 0; n < 5; ++n) short_mask.data<std::uint8_t>()[n] = n != 1;
    for (std::int64_t n = 0; n < blocks.count(); ++n) blocks.data<std::uint8_t>()[n] = n % 4 != 1;
  }
};

struct NamedOptions {
  const char* name;
  AttentionOptions options;
};

std::vector<NamedOptions> every_option(const OptionTensors& t) {
  return {
      {"none", {}},
      {"scale", {.scale = 0.3}},
      {"softcap", {.softcap = 0.4}},
      {"bias_before_softcap", {.softcap = 0.4, .bias_before_softcap = true, .bias = t.bias}},
      {"causal", {.causal = true}},
      {"window", {.window = {2, 1}}},
      {"query_offset", {.causal = true, .query_offset = 2}},
      {"query_offset_of_each", {.causal = true, .query_offset = t.offset}},
      {"mask", {.mask = t.mask}},
      {"short_mask", {.mask = t.short_mask}},
      {"bias", {.bias = t.bias}},
      {"alibi", {.alibi = t.alibi}},
      {"sinks", {.sinks = t.sinks}},
      {"blocks", {.blocks = {t.blocks, 2, 3}}},
      {"key_lengths", {.key_lengths = t.lengths}},
      {"dropout", {.dropout = {.p = 0.25, .seed = 5, .offset = 1}}},
      {"many",
       {.softcap = 2,
        .causal = true,
        .window = {4, 0},
        .mask = t.mask,
        .bias = t.bias,
        .alibi = t.alibi,
        .sinks = t.sinks,
        .key_lengths = t.lengths,
        .dropout = {.p = 0.5, .seed = 6}}},
      {"packed", {.causal = true, .cu_seqlens_q = t.packed}},
      {"packed_keys", {.sinks = t.sinks, .cu_seqlens_q = t.packed, .cu_seqlens_k = t.packed}},
  };
}

// Rows [batch, length, heads * d] by heads, by the meaning of the words and not by the library.
Tensor split_heads(const Tensor& x, std::int64_t heads) {
  const ConstTensorView rows(x.view().data(), x.dtype(),
                             {x.size(0), x.size(1), heads, x.size(2) / heads});
  return Tensor::copy_of(rows.permute({0, 2, 1, 3}));
}
Tensor join_heads(const Tensor& x) {
  const Tensor rows = Tensor::copy_of(x.view().permute({0, 2, 1, 3}));
  return Tensor::copy_of(ConstTensorView(rows.view().data(), rows.dtype(),
                                         {x.size(0), x.size(2), x.size(1) * x.size(3)}));
}

TEST(MultiHeadOptions, every_option_has_the_bits_of_attention_on_the_projections) {
  for (const DType type : kFloatTypes) {
    const OptionTensors tensors(type);
    const MultiHeadAttention layer =
        drawn({.model_dim = 12, .heads = kHeads, .key_heads = 2, .d_k = 3, .d_v = 5, .type = type});
    for (const auto& [name, options] : every_option(tensors)) {
      const std::int64_t batch = options.cu_seqlens_q ? 1 : kBatch;
      const Tensor x = numbers({batch, kLength, 12}, type, 24);
      const Tensor heads =
          attention(split_heads(layer.q().forward(x), kHeads), split_heads(layer.k().forward(x), 2),
                    split_heads(layer.v().forward(x), 2), options);
      const Tensor expected = layer.o().forward(join_heads(heads));
      EXPECT_EQ(difference(layer.forward(x, options), expected), "") << name << name_of(type);
      EXPECT_EQ(difference(layer.forward_train(x, options).first, expected), "") << name;
      EXPECT_EQ(difference(layer.trace(x, options).at("output"), expected), "") << name;
    }
  }
}

TEST(MultiHeadOptions, lse_weights_and_scores_come_out) {
  const MultiHeadAttention layer = drawn({.model_dim = 12, .heads = kHeads});
  const Tensor x = numbers({kBatch, kLength, 12}, DType::f32, 25);
  Tensor lse({kBatch, kHeads, kLength}), weights({kBatch, kHeads, kLength, kLength}),
      scores(weights.shape());
  layer.forward(x, {.causal = true}, {.lse = lse, .weights = weights, .scores = scores});
  const Trace trace = layer.trace(x, {.causal = true});
  EXPECT_EQ(difference(lse, trace.at("lse")), "");
  EXPECT_EQ(difference(weights, trace.at("weights")), "");
  EXPECT_EQ(difference(scores, trace.at("masked_scores")), "");
}

// Structs like AttentionOptions with a member more: the list does not name it, wherever it stands.
#define ATTEND_MEMBER(kind, name) decltype(AttentionOptions::name) name{};
struct SameMembers {
  ATTEND_OPTION_LIST(ATTEND_MEMBER)
};
struct OneAtTheEnd {
  ATTEND_OPTION_LIST(ATTEND_MEMBER)
  bool more = false;
};
struct OneInFront {
  TensorOrView more{};
  ATTEND_OPTION_LIST(ATTEND_MEMBER)
};
#undef ATTEND_MEMBER
static_assert(lists_all<SameMembers>());
static_assert(!lists_all<OneAtTheEnd>() && !lists_all<OneInFront>());

// A tensor of every option, none of them sound: only its memory counts.
TEST(MultiHeadOptions, saved_options_copy_every_tensor_of_the_list) {
  const Tensor lent({3}, DType::i64);
  AttentionOptions options{.query_offset = lent};
  for_each_tensor(options, [&](const char*, TensorOrView& tensor) { tensor = lent; });
  const AttentionOptions saved = MultiHeadAttention::SavedOptions(options).view();
  std::vector<std::string> names;
  for_each_tensor(saved, [&](const char* name, const TensorOrView& tensor) {
    names.push_back(name);
    ASSERT_TRUE(tensor) << name;
    EXPECT_NE(tensor.data(), lent.view().data()) << name;
  });
  EXPECT_EQ(names,
            (std::vector<std::string>{"query_offset", "mask", "bias", "alibi", "sinks",
                                      "blocks.visible", "key_lengths", "cu_seqlens_q",
                                      "cu_seqlens_k", "block_table", "k_scales", "v_scales"}));
}

// backward works on copies: what the options showed may be gone or changed by then.
TEST(MultiHeadOptions, saved_options_outlive_the_tensors_they_came_from) {
  const MultiHeadAttention layer =
      drawn({.model_dim = 12, .heads = kHeads, .d_k = 4, .rotary = Rotary{}, .type = DType::f64});
  const Tensor dy = numbers({kBatch, kLength, 12}, DType::f64, 26);
  const OptionTensors kept(DType::f64);
  for (std::size_t n = 0; n < every_option(kept).size(); ++n) {
    auto lent = std::make_unique<OptionTensors>(DType::f64);
    const NamedOptions lent_options = every_option(*lent)[n];
    const bool packed = static_cast<bool>(lent_options.options.cu_seqlens_q);
    Tensor x = numbers({packed ? 1 : kBatch, kLength, 12}, DType::f64, 27);
    const auto dy_view = dy.view().slice(0, 0, x.size(0));
    const auto expected =
        layer.backward(dy_view, layer.forward_train(x, every_option(kept)[n].options).second);
    const auto [y, saved] = layer.forward_train(x, lent_options.options);
    for (Tensor* t : {&lent->mask, &lent->bias, &lent->blocks, &lent->alibi, &lent->sinks,
                      &lent->offset, &lent->lengths, &lent->packed, &lent->short_mask, &x})
      std::memset(t->view().data(), 0, static_cast<std::size_t>(t->count() * size_of(t->dtype())));
    lent.reset();
    const auto found = layer.backward(dy_view, saved);
    EXPECT_EQ(difference(found.dx, expected.dx), "") << lent_options.name;
    EXPECT_EQ(difference(found.dbias, expected.dbias), "") << lent_options.name;
    EXPECT_EQ(difference(found.dsinks, expected.dsinks), "") << lent_options.name;
    EXPECT_EQ(difference(found.dalibi, expected.dalibi), "") << lent_options.name;
    EXPECT_EQ(lists_differ(found.parameters, expected.parameters), "") << lent_options.name;
  }
}

// ---- Rows that see nothing ---------------------------------------------------------------------

// A row of weights without a key is 0, not NaN: its output is the bias of W^O, and neither it nor
// its neighbours spoil a gradient.
TEST(MultiHeadOptions, a_row_that_sees_nothing_gives_the_output_bias_and_finite_gradients) {
  Tensor mask({kBatch, 1, kLength, kLength}, DType::u8), bias({1, kLength, kLength}),
      blocks({kBatch, 1, kLength, 1}, DType::u8);
  for (std::int64_t n = 0; n < mask.count(); ++n)
    mask.data<std::uint8_t>()[n] = n / kLength % kLength != 2;
  for (std::int64_t n = 0; n < blocks.count(); ++n)
    blocks.data<std::uint8_t>()[n] = n % kLength != 2;
  for (std::int64_t j = 0; j < kLength; ++j) bias.at<float>({0, 2, j}) = -INFINITY;
  const Tensor lengths = lengths_tensor({0, 0});
  const std::vector<NamedOptions> all = {{"mask", {.mask = mask}},
                                         {"bias", {.bias = bias}},
                                         {"blocks", {.blocks = {blocks, 1, kLength}}},
                                         {"key_lengths", {.key_lengths = lengths}},
                                         {"causal", {.causal = true, .query_offset = -3}}};
  for (const bool rotary : {false, true}) {
    const MultiHeadAttention layer = drawn(
        {.model_dim = 12, .heads = 3, .rotary = rotary ? std::optional(Rotary{}) : std::nullopt});
    const Tensor x = numbers({kBatch, kLength, 12}, DType::f32, 28);
    for (const auto& [name, options] : all) {
      const auto [y, saved] = layer.forward_train(x, options);
      for (std::int64_t b = 0; b < kBatch; ++b)
        for (std::int64_t n = 0; n < 12; ++n)
          EXPECT_EQ(y.at<float>({b, 2, n}), layer.o().bias().at<float>({n})) << name;
      EXPECT_TRUE(all_finite(y)) << name;
      const MultiHeadAttention::Gradients g = layer.backward(y, saved);
      EXPECT_TRUE(all_finite(g.dx)) << name;
      EXPECT_TRUE(!g.dbias || all_finite(g.dbias)) << name;
      for (const NamedTensor& p : g.parameters)
        EXPECT_TRUE(all_finite(p.tensor)) << name << " " << p.name;
    }
  }
}

// ---- Worked examples ---------------------------------------------------------------------------

void expect_values(const ConstTensorView& found, const std::vector<double>& values) {
  const Tensor list = Tensor::copy_of(found);
  ASSERT_EQ(list.count(), static_cast<std::int64_t>(values.size()));
  for (std::size_t n = 0; n < values.size(); ++n)
    EXPECT_NEAR(element(list, static_cast<std::int64_t>(n)), values[n], 5.1e-8) << n;
}

// Q, K and V are given in the note: projections that change nothing, and no W^O.
TEST(MultiHeadExamples, the_single_head_of_two_tokens) {
  const auto identity = [] { return Linear(Tensor({1.0, 0.0, 0.0, 1.0}, {2, 2})); };
  const MultiHeadAttention layer(
      {.model_dim = 2, .bias = false, .output_projection = false, .type = DType::f64}, identity(),
      identity(), identity(), Linear());
  EXPECT_FALSE(layer.options().output_projection);
  const Tensor q({1.0, 3.0, 2.0, 0.5}, {2, 2}), k({0.5, 2.0, 1.0, 3.0}, {2, 2}),
      v({0.0, 4.0, 1.0, 2.0}, {2, 2});
  const Trace trace = layer.trace(q, k, v);
  expect_values(trace.at("scores"), {6.5, 10, 2, 3.5});
  expect_values(trace.at("scaled_scores"), {4.5961941, 7.0710678, 1.4142136, 2.4748737});
  expect_values(trace.at("weights"), {0.0776385, 0.9223615, 0.2571833, 0.7428167});
  expect_values(layer.forward(q, k, v), {0.9223615, 2.1552770, 0.7428167, 2.5143666});
}

// The rows of a matrix in the notes' orientation, y = x W, become columns here.
Tensor transposed(const Tensor& w) { return Tensor::copy_of(w.view().permute({1, 0})); }

TEST(MultiHeadExamples, two_heads_from_their_own_matrices) {
  const Tensor x({1.0, 0.5, -1.0, 2.0, -0.5, 1.0, 0.3, -2.0}, {2, 4});
  const Tensor w1 = transposed(Tensor({0.1, 0.4, -0.2, 0.3, 1.0, -0.5, 0.5, 0.2}, {4, 2}));
  const Tensor w2 = transposed(Tensor({-0.3, 0.2, 1.1, 0.6, -0.4, 0.8, 0.7, -0.1}, {4, 2}));
  const Tensor w_o(
      {0.5, -0.2, 1.1, 0.3, 0.1, 0.8, -0.4, 0.6, -0.3, 0.7, 0.2, 1.0, 0.9, -0.5, 0.3, -0.8},
      {4, 4});
  const auto o_of = [&](std::int64_t h) {
    return transposed(Tensor::copy_of(w_o.view().slice(0, 2 * h, 2 * h + 2)));
  };
  const MultiHeadAttention layer = MultiHeadAttention::join(
      {.model_dim = 4, .heads = 2, .type = DType::f64},
      {{.q = w1, .k = w2, .v = w1, .o = o_of(0), .q_bias = {}, .k_bias = {}, .v_bias = {}},
       {.q = w2, .k = w1, .v = w2, .o = o_of(1), .q_bias = {}, .k_bias = {}, .v_bias = {}}});
  EXPECT_FALSE(layer.options().bias);
  const Trace trace = layer.trace(x);
  expect_values(trace.at("q_heads"), {0, 1.45, -0.95, -0.45, 2.05, -0.5, -0.27, 0.94});
  expect_values(trace.at("weights"), {0.1859659, 0.8140341, 0.2496915, 0.7503085,    // A1
                                      0.6693704, 0.3306296, 0.7467815, 0.2532185});  // A2
  expect_values(trace.at("concat"), {-0.7733324, -0.0966648, 1.2829394, -0.0238934, -0.7127930,
                                     0.0244139, 1.4625331, -0.1353653});
  expect_values(layer.forward(x), {-0.8027186, 0.9873389, -0.5625799, 1.0120556, -0.9145439,
                                   1.2535455, -0.5419409, 1.3716358});
}

// ---- Weights by head, and all in one -----------------------------------------------------------

TEST(MultiHeadWeights, split_and_join_give_the_same_bits) {
  for (const bool bias : {true, false})
    for (const bool output : {true, false})
      for (const std::int64_t key_heads : {6, 3, 1}) {
        const MultiHeadAttention layer = drawn({.model_dim = 8,
                                                .heads = 6,
                                                .key_heads = key_heads,
                                                .d_k = 3,
                                                .d_v = 5,
                                                .key_dim = 7,
                                                .value_dim = 9,
                                                .bias = bias,
                                                .output_projection = output,
                                                .type = DType::bf16});
        const auto heads = layer.split();
        ASSERT_EQ(heads.size(), 6U);
        EXPECT_EQ(difference(heads[4].q, layer.q().weight().view().slice(0, 12, 15)), "");
        const std::int64_t shared = 4 / (6 / key_heads);
        EXPECT_EQ(
            difference(heads[4].v, layer.v().weight().view().slice(0, 5 * shared, 5 * shared + 5)),
            "");
        const auto joined =
            MultiHeadAttention::join(layer.options(), heads, output ? layer.o().bias() : Tensor());
        EXPECT_EQ(lists_differ(joined.parameters(), layer.parameters()), "")
            << "key_heads " << key_heads << " bias " << bias << " output " << output;
      }
}

TEST(MultiHeadWeights, one_head_without_a_bias_has_a_bias_of_zeros) {
  const MultiHeadAttention layer = drawn({.model_dim = 8, .heads = 2});
  auto heads = layer.split();
  heads[1].q_bias = Tensor();
  const auto joined = MultiHeadAttention::join(layer.options(), heads, layer.o().bias());
  for (std::int64_t n = 0; n < 8; ++n)
    EXPECT_EQ(joined.q().bias().at<float>({n}), n < 4 ? layer.q().bias().at<float>({n}) : 0);
}

TEST(MultiHeadWeights, heads_of_a_group_must_share_their_keys) {
  const MultiHeadAttention layer = drawn({.model_dim = 8, .heads = 4, .key_heads = 2});
  for (Tensor MultiHeadAttention::HeadWeights::*part :
       {&MultiHeadAttention::HeadWeights::k, &MultiHeadAttention::HeadWeights::v,
        &MultiHeadAttention::HeadWeights::k_bias, &MultiHeadAttention::HeadWeights::v_bias}) {
    auto heads = layer.split();
    (heads[3].*part).data<float>()[0] += 1;
    EXPECT_EQ(
        error_of([&] { MultiHeadAttention::join(layer.options(), heads); }),
        "InvalidArgument: multi_head_attention: heads 2 and 3 share a key head, but their k or "
        "v differ");
  }
}

// One product with W^Q, W^K and W^V below each other gives the bits of three.
TEST(MultiHeadWeights, a_fused_projection_has_the_bits_of_separate_ones) {
  const MultiHeadAttention layer = drawn({.model_dim = 24, .heads = 4, .key_heads = 2, .d_v = 3});
  Tensor weight({24 + 12 + 6, 24}), bias({42});
  std::int64_t row = 0;
  for (const Linear* part : {&layer.q(), &layer.k(), &layer.v()})
    for (std::int64_t n = 0; n < part->out(); ++n, ++row) {
      std::copy_n(part->weight().data<float>() + n * 24, 24, weight.data<float>() + row * 24);
      bias.data<float>()[row] = part->bias().data<float>()[n];
    }
  const Tensor x = numbers({2, 9, 24}, DType::f32, 29);
  const Tensor fused = Linear(weight, bias).forward(x);
  EXPECT_EQ(difference(layer.q().forward(x), fused.view().slice(2, 0, 24)), "");
  EXPECT_EQ(difference(layer.k().forward(x), fused.view().slice(2, 24, 36)), "");
  EXPECT_EQ(difference(layer.v().forward(x), fused.view().slice(2, 36, 42)), "");
}

TEST(MultiHeadWeights, the_output_is_the_sum_of_contributions_and_the_bias) {
  const MultiHeadAttention layer =
      drawn({.model_dim = 10, .heads = 4, .d_k = 3, .type = DType::f64});
  const Trace trace = layer.trace(numbers({2, 5, 10}, DType::f64, 30));
  Tensor sum({2, 5, 10}, DType::f64);
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t i = 0; i < 5; ++i)
      for (std::int64_t n = 0; n < 10; ++n) {
        sum.at<double>({b, i, n}) = layer.o().bias().at<double>({n});
        for (std::int64_t h = 0; h < 4; ++h)
          sum.at<double>({b, i, n}) += trace.at("contributions").at<double>({b, h, i, n});
      }
  EXPECT_LT(largest_difference(trace.at("output"), sum), 1e-15);
}

TEST(MultiHeadHeads, are_those_of_the_trace_and_their_contributions_its_norms) {
  const MultiHeadAttention layer = drawn({.model_dim = 10,
                                          .heads = 4,
                                          .key_heads = 2,
                                          .d_k = 4,
                                          .rotary = Rotary{},
                                          .type = DType::f64});
  const Tensor x = numbers({2, 5, 10}, DType::f64, 31),
               memory = numbers({2, 7, 10}, DType::f64, 32);
  const Trace trace = layer.trace(x, memory, memory, {.causal = true});
  const MultiHeadAttention::Heads heads = layer.heads(x, memory, memory, {.causal = true});
  EXPECT_EQ(difference(heads.q, trace.at("q_heads")), "");
  EXPECT_EQ(difference(heads.k, trace.at("k_heads")), "");
  EXPECT_EQ(difference(heads.v, trace.at("v_heads")), "");
  const Statistics statistics = layer.inspect(x, memory, memory, {.causal = true}, {.top_k = 2});
  EXPECT_LT(largest_difference(statistics.lse, trace.at("lse")), 1e-12);
  EXPECT_EQ(statistics.top_keys.shape(), (Shape{2, 4, 5, 2}));
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t h = 0; h < 4; ++h) {
      double mean = 0;
      for (std::int64_t i = 0; i < 5; ++i) {
        double squares = 0;
        for (std::int64_t n = 0; n < 10; ++n)
          squares += std::pow(trace.at("contributions").at<double>({b, h, i, n}), 2);
        mean += std::sqrt(squares) / 5;
      }
      const auto at = static_cast<std::size_t>(4 * b + h);
      EXPECT_NEAR(heads.contribution[at], mean, 1e-14);
      EXPECT_EQ(statistics.heads[at].contribution, heads.contribution[at]);
    }
  const MultiHeadAttention bare = drawn({.model_dim = 8, .heads = 2, .output_projection = false});
  EXPECT_GT(bare.heads(numbers({3, 8}, DType::f32, 33)).contribution[1], 0);
}

}  // namespace
}  // namespace attend::test
