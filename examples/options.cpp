// Every option of attention, a few lines each: what is passed, and what comes of it.
//
// The problem is always small: four tokens, two heads of size eight. A pattern like "■··· ■■··"
// shows which keys (a sign each) every query (a group each) of head 0 sees.
#include "print.h"

#include <attend/attend.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace {

using attend::AttentionOptions;
using attend::Tensor;

constexpr int kTokens = 4, kHeads = 2, kHeadSize = 8;

// Smooth values without a meaning.
Tensor waves(const attend::Shape& shape, double phase) {
  Tensor t(shape);
  for (std::int64_t n = 0; n < t.count(); ++n)
    t.data<float>()[n] = static_cast<float>(std::sin(0.7 * static_cast<double>(n) + phase));
  return t;
}

const Tensor q = waves({1, kHeads, kTokens, kHeadSize}, 0);
const Tensor k = waves({1, kHeads, kTokens, kHeadSize}, 1);
const Tensor v = waves({1, kHeads, kTokens, kHeadSize}, 2);
bool good = true;

double largest_difference(const Tensor& a, const Tensor& b) {
  double largest = 0;
  for (std::int64_t n = 0; n < a.count(); ++n)
    largest = std::max<double>(largest, std::abs(a.data<float>()[n] - b.data<float>()[n]));
  return largest;
}

void show(const std::string& name, const std::string& result) {
  std::printf("   %-30s %s\n", name.c_str(), result.c_str());
}

void expect(const std::string& name, double difference, double allowed, const std::string& what) {
  good &= difference <= allowed;
  show(name, what + ", " + print::within(difference) + (difference <= allowed ? "" : " (FAILED)"));
}

Tensor weights_with(const AttentionOptions& options) {
  Tensor out(v.shape()), weights({1, kHeads, kTokens, kTokens});
  attend::attention(q, k, v, out, options, {.weights = weights});
  return weights;
}

std::string pattern(const Tensor& weights, int b = 0) {
  std::string text;
  for (int i = 0; i < weights.size(2); ++i) {
    if (i > 0) text += ' ';
    for (int j = 0; j < weights.size(3); ++j)
      text += weights.at<float>({b, 0, i, j}) > 0 ? "■" : "·";
  }
  return text;
}

std::string last_row(const Tensor& weights) {  // of head 0
  std::string text;
  double sum = 0;
  for (int j = 0; j < kTokens; ++j) {
    const double weight = weights.at<float>({0, 0, kTokens - 1, j});
    text += print::number(weight, 3) + " ";
    sum += weight;
  }
  return text + " sum " + print::number(sum, 3);
}

// ---- What is seen ------------------------------------------------------------------------------

void what_is_seen() {
  print::heading("What each query sees");
  show("{}", pattern(weights_with({})));
  show(".causal = true", pattern(weights_with({.causal = true})));
  show(".window = {1, 0}", pattern(weights_with({.window = {1, 0}})));
  show(".causal, .query_offset = 1", pattern(weights_with({.causal = true, .query_offset = 1})));

  const std::int32_t lengths[] = {3};
  show(".key_lengths = {3}", pattern(weights_with({.key_lengths = {lengths, {1}}})));
  const bool padding[] = {true, true, false, true};
  show(".mask [keys], bool", pattern(weights_with({.mask = {padding, {kTokens}}})));
  const float hide = -std::numeric_limits<float>::infinity(), bias[] = {0, hide, 0, 0};
  show(".bias [keys] with -inf", pattern(weights_with({.bias = {bias, {kTokens}}})));

  // Block-sparse: of four blocks of 2 x 2, two are visible. Each query enters one of its two.
  const bool visible[] = {true, false, false, true};
  const AttentionOptions blocks{.blocks = {{visible, {1, 1, 2, 2}}, 2, 2}};
  Tensor out(v.shape());
  std::int64_t visited = 0;
  attend::attention(q, k, v, out, blocks, {.visited_blocks = &visited});
  show(".blocks of 2 x 2", pattern(weights_with(blocks)) + "   entered " + std::to_string(visited) +
                               " of " + std::to_string(kHeads * kTokens * 2));

  // Packed: the four tokens are a sequence of one and a sequence of three.
  const std::int32_t starts[] = {0, 1, 4};
  Tensor weights({2, kHeads, 3, 3});
  attend::attention(q, k, v, out, {.causal = true, .cu_seqlens_q = {starts, {3}}},
                    {.weights = weights});
  show(".cu_seqlens_q = {0, 1, 4}", pattern(weights, 0) + " | " + pattern(weights, 1));
  Tensor wider({2, kHeads, 4, 4});  // room for sequences of up to four, whatever these are
  attend::attention(q, k, v, out,
                    {.causal = true, .cu_seqlens_q = {starts, {3}}, .max_q = 4, .max_k = 4},
                    {.weights = wider});
  show(".max_q = 4, .max_k = 4", pattern(wider, 0) + " | " + pattern(wider, 1));
}

