// Traces: which steps there are and what they say, their values against their formulas, and that
// looking changes no bit.
#include "support/attention_layers.h"

#include <attend/block.h>

namespace attend::test {
namespace {

std::string listed(const Trace& trace) {
  std::string list;
  for (const TraceStep& s : trace.steps)
    list += s.name + " " + to_string(s.value.shape()) + " (" + s.axes + "): " + s.formula + "\n";
  return list;
}

std::string names(const Trace& trace) {
  std::string list;
  for (const TraceStep& s : trace.steps) list += (list.empty() ? "" : " ") + s.name;
  return list;
}

MultiHeadAttention layer_of(DType type = DType::f64) {
  return drawn({.model_dim = 10,
                .heads = 4,
                .key_heads = 2,
                .d_k = 2,
                .d_v = 3,
                .key_dim = 6,
                .value_dim = 7,
                .type = type});
}
struct Inputs {
  explicit Inputs(DType type = DType::f64)
      : query(numbers({2, 5, 10}, type, 1)), key(numbers({2, 8, 6}, type, 2)),
        value(numbers({2, 8, 7}, type, 3)) {}
  Tensor query, key, value;
};

TEST(Trace, says_what_every_step_is) {
  const Inputs in;
  EXPECT_EQ(listed(layer_of().trace(in.query, in.key, in.value)),
            R"(q [2, 5, 8] (batch, token, feature): query W^Q + b
k [2, 8, 4] (batch, token, feature): key W^K + b
v [2, 8, 6] (batch, token, feature): value W^V + b
q_heads [2, 4, 5, 2] (batch, head, token, feature): Q split into heads
k_heads [2, 2, 8, 2] (batch, head, token, feature): K split into heads
v_heads [2, 2, 8, 3] (batch, head, token, feature): V split into heads
scores [2, 4, 5, 8] (batch, head, query, key): Q K^T
scaled_scores [2, 4, 5, 8] (batch, head, query, key): scores / sqrt(d_k)
masked_scores [2, 4, 5, 8] (batch, head, query, key): with bias; -inf where hidden
lse [2, 4, 5] (batch, head, query): log sum exp(masked_scores)
weights [2, 4, 5, 8] (batch, head, query, key): softmax(masked_scores)
heads [2, 4, 5, 3] (batch, head, token, feature): weights V
concat [2, 5, 12] (batch, token, feature): heads side by side
contributions [2, 4, 5, 10] (batch, head, token, feature): head_h W^O_h
output [2, 5, 10] (batch, token, feature): concat W^O + b = sum of contributions + b
)");
}

TEST(Trace, says_what_options_change) {
  const MultiHeadAttention layer =
      drawn({.model_dim = 8, .heads = 2, .output_projection = false, .rotary = Rotary{}});
  EXPECT_EQ(listed(layer.trace(numbers({3, 8}, DType::f32, 4), {.scale = 2, .softcap = 5})),
            R"(q [3, 8] (token, feature): query W^Q + b
k [3, 8] (token, feature): key W^K + b
v [3, 8] (token, feature): value W^V + b
q_heads [1, 2, 3, 4] (batch, head, token, feature): Q split into heads, rotated to its position
k_heads [1, 2, 3, 4] (batch, head, token, feature): K split into heads, rotated to its position
v_heads [1, 2, 3, 4] (batch, head, token, feature): V split into heads
scores [1, 2, 3, 3] (batch, head, query, key): Q K^T
scaled_scores [1, 2, 3, 3] (batch, head, query, key): scale * scores
softcapped_scores [1, 2, 3, 3] (batch, head, query, key): softcap * tanh(scaled_scores / softcap)
masked_scores [1, 2, 3, 3] (batch, head, query, key): with bias; -inf where hidden
lse [1, 2, 3] (batch, head, query): log sum exp(masked_scores)
weights [1, 2, 3, 3] (batch, head, query, key): softmax(masked_scores)
heads [1, 2, 3, 4] (batch, head, token, feature): weights V
concat [3, 8] (token, feature): heads side by side
output [3, 8] (token, feature): concat
)");
}

// Each step from the steps before it.
TEST(Trace, scales_of_keys_and_values_are_in_the_formulas) {
  const MultiHeadAttention layer = layer_of();
  const Inputs in;
  const Tensor k_scales = numbers({2, 2, 8}, DType::f32, 5),
               v_scales = numbers({2, 2, 8}, DType::f32, 6);
  const auto formula = [](const Trace& t, const char* name) {
    for (const TraceStep& step : t.steps)
      if (step.name == name) return step.formula;
    return std::string();
  };
  const Trace t =
      layer.trace(in.query, in.key, in.value, {.k_scales = k_scales, .v_scales = v_scales});
  EXPECT_EQ(formula(t, "scores"), "Q (k_scales K)^T");
  EXPECT_EQ(formula(t, "heads"), "weights (v_scales V)");
  const Trace one = layer.trace(in.query, in.key, in.value, {.v_scales = v_scales});
  EXPECT_EQ(formula(one, "scores"), "Q K^T");
  const Trace alone =
      trace_attention(t.at("q_heads"), t.at("k_heads"), t.at("v_heads"), {.k_scales = k_scales});
  EXPECT_EQ(formula(alone, "scores"), "Q (k_scales K)^T");
  EXPECT_EQ(formula(alone, "heads"), "weights V");
  const auto at = [&](const char* name, const Shape& index) { return value(t.at(name), index); };
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t h = 0; h < 4; ++h)
      for (std::int64_t i = 0; i < 5; ++i) {
        for (std::int64_t j = 0; j < 8; ++j) {
          double score = 0;
          for (std::int64_t c = 0; c < 2; ++c)
            score += at("q_heads", {b, h, i, c}) * at("k_heads", {b, h / 2, j, c}) *
                     static_cast<double>(k_scales.at<float>({b, h / 2, j}));
          EXPECT_NEAR(at("scores", {b, h, i, j}), score, 4e-15);
        }
        for (std::int64_t e = 0; e < 3; ++e) {
          double head = 0;
          for (std::int64_t j = 0; j < 8; ++j)
            head += at("weights", {b, h, i, j}) * at("v_heads", {b, h / 2, j, e}) *
                    static_cast<double>(v_scales.at<float>({b, h / 2, j}));
          EXPECT_NEAR(at("heads", {b, h, i, e}), head, 4e-15);
        }
      }
}

TEST(Trace, values_follow_their_formulas) {
  const MultiHeadAttention layer = layer_of();
  const Inputs in;
  Tensor mask({2, 4, 5, 8}, DType::u8);
  for (std::int64_t n = 0; n < mask.count(); ++n)
    mask.data<std::uint8_t>()[n] = n % 5 != 0 && n / 8 % 5 != 3;  // query 3 sees nothing
  const Tensor bias = numbers({5, 8}, DType::f64, 5);
  const Trace t =
      layer.trace(in.query, in.key, in.value, {.softcap = 0.5, .mask = mask, .bias = bias});
  EXPECT_EQ(difference(t.at("q"), layer.q().forward(in.query)), "");
  EXPECT_EQ(difference(t.at("k"), layer.k().forward(in.key)), "");
  EXPECT_EQ(difference(t.at("v"), layer.v().forward(in.value)), "");
  const auto at = [&](const char* name, const Shape& index) { return value(t.at(name), index); };
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t h = 0; h < 4; ++h)
      for (std::int64_t i = 0; i < 5; ++i) {
        double sum = 0;
        for (std::int64_t j = 0; j < 8; ++j) {
          double score = 0;
          for (std::int64_t c = 0; c < 2; ++c) {
            EXPECT_EQ(at("q_heads", {b, h, i, c}), at("q", {b, i, 2 * h + c}));
            EXPECT_EQ(at("k_heads", {b, h / 2, j, c}), at("k", {b, j, 2 * (h / 2) + c}));
            score += at("q", {b, i, 2 * h + c}) * at("k", {b, j, 2 * (h / 2) + c});
          }
          const Shape pair{b, h, i, j};
          EXPECT_NEAR(at("scores", pair), score, 4e-15);
          EXPECT_NEAR(at("scaled_scores", pair), at("scores", pair) / std::sqrt(2), 4e-15);
          EXPECT_NEAR(at("softcapped_scores", pair),
                      0.5 * std::tanh(at("scaled_scores", pair) / 0.5), 4e-15);
          if (mask.at<std::uint8_t>(pair) == 0) {
            EXPECT_EQ(at("masked_scores", pair), -INFINITY);
            EXPECT_EQ(at("weights", pair), 0);
            continue;
          }
          EXPECT_NEAR(at("masked_scores", pair),
                      at("softcapped_scores", pair) + bias.at<double>({i, j}), 4e-15);
          EXPECT_NEAR(at("weights", pair),
                      std::exp(at("masked_scores", pair) - at("lse", {b, h, i})), 4e-15);
          sum += std::exp(at("masked_scores", pair));
        }
        if (i == 3) EXPECT_EQ(at("lse", {b, h, i}), -INFINITY);
        else EXPECT_NEAR(at("lse", {b, h, i}), std::log(sum), 1e-14);
        for (std::int64_t e = 0; e < 3; ++e) {
          double head = 0;
          for (std::int64_t j = 0; j < 8; ++j)
            head += at("weights", {b, h, i, j}) * at("v", {b, j, 3 * (h / 2) + e});
          EXPECT_NEAR(at("heads", {b, h, i, e}), head, 4e-15);
          EXPECT_EQ(at("concat", {b, i, 3 * h + e}), at("heads", {b, h, i, e}));
        }
        for (std::int64_t n = 0; n < 10; ++n) {
          double contribution = 0;
          for (std::int64_t e = 0; e < 3; ++e)
            contribution += at("heads", {b, h, i, e}) * value(layer.o().weight(), {n, 3 * h + e});
          EXPECT_NEAR(at("contributions", {b, h, i, n}), contribution, 4e-15);
        }
      }
  EXPECT_EQ(difference(t.at("output"), layer.o().forward(t.at("concat"))), "");
}

