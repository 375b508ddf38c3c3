// Multi-head attention against its formulas, written out in f64 loops here, and what must not
// change its bits: strides, neighbours in the batch, threads.
#include "support/attention_layers.h"

namespace attend::test {
namespace {

struct Sizes {
  const char* name;
  MultiHeadAttentionOptions options;
  std::int64_t batch, queries, keys;
};

// No two sizes that stand in one formula are equal, unless the case is about that.
std::vector<Sizes> sizes_of(DType type) {
  return {
      {"plain", {.model_dim = 12, .heads = 3, .type = type}, 2, 5, 5},
      {"one_head", {.model_dim = 6, .type = type}, 1, 3, 3},
      {"grouped", {.model_dim = 8, .heads = 6, .key_heads = 2, .d_k = 3, .type = type}, 2, 4, 4},
      {"one_key_head", {.model_dim = 8, .heads = 4, .key_heads = 1, .type = type}, 1, 5, 5},
      {"d_v_of_its_own", {.model_dim = 7, .heads = 2, .d_k = 3, .d_v = 5, .type = type}, 3, 4, 4},
      {"no_bias", {.model_dim = 10, .heads = 5, .bias = false, .type = type}, 2, 3, 3},
      {"no_output",
       {.model_dim = 9, .heads = 3, .output_projection = false, .type = type},
       2,
       4,
       4},
      {"cross",
       {.model_dim = 10,
        .heads = 2,
        .d_k = 3,
        .d_v = 4,
        .key_dim = 7,
        .value_dim = 6,
        .type = type},
       2,
       3,
       5},
      {"cross_grouped",
       {.model_dim = 6, .heads = 4, .key_heads = 2, .d_k = 5, .key_dim = 9, .type = type},
       1,
       4,
       3},
  };
}

struct Inputs {
  Inputs(const Sizes& s, const MultiHeadAttentionOptions& o)
      : query(numbers({s.batch, s.queries, o.model_dim}, o.type, 11)),
        key(numbers({s.batch, s.keys, o.key_dim}, o.type, 12)),
        value(numbers({s.batch, s.keys, o.value_dim}, o.type, 13)) {}
  Tensor query, key, value;
};

// Row n of W, times the features of token (b, i), plus the bias.
double projected(const Linear& linear, const Tensor& x, std::int64_t b, std::int64_t i,
                 std::int64_t n) {
  double sum = linear.bias() ? value(linear.bias(), {n}) : 0;
  for (std::int64_t c = 0; c < linear.in(); ++c)
    sum += value(x, {b, i, c}) * value(linear.weight(), {n, c});
  return sum;
}

// The formulas of the header, one after the other. hidden(b, h, i, j) says what is masked.
template <class Hidden>
Tensor formulas(const MultiHeadAttention& layer, const Inputs& in, const Hidden& hidden) {
  const MultiHeadAttentionOptions& o = layer.options();
  const std::int64_t batch = in.query.size(0), queries = in.query.size(1), keys = in.key.size(1);
  Tensor concat({batch, queries, o.heads * o.d_v}, DType::f64);
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t h = 0; h < o.heads; ++h)
      for (std::int64_t i = 0; i < queries; ++i) {
        const std::int64_t kh = h / (o.heads / o.key_heads);
        std::vector<double> p(static_cast<std::size_t>(keys), 0);
        double sum = 0;
        for (std::int64_t j = 0; j < keys; ++j) {
          if (hidden(b, h, i, j)) continue;
          double score = 0;
          for (std::int64_t c = 0; c < o.d_k; ++c)
            score += projected(layer.q(), in.query, b, i, h * o.d_k + c) *
                     projected(layer.k(), in.key, b, j, kh * o.d_k + c);
          sum += p[static_cast<std::size_t>(j)] = std::exp(score / std::sqrt(o.d_k));
        }
        for (std::int64_t e = 0; e < o.d_v && sum > 0; ++e) {
          double head = 0;
          for (std::int64_t j = 0; j < keys; ++j)
            head += p[static_cast<std::size_t>(j)] / sum *
                    projected(layer.v(), in.value, b, j, kh * o.d_v + e);
          concat.at<double>({b, i, h * o.d_v + e}) = head;
        }
      }
  if (!layer.o()) return concat;
  Tensor output({batch, queries, o.model_dim}, DType::f64);
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t i = 0; i < queries; ++i)
      for (std::int64_t n = 0; n < o.model_dim; ++n)
        output.at<double>({b, i, n}) = projected(layer.o(), concat, b, i, n);
  return output;
}

constexpr auto kNothingHidden = [](std::int64_t, std::int64_t, std::int64_t, std::int64_t) {
  return false;
};

// Sums of a few dozen products of numbers up to 1, rounded five times on the way.
double tolerance(DType type) {
  return type == DType::f64 ? 1e-13 : type == DType::f32 ? 1e-5 : type == DType::f16 ? 0.01 : 0.08;
}