// ---- What it weighs ----------------------------------------------------------------------------

void what_it_weighs() {
  print::heading("What the last query weighs");
  show("{}", last_row(weights_with({})));
  show(".scale = 1", last_row(weights_with({.scale = 1})));
  show(".softcap = 0.5", last_row(weights_with({.softcap = 0.5})));
  const float bias[] = {1, 0, 0, 0}, slopes[] = {0.5f, 0.25f}, sinks[] = {1, 1};
  show(".bias = {1, 0, 0, 0}", last_row(weights_with({.bias = {bias, {kTokens}}})));
  show(".alibi = {0.5, 0.25}", last_row(weights_with({.alibi = {slopes, {kHeads}}})));
  show(".sinks = {1, 1}", last_row(weights_with({.sinks = {sinks, {kHeads}}})));

  // With v = 1 the output is the sum of the kept weights, each times 1 / (1 - p).
  const std::vector<float> ones(static_cast<std::size_t>(v.count()), 1.0f);
  const Tensor kept =
      attend::attention(q, k, {ones.data(), v.shape()}, {.dropout = {.p = 0.5, .seed = 7}});
  std::string sums;
  for (int i = 0; i < kTokens; ++i) sums += " " + print::number(kept.at<float>({0, 0, i, 0}), 3);
  show(".dropout = {0.5, seed 7}", "kept weights, doubled, sum to" + sums);
}

// ---- What is handed out ------------------------------------------------------------------------

void what_is_handed_out() {
  print::heading("What is handed out besides `out`");
  Tensor out(v.shape()), lse({1, kHeads, kTokens}), weights({1, kHeads, kTokens, kTokens});
  Tensor scores = weights;
  attend::attention(q, k, v, out, {.causal = true},
                    {.lse = lse, .weights = weights, .scores = scores});
  show(".lse", attend::to_string(lse.shape()) + ", first " + print::number(lse.data<float>()[0]));
  show(".weights", attend::to_string(weights.shape()) + ", before dropout");
  show(".scores, stage masked", attend::to_string(scores.shape()) + ", hidden is " +
                                    print::number(scores.at<float>({0, 0, 0, 3})));
  attend::attention(q, k, v, out, {.causal = true},
                    {.scores = scores, .stage = attend::ScoreStage::raw});
  show(".scores, stage raw",
       "the same pair before the mask: " + print::number(scores.at<float>({0, 0, 0, 3})));
}

// ---- Where the tensors lie ---------------------------------------------------------------------

void where_tensors_lie() {
  print::heading("How tensors may look");
  const Tensor whole = attend::attention(q, k, v);

  const Tensor four = waves({1, 4, kTokens, kHeadSize}, 0);
  show("grouped heads", "q of 4 heads, k and v of 2: out " +
                            attend::to_string(attend::attention(four, k, v).shape()));
  const Tensor narrow = waves({1, kHeads, kTokens, 3}, 2);
  show("d_v != d_k", "out " + attend::to_string(attend::attention(q, k, narrow).shape()));
  const Tensor half({attend::bf16(1), attend::bf16(2)}, {1, 1, 2, 1});
  show("bf16, f16, f64",
       "out is " + std::string(attend::name_of(attend::attention(half, half, half).dtype())));

  // [batch, tokens, heads, d] in memory, seen as [batch, heads, tokens, d]: strides, no copy.
  const Tensor swapped = Tensor::copy_of(q.view().permute({0, 2, 1, 3}));
  expect("strides",
         largest_difference(attend::attention(swapped.view().permute({0, 2, 1, 3}), k, v), whole),
         0, "a permuted view of q gives the same");

  // Paged: the keys' two pages of two lie in the other order; the table says where.
  const auto pages_of = [](const Tensor& t) {
    Tensor pages({2, kHeads, 2, kHeadSize});
    for (int j = 0; j < kTokens; ++j)
      for (int h = 0; h < kHeads; ++h)
        for (int x = 0; x < kHeadSize; ++x)
          pages.at<float>({1 - j / 2, h, j % 2, x}) = t.at<float>({0, h, j, x});
    return pages;
  };
  const std::int32_t table[] = {1, 0}, lengths[] = {kTokens};
  const Tensor paged = attend::attention(
      q, pages_of(k), pages_of(v), {.key_lengths = {lengths, {1}}, .block_table = {table, {1, 2}}});
  expect(".block_table = {1, 0}", largest_difference(paged, whole), 0,
         "keys on pages give the same");

  // Eight bits: each key and each value as whole numbers of its largest / 127.
  const auto eight_bits = [](const Tensor& t, Tensor& scales) {
    Tensor whole_numbers(t.shape(), attend::DType::i8);
    for (int h = 0; h < kHeads; ++h)
      for (int j = 0; j < kTokens; ++j) {
        float largest = 0;
        for (int x = 0; x < kHeadSize; ++x)
          largest = std::max(largest, std::abs(t.at<float>({0, h, j, x})));
        const float scale = scales.at<float>({0, h, j}) = largest / 127;
        for (int x = 0; x < kHeadSize; ++x)
          whole_numbers.at<std::int8_t>({0, h, j, x}) =
              static_cast<std::int8_t>(std::lround(t.at<float>({0, h, j, x}) / scale));
      }
    return whole_numbers;
  };
  Tensor k_scales({1, kHeads, kTokens}), v_scales = k_scales;
  const Tensor k8 = eight_bits(k, k_scales), v8 = eight_bits(v, v_scales);
  expect(".k_scales, .v_scales",
         largest_difference(
             attend::attention(q, k8, v8, {.k_scales = k_scales, .v_scales = v_scales}), whole),
         0.02, "keys and values of 8 bits give nearly the same");
}

