// Gradients of multi-head attention at every parameter, input and option, by central differences.
#include "support/attention_layers.h"
#include "support/layer_gradients.h"

namespace attend::test {
namespace {

constexpr std::int64_t kBatch = 2, kQueries = 4, kKeys = 5;

struct Case {
  const char* name;
  MultiHeadAttentionOptions layer;
  AttentionOptions options{};
  bool cross = false, batched = true;
};

// The tensors that the options of the cases show, of 4 heads. bias, sinks and alibi are checked
// too.
struct OptionTensors {
  Tensor bias = numbers({1, 4, kQueries, kQueries}, DType::f64, 31),
         short_bias = numbers({kBatch, 1, 1, 3}, DType::f64, 32),
         sinks = numbers({4}, DType::f64, 33), alibi = numbers({4}, DType::f64, 34);
  Tensor mask{{kBatch, 4, kQueries, kQueries}, DType::u8}, blocks{{2, 2}, DType::u8};
  Tensor lengths = lengths_tensor({3, 0}), packed = lengths_tensor({0, 1, 1, 4}),
         packed_keys = lengths_tensor({0, 2, 2, 5}), offsets = lengths_tensor({2, -1});
  OptionTensors() {
    for (std::int64_t n = 0; n < mask.count(); ++n)  // row 1 sees nothing
      mask.data<std::uint8_t>()[n] = n % 3 != 0 && n / kQueries % kQueries != 1;
    blocks.data<std::uint8_t>()[0] = blocks.data<std::uint8_t>()[3] = 1;
  }
};

std::vector<Case> cases(const OptionTensors& t) {
  constexpr DType f64 = DType::f64;
  const Rotary halves{.base = 10}, neighbours{.pairing = Rotary::Pairing::neighbours, .base = 10};
  const MultiHeadAttentionOptions plain{.model_dim = 8, .heads = 4, .type = f64},
      grouped{.model_dim = 6, .heads = 4, .key_heads = 2, .d_k = 2, .d_v = 3, .type = f64};
  const auto rotary = [&](const Rotary& r) {
    MultiHeadAttentionOptions options = grouped;
    options.rotary = r;
    return options;
  };
  MultiHeadAttentionOptions no_bias = grouped, no_output = grouped, widths = grouped;
  no_bias.bias = no_output.output_projection = false;
  widths.key_dim = 5;
  widths.value_dim = 7;
  MultiHeadAttentionOptions partly = rotary(halves);
  partly.d_k = 4;
  partly.rotary->dim = 2;
  return {
      {"plain", plain},
      {"grouped", grouped, {.causal = true}},
      {"no_bias", no_bias},
      {"no_output_projection", no_output},
      {"cross", plain, {}, true},
      {"cross_widths", widths, {}, true},
      {"halves", rotary(halves), {.causal = true}},
      {"neighbours", rotary(neighbours), {.causal = true}},
      {"partly_rotary", partly},
      {"rotary_cross", rotary(neighbours), {.query_offset = t.offsets}, true},
      {"rotary_packed", rotary(halves), {.cu_seqlens_q = t.packed}, false, false},
      {"packed", grouped, {.causal = true, .cu_seqlens_q = t.packed}, false, false},
      {"packed_cross",
       widths,
       {.cu_seqlens_q = t.packed, .cu_seqlens_k = t.packed_keys},
       true,
       false},
      {"without_batch", grouped, {}, false, false},
      {"without_batch_cross", widths, {}, true, false},
      {"key_lengths", rotary(halves), {.key_lengths = t.lengths}},
      {"dropout", plain, {.dropout = {.p = 0.4, .seed = 3}}},
      {"softcap", grouped, {.softcap = 0.3}},
      {"scale", grouped, {.scale = 2}},
      {"mask", plain, {.mask = t.mask}},
      {"blocks", plain, {.blocks = {t.blocks, 2, 2}}},
      {"window", grouped, {.window = {1, 1}}},
      {"bias", plain, {.bias = t.bias}},
      {"short_bias", plain, {.bias = t.short_bias}},
      {"bias_before_softcap", plain, {.softcap = 0.5, .bias_before_softcap = true, .bias = t.bias}},
      {"sinks", grouped, {.causal = true, .sinks = t.sinks}},
      {"alibi", rotary(halves), {.causal = true, .alibi = t.alibi}},
      {"all_hidden", grouped, {.causal = true, .query_offset = -9}},
      {"many",
       rotary(neighbours),
       {.softcap = 2,
        .causal = true,
        .mask = t.mask,
        .bias = t.bias,
        .alibi = t.alibi,
        .sinks = t.sinks,
        .key_lengths = t.lengths,
        .dropout = {.p = 0.25, .seed = 4}}},
  };
}

Tensor input(bool batched, std::int64_t length, std::int64_t width, unsigned seed) {
  const Shape shape = batched ? Shape{kBatch, length, width} : Shape{length, width};
  return numbers(shape, DType::f64, seed);
}

// Differences of the whole case, with the gradients that backward gave.
GradientCheck check(const Case& c, OptionTensors& tensors) {
  MultiHeadAttention layer = drawn(c.layer);
  const MultiHeadAttentionOptions& o = layer.options();
  Tensor query = input(c.batched, kQueries, o.model_dim, 41);
  Tensor key = input(c.batched, kKeys, o.key_dim, 42),
         value = input(c.batched, kKeys, o.value_dim, 43);
  const auto trained = [&] {
    return c.cross ? layer.forward_train(query, key, value, c.options)
                   : layer.forward_train(query, c.options);
  };
  const auto [y, saved] = trained();
  const Tensor dy = numbers(y.shape(), DType::f64, 44);
  MultiHeadAttention::Gradients g = layer.backward(dy, saved);
  std::vector<Differentiated> all = paired(layer.writable_parameters(), g.parameters);
  if (c.cross) {
    EXPECT_FALSE(g.dx);
    all.push_back({"query", query, g.dquery});
    all.push_back({"key", key, g.dkey});
    all.push_back({"value", value, g.dvalue});
  } else {
    EXPECT_FALSE(g.dquery || g.dkey || g.dvalue);
    all.push_back({"x", query, g.dx});
  }
  const auto option = [&](const char* name, const ConstTensorView& given, Tensor& tensor,
                          const Tensor& gradient) {
    EXPECT_EQ(static_cast<bool>(given), static_cast<bool>(gradient)) << name;
    if (given && given.data() == tensor.view().data()) all.push_back({name, tensor, gradient});
  };
  option("bias", c.options.bias, tensors.bias, g.dbias);
  option("bias", c.options.bias, tensors.short_bias, g.dbias);
  option("sinks", c.options.sinks, tensors.sinks, g.dsinks);
  option("alibi", c.options.alibi, tensors.alibi, g.dalibi);
  return check_gradients([&] { return weighted_sum(trained().first, dy); }, all);
}

TEST(MultiHeadGradient, is_what_differences_say) {
  OptionTensors tensors;
  for (const Case& c : cases(tensors)) {
    const GradientCheck found = check(c, tensors);
    EXPECT_EQ(found.failures, "") << c.name;
    const bool hidden = std::string_view(c.name) == "all_hidden";  // only the bias of W^O matters
    EXPECT_GT(found.noticing, hidden ? 5 : found.differences / 2) << c.name;
  }
}

// Gradients have the names and the order of the parameters, also where a part is missing.
TEST(MultiHeadGradient, parameters_keep_their_names) {
  const MultiHeadAttention layer = drawn({.model_dim = 8, .heads = 2, .output_projection = false});
  const Tensor x = numbers({2, 3, 8}, DType::f32, 45);
  const auto g = layer.backward(x, layer.forward_train(x).second);
  std::string names;
  for (const NamedTensor& p : g.parameters) names += p.name + " ";
  EXPECT_EQ(names, "q.weight q.bias k.weight k.bias v.weight v.bias ");
}

TEST(MultiHeadGradient, is_of_the_layers_type_and_near_the_f64_one) {
  for (const DType type : kFloatTypes) {
    const MultiHeadAttentionOptions options{
        .model_dim = 8, .heads = 4, .key_heads = 2, .rotary = Rotary{}, .type = type};
    const MultiHeadAttention layer = drawn(options);
    MultiHeadAttentionOptions wide = options;
    wide.type = DType::f64;
    MultiHeadAttention exact = drawn(wide);
    load_parameters({[&] {
                       std::vector<NamedTensor> list;
                       for (const NamedView& p : layer.parameters())
                         list.push_back({p.name, Tensor::copy_of(p.tensor)});
                       return list;
                     }(),
                     {},
                     {}},
                    exact.writable_parameters());
    const Tensor x = numbers({2, 5, 8}, type, 46), x_exact = numbers({2, 5, 8}, DType::f64, 46);
    const auto g = layer.backward(x, layer.forward_train(x, {.causal = true}).second);
    const auto e = exact.backward(x_exact, exact.forward_train(x_exact, {.causal = true}).second);
    const double allowed = type == DType::f64 ? 0 : type == DType::f32 ? 1e-5 : 0.1;
    EXPECT_EQ(g.dx.dtype(), type);
    EXPECT_LE(largest_difference(g.dx, e.dx), allowed) << name_of(type);
    for (std::size_t n = 0; n < g.parameters.size(); ++n) {
      EXPECT_EQ(g.parameters[n].tensor.dtype(), type);
      EXPECT_LE(largest_difference(g.parameters[n].tensor, e.parameters[n].tensor), allowed)
          << g.parameters[n].name << " " << name_of(type);
    }
  }
}

// dy, like every input, may have any strides.
TEST(MultiHeadGradient, no_stride_changes_a_bit) {
  const MultiHeadAttention layer = drawn({.model_dim = 8, .heads = 4, .key_dim = 6});
  const Tensor x = numbers({2, 5, 8}, DType::f32, 47), m = numbers({2, 3, 6}, DType::f32, 48),
               dy = numbers({2, 5, 8}, DType::f32, 49);
  Scattered sx(x), sm(m), sdy(dy);
  const auto expected = layer.backward(dy, layer.forward_train(x, m, m).second);
  const auto found =
      layer.backward(sdy.view(), layer.forward_train(sx.view(), sm.view(), sm.view()).second);
  EXPECT_EQ(difference(found.dquery, expected.dquery), "");
  EXPECT_EQ(difference(found.dkey, expected.dkey), "");
  EXPECT_EQ(difference(found.dvalue, expected.dvalue), "");
  EXPECT_EQ(lists_differ(found.parameters, expected.parameters), "");
}

TEST(MultiHeadGradient, foreign_tensors_are_refused) {
  const MultiHeadAttention layer = drawn({.model_dim = 8, .heads = 2});
  const MultiHeadAttention other = drawn({.model_dim = 8, .heads = 2, .d_k = 3});
  const Tensor x = numbers({2, 3, 8}, DType::f32, 50);
  const auto [y, saved] = layer.forward_train(x);
  const std::string start = "InvalidArgument: multi_head_attention: ";
  EXPECT_EQ(error_of([&, &s = saved] { other.backward(x, s); }),
            start + "saved is not from this layer's forward_train");
  EXPECT_EQ(error_of([&] { layer.backward(x, {}); }),
            start + "saved is not from this layer's forward_train");
  EXPECT_EQ(error_of([&, &s = saved] { layer.backward({}, s); }), start + "dy is missing");
  EXPECT_EQ(error_of([&, &s = saved] {
              layer.backward(Tensor({2, 3, 8}, DType::f64), s);
            }),
            start + "dy is f64, the layer is f32");
}

}  // namespace
}  // namespace attend::test