TEST(MultiHead, forward_is_the_written_formulas) {
  for (const DType type : kFloatTypes)
    for (const Sizes& s : sizes_of(type)) {
      const MultiHeadAttention layer = drawn(s.options);
      const Inputs in(s, layer.options());
      const Tensor y = layer.forward(in.query, in.key, in.value);
      EXPECT_EQ(y.dtype(), type);
      EXPECT_LT(largest_difference(y, formulas(layer, in, kNothingHidden)), tolerance(type))
          << s.name << " " << name_of(type);
    }
}

TEST(MultiHead, a_mask_hides_in_the_formulas_too) {
  for (const Sizes& s : sizes_of(DType::f64)) {
    const MultiHeadAttention layer = drawn(s.options);
    const Inputs in(s, layer.options());
    Tensor mask({s.batch, layer.options().heads, s.queries, s.keys}, DType::u8);
    for (std::int64_t n = 0; n < mask.count(); ++n)
      mask.data<std::uint8_t>()[n] = n * 7 % 5 < 3 && n % s.keys != 0;
    const Tensor y = layer.forward(in.query, in.key, in.value, {.mask = mask});
    const auto hidden = [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
      return mask.at<std::uint8_t>({b, h, i, j}) == 0;
    };
    EXPECT_LT(largest_difference(y, formulas(layer, in, hidden)), 1e-13) << s.name;
  }
}

TEST(MultiHead, self_attention_is_the_call_with_x_three_times) {
  const MultiHeadAttention layer = drawn({.model_dim = 12, .heads = 3});
  const Tensor x = numbers({2, 5, 12}, DType::f32, 3);
  EXPECT_EQ(difference(layer.forward(x), layer.forward(x, x, x)), "");
}

TEST(MultiHead, a_sequence_without_batch_has_the_bits_of_a_batch_of_one) {
  for (const Sizes& s : sizes_of(DType::f32)) {
    const MultiHeadAttention layer = drawn(s.options);
    const Inputs in(s, layer.options());
    const auto alone = [](const Tensor& t) {
      return Tensor::copy_of(ConstTensorView(t.data<float>(), {t.size(1), t.size(2)}));
    };
    const Tensor y = layer.forward(alone(in.query), alone(in.key), alone(in.value));
    const Tensor batched = layer.forward(in.query, in.key, in.value);
    EXPECT_EQ(y.shape(), (Shape{s.queries, batched.size(2)}));
    EXPECT_EQ(difference(y, alone(batched)), "") << s.name;
  }
}

TEST(MultiHead, grouped_heads_are_repeated_heads) {
  const MultiHeadAttentionOptions options{.model_dim = 8, .heads = 6, .key_heads = 2, .d_k = 3};
  const MultiHeadAttention grouped = drawn(options);
  MultiHeadAttentionOptions every = options;
  every.key_heads = 6;
  const MultiHeadAttention repeated =
      MultiHeadAttention::join(every, grouped.split(), grouped.o().bias());
  EXPECT_EQ(repeated.k().out(), 18);
  const Tensor x = numbers({2, 5, 8}, DType::f32, 4);
  EXPECT_EQ(difference(grouped.forward(x), repeated.forward(x)), "");
}

TEST(MultiHead, no_stride_changes_a_bit) {
  for (const DType type : kFloatTypes)
    for (const Sizes& s : sizes_of(type)) {
      const MultiHeadAttention layer = drawn(s.options);
      const Inputs in(s, layer.options());
      Scattered query(in.query), key(in.key), value(in.value);
      EXPECT_EQ(difference(layer.forward(query.view(), key.view(), value.view()),
                           layer.forward(in.query, in.key, in.value)),
                "")
          << s.name << " " << name_of(type);
    }
}

TEST(MultiHead, a_row_of_the_batch_has_the_bits_it_has_alone) {
  for (const Sizes& s : sizes_of(DType::f32)) {
    const MultiHeadAttention layer = drawn(s.options);
    const Inputs in(s, layer.options());
    const Tensor y = layer.forward(in.query, in.key, in.value);
    for (std::int64_t b = 0; b < s.batch; ++b) {
      const Tensor alone =
          layer.forward(in.query.view().slice(0, b, b + 1), in.key.view().slice(0, b, b + 1),
                        in.value.view().slice(0, b, b + 1));
      EXPECT_EQ(difference(alone, y.view().slice(0, b, b + 1)), "") << s.name << " row " << b;
    }
    for (std::int64_t i = 0; i < s.queries; ++i)  // and a query without its neighbours
      EXPECT_EQ(difference(layer.forward(in.query.view().slice(1, i, i + 1), in.key, in.value),
                           y.view().slice(1, i, i + 1)),
                "")
          << s.name << " query " << i;
  }
}

