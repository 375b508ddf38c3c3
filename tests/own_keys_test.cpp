// Keys and values of a type of their own, with scales, and sizes of packed sequences that are
// given: what they mean, beyond what the cases of the conformance test see.
#include "cases/instance.h"
#include "cases/oracle/widen.h"

#include <attend/attend.h>

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

namespace attend {
namespace {

using oracle::widen;

// Bits of two tensors of one shape.
bool same_bits(const ConstTensorView& a, const ConstTensorView& b) {
  const std::vector<double> x = widen(a), y = widen(b);
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(double)) == 0);
}

Tensor numbers(const Shape& shape, int seed) {
  Tensor made(shape, DType::f64);
  for (std::int64_t n = 0; n < made.view().count(); ++n)
    made.data<double>()[n] = std::sin(static_cast<double>(n * 7 + seed)) * 1.5;
  return made;
}

// q f64 [2, 4, 3, 6]; k and v i8 [2, 2, 5, ..] with scales that are powers of two, so that the keys
// they mean are f64 numbers too.
struct Quantised {
  Tensor q = numbers({2, 4, 3, 6}, 1), dout = numbers({2, 4, 3, 7}, 2);
  Tensor k{{2, 2, 5, 6}, DType::i8}, v{{2, 2, 5, 7}, DType::i8};
  Tensor k_scales{{2, 2, 5}, DType::f32}, v_scales{{2, 2, 5}, DType::f32};
  Tensor plain_k{{2, 2, 5, 6}, DType::f64}, plain_v{{2, 2, 5, 7}, DType::f64};

  Quantised() {
    const auto fill = [](Tensor& whole, Tensor& scales, Tensor& plain, int seed) {
      const std::int64_t d = whole.view().size(3);
      for (std::int64_t n = 0; n < whole.view().count(); ++n) {
        const auto scale = static_cast<float>(std::ldexp(1.0, static_cast<int>(n / d % 5) - 9));
        const auto number = static_cast<std::int8_t>((n * 37 + seed) % 255 - 127);
        whole.data<std::int8_t>()[n] = number;
        scales.data<float>()[n / d] = scale;
        plain.data<double>()[n] = number * static_cast<double>(scale);
      }
    };
    fill(k, k_scales, plain_k, 3);
    fill(v, v_scales, plain_v, 5);
  }
  AttentionOptions options() const {
    return {.causal = true, .k_scales = k_scales, .v_scales = v_scales};
  }
};

Context reference() { return Context({.kernels = "forward:reference.forward"}); }

TEST(own_keys, eight_bits_and_scales_are_the_keys_that_they_mean) {
  const Quantised x;
  Context context = reference();
  const Tensor found = attention(x.q, x.k, x.v, x.options(), context);
  const Tensor plain = attention(x.q, x.plain_k, x.plain_v, {.causal = true}, context);
  EXPECT_TRUE(same_bits(found, plain));
}

TEST(own_keys, gradients_are_those_at_what_is_stored) {
  const Quantised x;
  Context context({.kernels = "forward:reference.forward,backward:reference.backward"});
  Tensor out({2, 4, 3, 7}, DType::f64), lse({2, 4, 3}, DType::f64);
  attention(x.q, x.k, x.v, out, x.options(), {.lse = lse}, context);
  const BackwardResult plain = attention_backward(
      {.q = x.q, .k = x.plain_k, .v = x.plain_v, .out = out, .lse = lse, .dout = x.dout},
      {.causal = true}, context);
  const BackwardResult whole = attention_backward(
      {.q = x.q, .k = x.k, .v = x.v, .out = out, .lse = lse, .dout = x.dout}, x.options(), context);
  EXPECT_TRUE(same_bits(whole.dq, plain.dq));
  EXPECT_FALSE(whole.dk);  // whole numbers have no gradient
  EXPECT_FALSE(whole.dv);

  // The same numbers stored as f64: their gradients are the keys', times the scales.
  Tensor stored_k({2, 2, 5, 6}, DType::f64), stored_v({2, 2, 5, 7}, DType::f64);
  for (std::int64_t n = 0; n < x.k.view().count(); ++n)
    stored_k.data<double>()[n] = x.k.data<std::int8_t>()[n];
  for (std::int64_t n = 0; n < x.v.view().count(); ++n)
    stored_v.data<double>()[n] = x.v.data<std::int8_t>()[n];
  const BackwardResult stored = attention_backward(
      {.q = x.q, .k = stored_k, .v = stored_v, .out = out, .lse = lse, .dout = x.dout}, x.options(),
      context);
  for (std::int64_t n = 0; n < stored_k.view().count(); ++n)
    EXPECT_EQ(stored.dk.data<double>()[n],
              plain.dk.data<double>()[n] * static_cast<double>(x.k_scales.data<float>()[n / 6]));
  for (std::int64_t n = 0; n < stored_v.view().count(); ++n)
    EXPECT_EQ(stored.dv.data<double>()[n],
              plain.dv.data<double>()[n] * static_cast<double>(x.v_scales.data<float>()[n / 7]));
}

