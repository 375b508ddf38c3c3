// Rotary positions against complex numbers: a pair of features is one, and its position turns it by
// exp(i t). Seen through the layer: its trace shows q and k before and after.
#include "core/row_operations.h"
#include "support/attention_layers.h"

#include <complex>

namespace attend::test {
namespace {

using Pairing = Rotary::Pairing;
constexpr Pairing kPairings[] = {Pairing::halves, Pairing::neighbours};

MultiHeadAttention rotary_layer(const Rotary& rotary, DType type = DType::f64) {
  return drawn({.model_dim = 10,
                .heads = 4,
                .key_heads = 2,
                .d_k = 6,
                .d_v = 3,
                .rotary = rotary,
                .type = type});
}

// rows [batch, length, heads * d], turned to position(b, i), as [batch, heads, length, d].
template <class Position>
Tensor turned(const Tensor& rows, std::int64_t heads, const Rotary& rotary,
              const Position& position) {
  const std::int64_t d = rows.size(2) / heads, dim = rotary.dim == 0 ? d : rotary.dim;
  Tensor result({rows.size(0), heads, rows.size(1), d}, DType::f64);
  for (std::int64_t b = 0; b < rows.size(0); ++b)
    for (std::int64_t i = 0; i < rows.size(1); ++i)
      for (std::int64_t h = 0; h < heads; ++h) {
        const auto in = [&](std::int64_t x) { return value(rows, {b, i, h * d + x}); };
        const auto out = [&](std::int64_t x) -> double& { return result.at<double>({b, h, i, x}); };
        for (std::int64_t x = 0; x < d; ++x) out(x) = in(x);
        for (std::int64_t c = 0; c < dim / 2; ++c) {
          const bool halves = rotary.pairing == Pairing::halves;
          const std::int64_t first = halves ? c : 2 * c, second = halves ? c + dim / 2 : 2 * c + 1;
          const double frequency =
              std::pow(rotary.base, -2.0 * static_cast<double>(c) / static_cast<double>(dim));
          const std::complex<double> z =
              std::complex(in(first), in(second)) * std::polar(1.0, frequency * position(b, i));
          out(first) = z.real();
          out(second) = z.imag();
        }
      }
  return result;
}

constexpr auto kFromZero = [](std::int64_t, std::int64_t i) { return static_cast<double>(i); };

TEST(Rotary, pairs_are_complex_numbers_that_turn) {
  for (const Pairing pairing : kPairings)
    for (const std::int64_t dim : {0, 2, 4, 6})
      for (const double base : {10000.0, 7.5, 0.01, 1e-8, 1e-300}) {
        const Rotary rotary{pairing, base, dim};
        const MultiHeadAttention layer = rotary_layer(rotary);
        const Trace trace = layer.trace(numbers({2, 9, 10}, DType::f64, 1));
        const std::string which = "dim " + std::to_string(dim);
        EXPECT_LT(
            largest_difference(trace.at("q_heads"), turned(trace.at("q"), 4, rotary, kFromZero)),
            1e-14)
            << which;
        EXPECT_LT(
            largest_difference(trace.at("k_heads"), turned(trace.at("k"), 2, rotary, kFromZero)),
            1e-14)
            << which;
        EXPECT_GT(largest_difference(trace.at("q_heads"),
                                     turned(trace.at("q"), 4, rotary, [](auto...) { return 0.0; })),
                  0.1)
            << which;
      }
}

TEST(Rotary, the_two_pairings_differ) {
  const Tensor x = numbers({1, 5, 10}, DType::f64, 1);
  EXPECT_GT(largest_difference(rotary_layer({.pairing = Pairing::halves}).forward(x),
                               rotary_layer({.pairing = Pairing::neighbours}).forward(x)),
            1e-3);
}

TEST(Rotary, features_behind_dim_and_values_do_not_turn) {
  for (const Pairing pairing : kPairings) {
    const MultiHeadAttention layer = rotary_layer({.pairing = pairing, .dim = 4}, DType::bf16);
    const Trace trace = layer.trace(numbers({2, 5, 10}, DType::bf16, 2));
    const auto heads = [&](const char* name, std::int64_t count) {
      const Tensor& t = trace.at(name);
      return Tensor::copy_of(
          ConstTensorView(t.view().data(), t.dtype(), {2, 5, count, t.size(2) / count})
              .permute({0, 2, 1, 3}));
    };
    EXPECT_EQ(
        difference(trace.at("q_heads").view().slice(3, 4, 6), heads("q", 4).view().slice(3, 4, 6)),
        "");
    EXPECT_EQ(difference(trace.at("v_heads"), heads("v", 2)), "");
    // Position 0 turns nothing.
    EXPECT_EQ(
        difference(trace.at("k_heads").view().slice(2, 0, 1), heads("k", 2).view().slice(2, 0, 1)),
        "");
  }
}

// One token over and over: without positions all scores of a head would be the same.
TEST(Rotary, scores_depend_on_the_distance_alone) {
  for (const Pairing pairing : kPairings) {
    const MultiHeadAttention layer = rotary_layer({.pairing = pairing});
    const Tensor token = numbers({1, 1, 10}, DType::f64, 3);
    const Tensor x = Tensor::copy_of(token.view().broadcast_to({1, 8, 10}));
    const Tensor near = layer.trace(x).at("scores");
    const Tensor far = layer.trace(x, AttentionOptions{.query_offset = 3}).at("scores");
    for (std::int64_t h = 0; h < 4; ++h) {
      for (std::int64_t i = 0; i + 1 < 8; ++i)
        for (std::int64_t j = 0; j + 1 < 8; ++j)
          EXPECT_NEAR(near.at<double>({0, h, i, j}), near.at<double>({0, h, i + 1, j + 1}), 1e-13);
      for (std::int64_t i = 0; i < 5; ++i)
        EXPECT_NEAR(far.at<double>({0, h, i, 7}), near.at<double>({0, h, i + 3, 7}), 1e-13);
      EXPECT_GT(std::abs(near.at<double>({0, h, 0, 0}) - near.at<double>({0, h, 0, 4})), 1e-3);
    }
  }
}

TEST(Rotary, queries_stand_where_query_offset_says) {
  const MultiHeadAttention layer = rotary_layer({.pairing = Pairing::neighbours});
  const Tensor query = numbers({2, 3, 10}, DType::f64, 4), key = numbers({2, 7, 10}, DType::f64, 5);
  const Tensor offsets = lengths_tensor({2, -5}), lengths = lengths_tensor({6, 3});
  Tensor narrow({2}, DType::i32);
  narrow.data<std::int32_t>()[0] = 2;
  narrow.data<std::int32_t>()[1] = -5;
  struct Case {
    const char* name;
    AttentionOptions options;
    std::int64_t first[2];
  };
  const std::vector<Case> cases = {{"not given", {}, {4, 4}},
                                   {"one for all", {.query_offset = 1000}, {1000, 1000}},
                                   {"one each", {.query_offset = offsets}, {2, -5}},
                                   {"one each, i32", {.query_offset = narrow}, {2, -5}},
                                   {"key_lengths", {.key_lengths = lengths}, {3, 0}}};
  for (const Case& c : cases) {
    const Trace trace = layer.trace(query, key, key, c.options);
    const auto position = [&](std::int64_t b, std::int64_t i) {
      return static_cast<double>(c.first[b] + i);
    };
    EXPECT_LT(largest_difference(trace.at("q_heads"),
                                 turned(trace.at("q"), 4, *layer.options().rotary, position)),
              1e-13)
        << c.name;
    EXPECT_LT(largest_difference(trace.at("k_heads"),
                                 turned(trace.at("k"), 2, *layer.options().rotary, kFromZero)),
              1e-13)
        << c.name;
  }
}

// A packed sequence has the bits that it has alone.
TEST(Rotary, every_packed_sequence_starts_at_zero) {
  for (const Pairing pairing : kPairings) {
    const MultiHeadAttention layer = rotary_layer({.pairing = pairing}, DType::f32);
    const std::vector<std::int64_t> q_ends = {0, 4, 4, 5, 9}, k_ends = {0, 6, 7, 7, 11};
    const Tensor cu_q = lengths_tensor(q_ends), cu_k = lengths_tensor(k_ends);
    const Tensor query = numbers({1, 9, 10}, DType::f32, 6),
                 key = numbers({1, 11, 10}, DType::f32, 7);
    const Tensor self = layer.forward(query, {.causal = true, .cu_seqlens_q = cu_q});
    const Tensor cross =
        layer.forward(query, key, key, {.cu_seqlens_q = cu_q, .cu_seqlens_k = cu_k});
    for (std::size_t n = 0; n + 1 < q_ends.size(); ++n) {
      const ConstTensorView q = query.view().slice(1, q_ends[n], q_ends[n + 1]),
                            k = key.view().slice(1, k_ends[n], k_ends[n + 1]);
      EXPECT_EQ(difference(layer.forward(q, {.causal = true}),
                           self.view().slice(1, q_ends[n], q_ends[n + 1])),
                "")
          << n;
      EXPECT_EQ(difference(layer.forward(q, k, k), cross.view().slice(1, q_ends[n], q_ends[n + 1])),
                "")
          << n;
    }
  }
}

// On a device nobody checks them.
TEST(Rotary, starts_of_no_sequence_are_not_read_beyond) {
  std::int64_t starts[] = {0, 1000};
  const Strided one{reinterpret_cast<std::byte*>(starts), DType::i64, true, {1, 0, 0, 0}};
  EXPECT_EQ(place_of({.length = 3, .starts = one, .ends_with_keys = true}, 2), 0);
}

// Turned back, the features are what they were: the way of the gradient. The layer's gradients are
// in multi_head_gradient_test.
TEST(Rotary, lengths_of_pairs_stay) {
  const MultiHeadAttention layer = rotary_layer({.pairing = Pairing::halves});
  const Trace trace =
      layer.trace(numbers({1, 20, 10}, DType::f64, 8), AttentionOptions{.query_offset = 1000000});
  for (std::int64_t i = 0; i < 20; ++i)
    for (std::int64_t h = 0; h < 4; ++h)
      for (std::int64_t c = 0; c < 3; ++c) {
        const auto before = [&](std::int64_t x) { return value(trace.at("q"), {0, i, h * 6 + x}); };
        const auto after = [&](std::int64_t x) { return value(trace.at("q_heads"), {0, h, i, x}); };
        EXPECT_NEAR(std::hypot(before(c), before(c + 3)), std::hypot(after(c), after(c + 3)),
                    1e-14);
      }
}

TEST(Rotary, unfit_options_are_refused) {
  const auto error = [](const Rotary& rotary, std::int64_t d_k = 6) {
    return error_of([&] { MultiHeadAttention({.model_dim = 8, .d_k = d_k, .rotary = rotary}); });
  };
  const std::string start = "InvalidArgument: multi_head_attention: rotary.";
  EXPECT_EQ(error({.dim = 3}), start + "dim is 3; it must be even and at most d_k 6");
  EXPECT_EQ(error({.dim = 8}), start + "dim is 8; it must be even and at most d_k 6");
  EXPECT_EQ(error({.dim = -2}), start + "dim is -2; it must be even and at most d_k 6");
  EXPECT_EQ(error({}, 5), start + "dim is 5; it must be even and at most d_k 5");
  EXPECT_EQ(error({.base = 0}), start + "base is 0; it must be finite and above 0");
  EXPECT_EQ(error({.base = INFINITY}), start + "base is inf; it must be finite and above 0");
  EXPECT_EQ(error({.base = NAN}), start + "base is nan; it must be finite and above 0");
  // Options that attention refuses are refused before anything is turned by them.
  const Tensor wrong = lengths_tensor({1, 2, 3});
  const MultiHeadAttention layer = rotary_layer({});
  const Tensor x = numbers({2, 3, 10}, DType::f64, 1);
  for (const AttentionOptions& options : std::vector<AttentionOptions>{
           {.query_offset = wrong}, {.key_lengths = wrong}, {.cu_seqlens_q = wrong}})
    EXPECT_TRUE(
        error_of([&] { layer.forward(x, options); }).starts_with("InvalidArgument: attention"));
}

}  // namespace
}  // namespace attend::test