TEST(MultiHead, no_number_of_threads_changes_a_bit) {
  MultiHeadAttentionOptions options{
      .model_dim = 24, .heads = 6, .key_heads = 3, .rotary = Rotary{}};
  const MultiHeadAttention layer = drawn(options);
  const Tensor x = numbers({3, 33, 24}, DType::f32, 5), dy = numbers({3, 33, 24}, DType::f32, 6);
  const AttentionOptions causal{.causal = true};
  Context one(ContextOptions{.threads = 1});
  const auto [y, saved] = layer.forward_train(x, causal, one);
  const MultiHeadAttention::Gradients expected = layer.backward(dy, saved, one);
  for (const int threads : {2, 3, 7}) {
    Context context(ContextOptions{.threads = threads});
    EXPECT_EQ(difference(layer.forward(x, causal, {}, context), y), "") << threads;
    const auto [again, kept] = layer.forward_train(x, causal, context);
    EXPECT_EQ(difference(again, y), "") << threads;
    const MultiHeadAttention::Gradients found = layer.backward(dy, kept, context);
    EXPECT_EQ(difference(found.dx, expected.dx), "") << threads;
    EXPECT_EQ(lists_differ(found.parameters, expected.parameters), "") << threads;
  }
}

TEST(MultiHead, empty_inputs_give_empty_outputs) {
  const MultiHeadAttention layer = drawn({.model_dim = 12, .heads = 3, .rotary = Rotary{}});
  for (const Shape& shape : {Shape{0, 4, 12}, Shape{2, 0, 12}, Shape{0, 12}}) {
    const Tensor x(shape);
    EXPECT_EQ(layer.forward(x).shape(), shape) << to_string(shape);
    const auto [y, saved] = layer.forward_train(x);
    const MultiHeadAttention::Gradients g = layer.backward(Tensor(shape), saved);
    EXPECT_EQ(g.dx.shape(), shape);
    for (const NamedTensor& p : g.parameters)
      EXPECT_EQ(largest_difference(p.tensor, Tensor(p.tensor.shape())), 0) << p.name;
  }
  const Tensor x = numbers({1, 2, 12}, DType::f32, 1), none({1, 0, 12});
  const Tensor y = layer.forward(x, none, none);  // sees nothing: the bias of W^O alone
  for (std::int64_t n = 0; n < 24; ++n)
    EXPECT_EQ(y.data<float>()[n], layer.o().bias().data<float>()[n % 12]);
}

// ---- Making ------------------------------------------------------------------------------------

TEST(MultiHead, sizes_left_open_are_filled_in) {
  const MultiHeadAttentionOptions o =
      MultiHeadAttention({.model_dim = 12, .heads = 3, .rotary = Rotary{}}).options();
  EXPECT_EQ((std::vector<std::int64_t>{o.key_heads, o.d_k, o.d_v, o.key_dim, o.value_dim}),
            (std::vector<std::int64_t>{3, 4, 4, 12, 12}));
  EXPECT_EQ(o.rotary->dim, 4);
  const MultiHeadAttentionOptions c =
      MultiHeadAttention({.model_dim = 12, .heads = 5, .d_k = 3, .key_dim = 7}).options();
  EXPECT_EQ((std::vector<std::int64_t>{c.d_v, c.value_dim}), (std::vector<std::int64_t>{3, 7}));
}

TEST(MultiHead, the_first_values_come_from_the_seed_alone) {
  const MultiHeadAttentionOptions options{.model_dim = 12, .heads = 3, .seed = 5};
  MultiHeadAttentionOptions other = options;
  other.seed = 6;
  const MultiHeadAttention a(options), b(options), c(other);
  EXPECT_EQ(lists_differ(a.parameters(), b.parameters()), "");
  EXPECT_NE(difference(a.q().weight(), c.q().weight()), "");
  EXPECT_NE(difference(a.q().weight(), a.k().weight()), "");  // each matrix has a seed of its own
  EXPECT_EQ(difference(a.q().bias(), Tensor({12})), "");
}

TEST(MultiHead, heads_that_do_not_divide_the_width_are_refused_with_those_that_do) {
  EXPECT_EQ(
      error_of([] { MultiHeadAttention({.model_dim = 512, .heads = 7}); }),
      "InvalidArgument: multi_head_attention: model_dim 512 is not divisible by heads 7; give "
      "d_k, or one of 1 2 4 8 16 32 64 128 256 512");
  EXPECT_EQ(MultiHeadAttention({.model_dim = 512, .heads = 7, .d_k = 10}).q().out(), 70);
}

// A width that no memory holds is refused at once, not after counting to it.
TEST(MultiHead, huge_sizes_are_refused) {
  const std::int64_t huge = std::int64_t{1} << 62;
  for (const MultiHeadAttentionOptions& o : std::vector<MultiHeadAttentionOptions>{
           {.model_dim = huge, .heads = 7},
           {.model_dim = 8, .heads = huge, .d_k = 8},
           {.model_dim = 8, .heads = 4, .d_k = huge},
           {.model_dim = 8, .heads = 4, .d_k = 2, .d_v = huge},
           {.model_dim = 8, .heads = huge, .key_heads = 1, .d_k = 1, .d_v = 4},
           {.model_dim = 8, .heads = 2, .key_dim = huge}}) {
    const std::string error = error_of([&] { MultiHeadAttention{o}; });
    EXPECT_TRUE(error.starts_with("InvalidArgument: ") || error.starts_with("OutOfMemory: "))
        << error;
  }
}

}  // namespace
}  // namespace attend::test
