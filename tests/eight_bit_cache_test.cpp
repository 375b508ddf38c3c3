// Caches of i8: what is stored is near what was given, depends on its own row alone, and everything
// that attends over such a cache sees the numbers times their scales.
#include "support/attention_layers.h"
#include "support/quantised_rows.h"

#include <attend/attention.h>
#include <attend/block.h>
#include <attend/model.h>

#include <cfenv>
#include <functional>
#include <limits>

namespace attend::test {
namespace {

constexpr std::int64_t kBatch = 2, kHeads = 3, kLength = 11, kKey = 7, kValue = 5;
constexpr std::int64_t kPageSizes[] = {0, 1, 3, 64};

KvCache empty(std::int64_t page_size, std::int64_t d_k = kKey, std::int64_t d_v = kValue) {
  return KvCache({.batch = kBatch,
                  .key_heads = kHeads,
                  .d_k = d_k,
                  .d_v = d_v,
                  .capacity = kLength,
                  .page_size = page_size,
                  .type = DType::i8});
}

// What the cache holds of sequence b, token j, head h.
struct Held {
  const std::int8_t* numbers;
  float scale;
};
Held held(const KvCache& cache, const ConstTensorView& t, const ConstTensorView& scales,
          std::int64_t b, std::int64_t h, std::int64_t j) {
  const std::int64_t size = t.size(2);
  const std::int64_t page =
      cache.block_table() ? cache.block_table().at<std::int64_t>({b, j / size}) : b;
  return {&t.at<std::int8_t>({page, h, j % size, 0}), scales.at<float>({page, h, j % size})};
}
Held key(const KvCache& cache, std::int64_t b, std::int64_t h, std::int64_t j) {
  return held(cache, cache.keys(), cache.k_scales(), b, h, j);
}
Held value(const KvCache& cache, std::int64_t b, std::int64_t h, std::int64_t j) {
  return held(cache, cache.values(), cache.v_scales(), b, h, j);
}

// A cache of one row as key and as value.
KvCache of_row(const std::vector<double>& row, DType type = DType::f64) {
  const auto d = static_cast<std::int64_t>(row.size());
  Tensor k({1, 1, 1, d}, type);
  with_type(type, [&]<class T>(T) {
    for (std::int64_t x = 0; x < d; ++x)
      k.data<T>()[x] = static_cast<T>(row[static_cast<std::size_t>(x)]);
  });
  KvCache cache({.key_heads = 1, .d_k = d, .capacity = 1, .type = DType::i8});
  cache.append(k, k);
  return cache;
}
std::vector<int> numbers_of(const KvCache& cache) {
  const std::int8_t* first = key(cache, 0, 0, 0).numbers;
  return {first, first + cache.options().d_k};
}
float scale_of(const KvCache& cache) { return key(cache, 0, 0, 0).scale; }

// ---- a row -------------------------------------------------------------------------------------

TEST(EightBitCache, a_number_is_at_most_half_a_scale_from_what_was_given) {
  expect_half_a_scale(2000, [](const std::vector<double>& row, DType type) {
    const KvCache cache = of_row(row, type);
    return QuantisedRow{numbers_of(cache), scale_of(cache)};
  });
}

TEST(EightBitCache, halves_go_to_the_even_number) {
  EXPECT_EQ(numbers_of(of_row({127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, -126.5})),
            (std::vector<int>{127, 0, 2, 2, 0, -2, -2, 126, -126}));
  EXPECT_EQ(numbers_of(of_row({-127, 0.5000001, 1.4999999}, DType::f32)),
            (std::vector<int>{-127, 1, 1}));
}

TEST(EightBitCache, the_callers_rounding_mode_moves_no_number) {
  const std::vector<double> row = {127, 0.5, 1.5, -2.5, 3.49, 3.51};
  const std::vector<int> wanted = numbers_of(of_row(row));
  for (const int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    std::fesetround(mode);
    const KvCache cache = of_row(row);
    std::fesetround(FE_TONEAREST);
    EXPECT_EQ(numbers_of(cache), wanted);
  }
}

TEST(EightBitCache, a_row_of_zeros_has_scale_0) {
  const KvCache cache = of_row({0, -0.0, 0});
  EXPECT_EQ(scale_of(cache), 0);
  EXPECT_EQ(numbers_of(cache), (std::vector<int>{0, 0, 0}));
}

TEST(EightBitCache, what_is_not_finite_is_nan_in_every_place) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const DType type : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const double x : {kNan, kInfinity, -kInfinity})
      for (const std::vector<double>& row : {std::vector<double>{x, 1, 2}, {1, 2, x}}) {
        const KvCache cache = of_row(row, type);
        EXPECT_TRUE(std::isnan(scale_of(cache))) << x;
        EXPECT_EQ(numbers_of(cache), (std::vector<int>{0, 0, 0}));
      }
  EXPECT_TRUE(std::isnan(scale_of(of_row({1, 1e60}))));  // no f32 is such a scale
  EXPECT_EQ(numbers_of(of_row({1e40, -1e40})), (std::vector<int>{127, -127}));
}