TEST(own_keys, statistics_and_windows_read_them_too) {
  const Quantised x;
  const AttentionOptions plain{.causal = true};
  // Without v there are no v_scales to need.
  const AttentionOptions keys{.causal = true, .k_scales = x.k_scales};
  Context context({.kernels = "inspect:reference.inspect"});
  const Statistics found = inspect(x.q, x.k, keys, {.top_k = 2}, context);
  const Statistics expected = inspect(x.q, x.plain_k, plain, {.top_k = 2}, context);
  EXPECT_TRUE(same_bits(found.lse, expected.lse));
  EXPECT_TRUE(same_bits(found.key_mass, expected.key_mass));
  const WeightsWindow window{.batch = 1, .head = 3, .query = 0, .queries = 3, .key = 0, .keys = 5};
  EXPECT_TRUE(same_bits(weights_of(x.q, x.k, found.lse, window, x.options()),
                        weights_of(x.q, x.plain_k, found.lse, window, plain)));
}

TEST(own_keys, scales_of_hidden_keys_change_no_bit) {
  Quantised x;
  Tensor lengths({2}, DType::i64);
  lengths.data<std::int64_t>()[0] = 3;
  lengths.data<std::int64_t>()[1] = 5;
  AttentionOptions options = x.options();
  options.key_lengths = lengths;
  Context by_reference({.kernels = "forward:reference.forward,backward:reference.backward"});
  for (Context* context : {&by_reference, &default_context()}) {
    const auto results = [&] {
      Tensor out({2, 4, 3, 7}, DType::f64), lse({2, 4, 3}, DType::f64);
      attention(x.q, x.plain_k, x.plain_v, out, options, {.lse = lse}, *context);
      return attention_backward(
          {.q = x.q, .k = x.plain_k, .v = x.plain_v, .out = out, .lse = lse, .dout = x.dout},
          options, *context);
    };
    const auto set_hidden = [&](float to) {
      for (Tensor* scales : {&x.k_scales, &x.v_scales})
        for (const std::int64_t hidden : {3, 4, 8, 9}) scales->data<float>()[hidden] = to;
    };
    set_hidden(1);
    const BackwardResult before = results();
    set_hidden(NAN);
    const BackwardResult after = results();
    EXPECT_TRUE(same_bits(after.dq, before.dq));
    EXPECT_TRUE(same_bits(after.dk, before.dk));
    EXPECT_TRUE(same_bits(after.dv, before.dv));
  }
}

TEST(own_keys, fast_rows_of_gradients_decline_them_by_name) {
  const Quantised x;
  Tensor out({2, 4, 3, 7}, DType::f64), lse({2, 4, 3}, DType::f64), dq({2, 4, 3, 6}, DType::f64);
  EXPECT_NE(Plan::attention(x.q, x.k, x.v, out, x.options()).kernel(), "reference.forward");
  const BackwardInputs inputs{.q = x.q, .k = x.k, .v = x.v, .out = out, .lse = lse, .dout = x.dout};
  EXPECT_EQ(Plan::attention_backward(inputs, x.options(), {.dq = dq}).kernel(),
            "reference.backward");
  try {
    Plan::attention_backward(inputs, x.options(), {.dq = dq}, {.kernel = "cpu.generic.backward"});
    FAIL() << "cpu.generic.backward takes them";
  } catch (const Unsupported& error) {
    const std::string message = error.what();
    EXPECT_TRUE(
        message.ends_with("it takes no keys of another type than q, values of another type "
                          "than q, key scales, value scales"))
        << message;
    EXPECT_NE(message.find("k i8, v i8"), std::string::npos) << message;
  }
}