TEST(Trace, looking_changes_no_bit) {
  for (const DType type : kFloatTypes) {
    const MultiHeadAttention layer = layer_of(type);
    const Inputs in(type);
    const AttentionOptions options{.softcap = 1, .causal = true, .dropout = {.p = 0.5, .seed = 1}};
    const Trace t = layer.trace(in.query, in.key, in.value, options);
    EXPECT_EQ(difference(t.at("output"), layer.forward(in.query, in.key, in.value, options)), "");
    EXPECT_EQ(t.at("weights").dtype(), type == DType::f64 ? DType::f64 : DType::f32);
    const Trace bare = trace_attention(t.at("q_heads"), t.at("k_heads"), t.at("v_heads"), options);
    EXPECT_EQ(names(bare),
              "scores scaled_scores softcapped_scores masked_scores lse weights heads");
    for (const TraceStep& step : bare.steps)
      EXPECT_EQ(difference(step.value, t.at(step.name)), "") << step.name << " " << name_of(type);
    EXPECT_EQ(difference(bare.at("heads"),
                         attention(t.at("q_heads"), t.at("k_heads"), t.at("v_heads"), options)),
              "");
  }
}

TEST(Trace, packed_sequences_have_scores_of_their_own) {
  const MultiHeadAttention layer = drawn({.model_dim = 8, .heads = 2});
  const Tensor x = numbers({1, 7, 8}, DType::f32, 6), cu = lengths_tensor({0, 4, 4, 7});
  const Trace t = layer.trace(x, {.causal = true, .cu_seqlens_q = cu});
  EXPECT_EQ(t.at("weights").shape(), (Shape{3, 2, 4, 4}));
  const Trace first = layer.trace(x.view().slice(1, 0, 4), {.causal = true});
  EXPECT_EQ(difference(t.at("weights").view().slice(0, 0, 1), first.at("weights")), "");
  EXPECT_EQ(difference(t.at("output"), layer.forward(x, {.causal = true, .cu_seqlens_q = cu})), "");
}