// ---- a cache -----------------------------------------------------------------------------------

TEST(EightBitCache, appended_in_any_pieces_has_the_bits_of_at_once) {
  for (const DType type : {DType::f32, DType::bf16}) {
    const Tensor k = numbers({kBatch, kHeads, kLength, kKey}, type, 11),
                 v = numbers({kBatch, kHeads, kLength, kValue}, type, 12);
    KvCache whole = empty(0);
    whole.append(k, v);
    for (const std::int64_t page_size : kPageSizes)
      for (const std::int64_t piece : {1, 2, 4, 11}) {
        KvCache cache = empty(page_size);
        for (std::int64_t at = 0; at < kLength; at += piece) {
          const std::int64_t to = std::min(at + piece, kLength);
          cache.append(k.view().slice(2, at, to), v.view().slice(2, at, to));
        }
        const auto expect_same = [&](const Held& a, const Held& b, std::int64_t d) {
          EXPECT_EQ(a.scale, b.scale);
          EXPECT_TRUE(std::equal(a.numbers, a.numbers + d, b.numbers));
        };
        for (std::int64_t b = 0; b < kBatch; ++b)
          for (std::int64_t h = 0; h < kHeads; ++h)
            for (std::int64_t j = 0; j < kLength; ++j) {
              expect_same(key(cache, b, h, j), key(whole, b, h, j), kKey);
              expect_same(value(cache, b, h, j), value(whole, b, h, j), kValue);
            }
      }
  }
}

TEST(EightBitCache, shows_scales_that_fit_its_keys_and_others_have_none) {
  for (const std::int64_t page_size : kPageSizes) {
    const KvCache cache = empty(page_size);
    EXPECT_EQ(cache.keys().dtype(), DType::i8);
    EXPECT_EQ(cache.k_scales().dtype(), DType::f32);
    const Shape keys = cache.keys().shape();
    EXPECT_EQ(cache.k_scales().shape(), (Shape{keys[0], keys[1], keys[2]}));
    EXPECT_EQ(cache.v_scales().shape(), cache.k_scales().shape());
  }
  const KvCache plain({.key_heads = 1, .d_k = 2, .capacity = 3});
  EXPECT_FALSE(plain.k_scales() || plain.v_scales());
}