// ---- max_q, max_k ------------------------------------------------------------------------------

// dk and dv are sums over the queries. Fast rows cut them by max_q, as they do by the longest
// sequence where none is given; the reference does not.
TEST(packed_sizes, larger_ones_change_no_bit) {
  Context reference({.kernels = "forward:reference.forward,backward:reference.backward"});
  for (const char* line :
       {"batch=4 heads=4 kv_heads=2 q=70 k=90 d=16 dv=16 addressing=packed causal=1 sinks=1",
        "batch=3 heads=2 kv_heads=2 q=40 k=40 d=8 dv=8 addressing=packed_self alibi=1",
        "batch=3 heads=4 kv_heads=4 q=1 k=700 d=32 dv=32 addressing=packed"})
    for (const DType type : cases::kTypes)
      for (Context* context : {&default_context(), &reference}) {
        cases::Case problem = cases::parse(line);
        problem.type = type;
        const cases::Instance longest = cases::make(problem);
        problem.max_q = 300;
        problem.max_k = 1000;
        const cases::Instance more = cases::make(problem);
        EXPECT_EQ(weights_shape(more.q, more.k, more.v, more.options),
                  (Shape{problem.batch, problem.heads, 300, 1000}));
        for (const cases::Instance* in : {&longest, &more}) {
          attention(in->q, in->k, in->v, in->out, in->options, in->outputs_with_lse(), *context);
          attention_backward(in->backward_inputs(), in->options, in->gradients, *context);
        }
        EXPECT_TRUE(same_bits(more.out, longest.out)) << cases::name(problem);
        EXPECT_TRUE(same_bits(more.lse, longest.lse)) << cases::name(problem);
        EXPECT_TRUE(same_bits(more.gradients.dq, longest.gradients.dq)) << cases::name(problem);
        if (context != &reference) continue;
        EXPECT_TRUE(same_bits(more.gradients.dk, longest.gradients.dk)) << cases::name(problem);
        EXPECT_TRUE(same_bits(more.gradients.dv, longest.gradients.dv)) << cases::name(problem);
      }
}

// Sizes that no memory has: how the work is cut follows the tokens.
TEST(packed_sizes, far_too_large_ones_cost_nothing) {
  for (const char* line : {"batch=3 heads=2 kv_heads=1 q=3 k=4 d=8 dv=8 addressing=packed causal=1",
                           "batch=2 heads=2 kv_heads=2 q=5 k=5 d=8 dv=8 addressing=packed_self"}) {
    cases::Case problem = cases::parse(line);
    const cases::Instance as_found = cases::make(problem);
    cases::Instance in = cases::make(problem);
    in.options.max_q = in.options.max_k = std::int64_t{1} << 50;
    for (const cases::Instance* one : {&as_found, &std::as_const(in)}) {
      attention(one->q, one->k, one->v, one->out, one->options, one->outputs_with_lse());
      attention_backward(one->backward_inputs(), one->options, one->gradients);
    }
    EXPECT_TRUE(same_bits(in.out, as_found.out)) << line;
    EXPECT_TRUE(same_bits(in.gradients.dk, as_found.gradients.dk)) << line;
    EXPECT_TRUE(same_bits(inspect(in.q, in.k, in.options).entropy,
                          inspect(as_found.q, as_found.k, as_found.options).entropy))
        << line;
  }
}

TEST(packed_sizes, keys_as_queries_have_the_size_of_the_queries) {
  cases::Case problem =
      cases::parse("batch=3 heads=2 kv_heads=2 q=7 k=7 d=4 dv=4 addressing=packed_self");
  problem.max_q = 9;
  const cases::Instance in = cases::make(problem);
  EXPECT_EQ(weights_shape(in.q, in.k, in.v, in.options), (Shape{3, 2, 9, 9}));
}

}  // namespace
}  // namespace attend