TEST(Trace, of_a_block_has_the_steps_of_its_parts) {
  const std::string attention =
      "q k v q_heads k_heads v_heads scores scaled_scores masked_scores lse "
      "weights heads concat contributions output ";
  const auto under = [](const std::string& prefix, std::string list) {
    std::string result;
    for (std::size_t end; (end = list.find(' ')) != std::string::npos; list.erase(0, end + 1))
      result += prefix + "." + list.substr(0, end) + " ";
    return result;
  };
  const auto traced = [](NormPlacement placement, bool cross) {
    AttentionBlock block({.attention = {.model_dim = 8, .heads = 2},
                          .cross = cross,
                          .hidden_dim = 5,
                          .placement = placement});
    draw_parameters(block, 7);
    const Tensor x = numbers({2, 3, 8}, DType::f32, 8);
    Trace trace = block.trace(x, cross ? x.view() : ConstTensorView());
    EXPECT_EQ(difference(trace.at("output"), cross ? block.forward(x, x) : block.forward(x)), "");
    return trace;
  };
  const Trace post = traced(NormPlacement::post, true);
  EXPECT_EQ(names(post), under("attention", attention) + "residual_1 norm_1 " +
                             under("cross", attention) +
                             "residual_2 norm_2 feed_forward residual_3 norm_3 output");
  EXPECT_EQ(difference(post.at("norm_3"), post.at("output")), "");
  const Trace pre = traced(NormPlacement::pre, false);
  EXPECT_EQ(names(pre), "norm_1 " + under("attention", attention) +
                            "residual_1 norm_3 feed_forward residual_3 output");
  EXPECT_EQ(difference(pre.at("residual_3"), pre.at("output")), "");
  EXPECT_EQ(names(traced(NormPlacement::none, false)),
            under("attention", attention) + "residual_1 feed_forward residual_3 output");
  for (const TraceStep& step : pre.steps) EXPECT_FALSE(step.axes.empty() || step.formula.empty());
}