// Every token of the cache as the numbers it means, f64.
std::pair<Tensor, Tensor> meant(const KvCache& cache) {
  const KvCacheOptions& o = cache.options();
  Tensor k({o.batch, o.key_heads, cache.length(0), o.d_k}, DType::f64),
      v({o.batch, o.key_heads, cache.length(0), o.d_v}, DType::f64);
  for (std::int64_t b = 0; b < o.batch; ++b)
    for (std::int64_t h = 0; h < o.key_heads; ++h)
      for (std::int64_t j = 0; j < cache.length(0); ++j) {
        const Held of_k = key(cache, b, h, j), of_v = value(cache, b, h, j);
        for (std::int64_t x = 0; x < o.d_k; ++x)
          k.at<double>({b, h, j, x}) = of_k.numbers[x] * static_cast<double>(of_k.scale);
        for (std::int64_t x = 0; x < o.d_v; ++x)
          v.at<double>({b, h, j, x}) = of_v.numbers[x] * static_cast<double>(of_v.scale);
      }
  return {std::move(k), std::move(v)};
}

AttentionOptions over(const KvCache& cache) {
  return {.key_lengths = cache.key_lengths(),
          .block_table = cache.block_table(),
          .k_scales = cache.k_scales(),
          .v_scales = cache.v_scales()};
}

TEST(EightBitCache, attention_sees_the_numbers_times_their_scales) {
  const Tensor k = numbers({kBatch, kHeads, kLength, kKey}, DType::f64, 13),
               v = numbers({kBatch, kHeads, kLength, kValue}, DType::f64, 14),
               q = numbers({kBatch, 2 * kHeads, 2, kKey}, DType::f64, 15);
  for (const std::int64_t page_size : kPageSizes) {
    KvCache cache = empty(page_size);
    cache.append(k, v);
    const auto [k_meant, v_meant] = meant(cache);
    EXPECT_LE(largest_difference(attention(q, cache.keys(), cache.values(), over(cache)),
                                 attention(q, k_meant, v_meant)),
              1e-12);
  }
}

// A token that holds NaN is NaN to whoever sees it, and nothing to anybody else.
TEST(EightBitCache, nan_is_seen_by_those_who_see_its_token) {
  Tensor k = numbers({kBatch, kHeads, kLength, kKey}, DType::f32, 16),
         v = numbers({kBatch, kHeads, kLength, kValue}, DType::f32, 17);
  const Tensor q = numbers({kBatch, kHeads, kLength, kKey}, DType::f32, 18);
  KvCache sound = empty(3);
  sound.append(k, v);
  const auto causal = [&](const KvCache& cache) {
    AttentionOptions options = over(cache);
    options.causal = true;
    return attention(q, cache.keys(), cache.values(), options);
  };
  const Tensor wanted = causal(sound);
  for (Tensor* broken : {&k, &v}) {
    float& x = broken->at<float>({1, 2, 6, 0});
    const float before = std::exchange(x, std::numeric_limits<float>::infinity());
    KvCache cache = empty(3);
    cache.append(k, v);
    x = before;
    const Tensor out = causal(cache);
    for (std::int64_t b = 0; b < kBatch; ++b)
      for (std::int64_t h = 0; h < kHeads; ++h)
        for (std::int64_t i = 0; i < kLength; ++i)
          for (std::int64_t c = 0; c < kValue; ++c) {
            const float found = out.at<float>({b, h, i, c});
            if (b == 1 && h == 2 && i >= 6) EXPECT_TRUE(std::isnan(found));
            else EXPECT_EQ(found, wanted.at<float>({b, h, i, c}));
          }
  }
}

// ---- layers ------------------------------------------------------------------------------------

constexpr std::int64_t kWidth = 8;

std::vector<MultiHeadAttentionOptions> layers(DType type) {
  return {{.model_dim = kWidth, .heads = 4, .type = type},
          {.model_dim = kWidth, .heads = 4, .key_heads = 2, .d_k = 3, .d_v = 5, .type = type},
          {.model_dim = kWidth, .heads = 4, .key_heads = 1, .rotary = Rotary{}, .type = type}};
}