// ---- Backward, merge, plan, errors -------------------------------------------------------------

void the_rest() {
  print::heading("Gradients, parts, plans, errors");
  const Tensor bias = waves({kHeads, kTokens, kTokens}, 3), dout = waves(v.shape(), 4);
  const AttentionOptions options{.causal = true, .bias = bias};
  Tensor out(v.shape()), lse({1, kHeads, kTokens});
  attend::attention(q, k, v, out, options, {.lse = lse});
  const attend::BackwardResult d = attend::attention_backward(
      {.q = q, .k = k, .v = v, .out = out, .lse = lse, .dout = dout}, options);
  show("attention_backward", "dq " + attend::to_string(d.dq.shape()) + ", dbias " +
                                 attend::to_string(d.dbias.shape()) + " like the bias");

  // The keys in two parts, each told where it begins, added to one state.
  Tensor joined(v.shape());
  const auto part = [](const Tensor& t, std::int64_t begin) {
    return t.view().slice(2, begin, begin + 2);
  };
  // [parts]
  Tensor state(attend::partial_state_shape(q, v), attend::DType::f64);  // zeros: empty
  for (const std::int64_t begin : {0, 2})
    attend::attention_partial(q, part(k, begin), part(v, begin), state,
                              {.causal = true, .query_offset = 0, .key_offset = begin});
  attend::finish_partial({state}, joined);
  // [/parts]
  expect("attention_partial",
         largest_difference(joined, attend::attention(q, k, v, {.causal = true})), 5e-7,
         "two halves added give the whole");

  // Each half of the keys alone, then joined by their results.
  const Tensor whole = attend::attention(q, k, v);
  Tensor o0(v.shape(), attend::DType::f64), o1 = o0;
  Tensor lse0(lse.shape(), attend::DType::f64), lse1 = lse0;
  attend::attention(q, part(k, 0), part(v, 0), o0, {}, {.lse = lse0});
  attend::attention(q, part(k, 2), part(v, 2), o1, {}, {.lse = lse1});
  attend::merge({o0, o1}, {lse0, lse1}, joined);
  expect("merge", largest_difference(joined, whole), 5e-7, "two halves joined equal the whole");

  const attend::Plan plan = attend::Plan::attention(q, k, v, out);
  plan.run(q, k, v, out);  // as often as wanted, with other data of the same sizes
  expect("Plan", largest_difference(out, whole), 0, plan.kernel() + " gives the same");
  attend::Context one_thread({.threads = 1});
  expect("Context", largest_difference(attend::attention(q, k, v, {}, one_thread), whole), 0,
         "one thread gives the same");

  try {
    attend::attention(waves({1, 3, kTokens, kHeadSize}, 0), k, v);
    good = false;
  } catch (const attend::InvalidArgument& error) {
    show("errors", error.what());
  }
}

}  // namespace

int main() {
  try {
    what_is_seen();
    what_it_weighs();
    what_is_handed_out();
    where_tensors_lie();
    the_rest();
  } catch (const attend::Error& error) {
    std::fprintf(stderr, "options: %s\n", error.what());
    return 1;
  }
  return good ? 0 : 1;
}