// The shape that attention() itself demands of weights, in every kind of call.
TEST(WeightsShape, is_what_the_call_takes) {
  const Tensor q = numbers({2, 4, 5, 3}, DType::f32, 1), k = numbers({2, 2, 7, 3}, DType::f32, 2);
  const Tensor packed_q = numbers({1, 4, 9, 3}, DType::f32, 3),
               packed_k = numbers({1, 2, 11, 3}, DType::f32, 4),
               pages = numbers({6, 2, 4, 3}, DType::f32, 5);
  const Tensor cu_q = lengths_tensor({0, 4, 9}), cu_k = lengths_tensor({0, 8, 11}),
               lengths = lengths_tensor({6, 9}), few = lengths_tensor({6, 2});
  Tensor table({2, 3}, DType::i64);
  for (std::int64_t n = 0; n < 6; ++n) table.data<std::int64_t>()[n] = 5 - n;
  struct Call {
    const char* name;
    const Tensor &q, &k;
    AttentionOptions options;
    Shape shape;
  };
  const std::vector<Call> calls = {
      {"plain", q, k, {}, {2, 4, 5, 7}},
      {"key_lengths", q, k, {.key_lengths = few}, {2, 4, 5, 7}},
      {"packed", packed_q, packed_q, {.cu_seqlens_q = cu_q}, {2, 4, 5, 5}},
      {"packed_keys",
       packed_q,
       packed_k,
       {.cu_seqlens_q = cu_q, .cu_seqlens_k = cu_k},
       {2, 4, 5, 8}},
      {"paged", q, pages, {.key_lengths = lengths, .block_table = table}, {2, 4, 5, 12}},
      {"paged_and_packed",
       packed_q,
       pages,
       {.key_lengths = lengths, .cu_seqlens_q = cu_q, .block_table = table},
       {2, 4, 5, 12}}};
  for (const Call& c : calls) {
    const Shape found = weights_shape(c.q, c.k, c.k, c.options);
    EXPECT_EQ(to_string(found), to_string(c.shape)) << c.name;
    Tensor out(c.q.shape()), weights(found);
    EXPECT_EQ(error_of([&] { attention(c.q, c.k, c.k, out, c.options, {.weights = weights}); }),
              "nothing")
        << c.name;
  }
  EXPECT_TRUE(
      error_of([&] { weights_shape(q, k, {}); }).starts_with("InvalidArgument: attention: v"));
  EXPECT_TRUE(
      error_of([&] { weights_shape(cu_q, k, k); }).starts_with("InvalidArgument: attention"));
  EXPECT_TRUE(error_of([&] {
                weights_shape(q, k, k, {.cu_seqlens_q = cu_q});
              }).starts_with("InvalidArgument: attention"));
}

TEST(Trace, a_saved_trace_is_read_back_whole) {
  const TemporaryFolder folder;
  const Inputs in;
  const Trace t = layer_of().trace(in.query, in.key, in.value);
  t.save(folder / "trace.safetensors");
  const TensorFile file = load_safetensors(folder / "trace.safetensors");
  EXPECT_EQ(lists_differ(file.tensors, t.tensors()), "");
  EXPECT_EQ(file.metadata.at("format"), "attend.trace");
  for (const TraceStep& step : t.steps) {
    EXPECT_EQ(file.metadata.at(step.name + ".formula"), step.formula);
    EXPECT_EQ(file.metadata.at(step.name + ".axes"), step.axes);
  }
}

TEST(Trace, an_unknown_step_is_answered_with_the_known_ones) {
  const Trace t =
      trace_attention(numbers({1, 1, 2, 3}, DType::f32, 1), numbers({1, 1, 2, 3}, DType::f32, 2),
                      numbers({1, 1, 2, 3}, DType::f32, 3));
  EXPECT_EQ(t.find("wieghts"), nullptr);
  EXPECT_EQ(t.find("weights"), &t.steps[4].value);
  EXPECT_EQ(error_of([&] { static_cast<void>(t.at("wieghts")); }),
            "InvalidArgument: trace: there is no step wieghts; there are: scores scaled_scores "
            "masked_scores lse weights heads");
  EXPECT_TRUE(error_of([&] { trace_attention({}, {}, {}); }).starts_with("InvalidArgument: "));
  EXPECT_TRUE(error_of([&] { layer_of().trace({}); }).starts_with("InvalidArgument: "));
}

}  // namespace
}  // namespace attend::test