TEST(EightBitCache, prompts_at_once_in_parts_dense_or_paged_have_the_same_bits) {
  for (const DType type : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const MultiHeadAttentionOptions& options : layers(type)) {
      const MultiHeadAttention layer = drawn(options);
      const Tensor x = numbers({kBatch, kLength, kWidth}, type, 63);
      KvCache dense = layer.make_cache(kBatch, kLength, 0, 0, DType::i8);
      const Tensor whole = layer.forward(x, dense, {.causal = true});
      EXPECT_LE(largest_difference(whole, layer.forward(x, {.causal = true})), 0.02);
      for (const std::int64_t page_size : kPageSizes)
        for (const std::int64_t piece : {1, 4}) {
          KvCache cache = layer.make_cache(kBatch, kLength, page_size, 0, DType::i8);
          for (std::int64_t at = 0; at < kLength; at += piece) {
            const std::int64_t to = std::min(at + piece, kLength);
            EXPECT_EQ(difference(layer.forward(part_of(x, 1, at, to), cache, {.causal = true}),
                                 part_of(whole, 1, at, to)),
                      "")
                << "pages of " << page_size << ", from " << at;
          }
        }
    }
}

// What was forgotten, and NaN in its scale, is as if it had never been there.
TEST(EightBitCache, forgotten_nan_changes_no_bit) {
  const MultiHeadAttention layer = drawn({.model_dim = kWidth, .heads = 4, .key_heads = 2});
  const Tensor x = numbers({kBatch, kLength, kWidth}, DType::f32, 65);
  Tensor wrong({kBatch, 4, kWidth});
  std::fill_n(wrong.data<float>(), wrong.count(), NAN);
  for (const std::int64_t page_size : kPageSizes) {
    KvCache cache = layer.make_cache(kBatch, kLength, page_size, 0, DType::i8), other = cache;
    const Tensor whole = layer.forward(x, other, {.causal = true});
    layer.forward(part_of(x, 1, 0, 5), cache, {.causal = true});
    EXPECT_FALSE(all_finite(layer.forward(wrong, cache, {.causal = true})));
    for (std::int64_t b = 0; b < kBatch; ++b) cache.truncate(b, 5);
    EXPECT_EQ(difference(layer.forward(part_of(x, 1, 5, 7), cache, {.causal = true}),
                         part_of(whole, 1, 5, 7)),
              "")
        << page_size;
  }
}

TEST(EightBitCache, a_decoder_takes_it_for_its_tokens_and_for_its_memory) {
  const AttentionBlock block({.attention = {.model_dim = kWidth, .heads = 4}, .cross = true});
  const Tensor x = numbers({kBatch, 6, kWidth}, DType::f32, 66),
               memory = numbers({kBatch, 5, kWidth}, DType::f32, 67);
  const Tensor exact = block.forward(x, memory, {.causal = true});
  KvCache cache = block.attention().make_cache(kBatch, 6, 2, 0, DType::i8),
          kept = block.cross().make_cache(kBatch, 5, 0, 0, DType::i8);
  block.cross().append(memory, memory, kept);
  const Tensor y = block.forward(x, cache, kept, {.causal = true});
  EXPECT_LE(largest_difference(y, exact), 0.05);
  EXPECT_NE(difference(y, exact), "");
}

TEST(EightBitCache, a_model_generates_with_it) {
  const LanguageModel model(
      {.vocabulary = 5, .length = 8, .layers = 2, .model_dim = 8, .heads = 2, .seed = 3});
  std::vector<KvCache> caches = model.make_caches(1, DType::i8);
  EXPECT_EQ(caches.at(1).options().type, DType::i8);
  std::vector<std::int64_t> all = {1, 4};
  for (const std::int64_t token : model.generate({1, 4}, 4, 0, 0, DType::i8)) {
    for (KvCache& cache : caches) cache.truncate(0, 0);
    const auto size = static_cast<std::int64_t>(all.size());
    const Tensor logits = model.forward(ConstTensorView(all.data(), {1, size}), caches);
    const float* last = &logits.at<float>({0, size - 1, 0});
    EXPECT_EQ(token, std::max_element(last, last + 5) - last);
    all.push_back(token);
  }
}

}  // namespace
}  // namespace attend::test
