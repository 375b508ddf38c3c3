// A cache changes no bit: prompts at once or in parts, tokens one by one, dense or paged, give what
// the whole sequence gives. And the books of a paged cache.
#include "support/attention_layers.h"

#include <attend/block.h>

namespace attend::test {
namespace {

constexpr std::int64_t kBatch = 3, kLength = 11, kWidth = 8;

struct Pages {
  const char* name;
  std::int64_t size;
};
constexpr Pages kPages[] = {{"dense", 0}, {"pages of 1", 1}, {"pages of 3", 3}, {"one page", 64}};

struct LayerCase {
  const char* name;
  MultiHeadAttentionOptions options;
};
std::vector<LayerCase> layers(DType type) {
  const Rotary neighbours{.pairing = Rotary::Pairing::neighbours};
  return {
      {"plain", {.model_dim = kWidth, .heads = 4, .type = type}},
      {"grouped",
       {.model_dim = kWidth, .heads = 4, .key_heads = 2, .d_k = 3, .d_v = 5, .type = type}},
      {"rotary",
       {.model_dim = kWidth, .heads = 4, .key_heads = 1, .rotary = Rotary{}, .type = type}},
      {"neighbours",
       {.model_dim = kWidth, .heads = 4, .d_k = 6, .rotary = neighbours, .type = type}},
      {"no_output", {.model_dim = kWidth, .heads = 4, .output_projection = false, .type = type}}};
}

struct OptionCase {
  const char* name;
  AttentionOptions options;
};
std::vector<OptionCase> option_cases() {
  static const Tensor alibi = numbers({4}, DType::f32, 61), sinks = numbers({4}, DType::f32, 62);
  return {{"causal", {.causal = true}},
          {"window", {.causal = true, .window = {2, 0}}},
          {"alibi", {.causal = true, .alibi = alibi}},
          {"sinks", {.softcap = 1, .causal = true, .sinks = sinks}}};
}

// Rows [begin, begin + count) of x.
Tensor tokens(const Tensor& x, std::int64_t begin, std::int64_t count) {
  return part_of(x, 1, begin, begin + count);
}

// What `forward(tokens, cache)` gives for the parts of the sequence, one behind the other, must be
// the rows of `whole`.
template <class Forward>
void expect_same_rows(const Tensor& x, const Tensor& whole, const std::vector<std::int64_t>& parts,
                      const Forward& forward, const std::string& name) {
  std::int64_t begin = 0;
  for (const std::int64_t count : parts) {
    EXPECT_EQ(difference(forward(tokens(x, begin, count)), tokens(whole, begin, count)), "")
        << name << ": " << count << " tokens from " << begin;
    begin += count;
  }
}

const std::vector<std::vector<std::int64_t>> kSchedules = {
    {11}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {4, 1, 1, 5}, {7, 4}, {2, 0, 9}};

TEST(KvCache, prefill_parts_and_decode_have_the_bits_of_the_whole) {
  for (const DType type : {DType::f32, DType::bf16})
    for (const LayerCase& l : layers(type)) {
      const MultiHeadAttention layer = drawn(l.options);
      const Tensor x = numbers({kBatch, kLength, kWidth}, type, 63);
      for (const auto& [option_name, options] : option_cases()) {
        const Tensor whole = layer.forward(x, options);
        for (const Pages& pages : kPages)
          for (std::size_t n = 0; n < kSchedules.size(); ++n) {
            KvCache cache = layer.make_cache(kBatch, kLength, pages.size);
            const std::string name = std::string(l.name) + " " + option_name + " " + pages.name +
                                     " schedule " + std::to_string(n);
            expect_same_rows(
                x, whole, kSchedules[n],
                [&, &o = options](const Tensor& part) { return layer.forward(part, cache, o); },
                name);
            EXPECT_EQ(cache.length(2), kLength) << name;
          }
      }
    }
}

// Sequence b brings counts[b] tokens at each step.
TEST(KvCache, sequences_of_different_lengths_do_not_meet) {
  const std::vector<std::vector<std::int64_t>> steps = {{4, 1, 0}, {0, 3, 2}, {1, 1, 1}, {5, 0, 3}};
  for (const LayerCase& l : layers(DType::f32)) {
    const MultiHeadAttention layer = drawn(l.options);
    const Tensor x = numbers({kBatch, kLength, kWidth}, DType::f32, 64);
    const Tensor whole = layer.forward(x, {.causal = true});
    for (const Pages& pages : kPages) {
      KvCache cache = layer.make_cache(kBatch, kLength, pages.size);
      for (const auto& counts : steps) {
        const std::int64_t most = *std::max_element(counts.begin(), counts.end());
        Tensor part = Tensor({kBatch, most, kWidth});  // padded with NaN
        std::fill_n(part.data<float>(), part.count(), NAN);
        for (std::int64_t b = 0; b < kBatch; ++b)
          std::copy_n(x.data<float>() + (b * kLength + cache.length(b)) * kWidth,
                      counts[static_cast<std::size_t>(b)] * kWidth,
                      part.data<float>() + b * most * kWidth);
        const std::vector<std::int64_t> before = {cache.length(0), cache.length(1),
                                                  cache.length(2)};
        const Tensor y = layer.forward(part, cache, {.causal = true}, lengths_tensor(counts));
        for (std::int64_t b = 0; b < kBatch; ++b) {
          const auto n = static_cast<std::size_t>(b);
          EXPECT_EQ(cache.length(b), before[n] + counts[n]);
          EXPECT_EQ(
              difference(y.view().slice(0, b, b + 1).slice(1, 0, counts[n]),
                         whole.view().slice(0, b, b + 1).slice(1, before[n], cache.length(b))),
              "")
              << l.name << " " << pages.name << " sequence " << b << " at " << before[n];
        }
      }
    }
  }
}

// What was forgotten, and NaN in it, is as if it had never been there.
TEST(KvCache, truncate_and_go_on_is_never_having_gone_there) {
  for (const LayerCase& l : layers(DType::f32)) {
    const MultiHeadAttention layer = drawn(l.options);
    const Tensor x = numbers({kBatch, kLength, kWidth}, DType::f32, 65);
    const Tensor whole = layer.forward(x, {.causal = true});
    Tensor wrong({kBatch, 4, kWidth});
    std::fill_n(wrong.data<float>(), wrong.count(), NAN);
    for (const Pages& pages : kPages) {
      KvCache cache = layer.make_cache(kBatch, kLength + 4, pages.size);
      layer.forward(tokens(x, 0, 5), cache, {.causal = true});
      const std::int64_t free = cache.free_pages();
      layer.forward(wrong, cache, {.causal = true});
      for (std::int64_t b = 0; b < kBatch; ++b) cache.truncate(b, 5);
      EXPECT_EQ(cache.free_pages(), free);
      EXPECT_EQ(
          difference(layer.forward(tokens(x, 5, 2), cache, {.causal = true}), tokens(whole, 5, 2)),
          "")
          << l.name << " " << pages.name;
      for (std::int64_t b = 0; b < kBatch; ++b) cache.truncate(b, 0);
      EXPECT_EQ(
          difference(layer.forward(tokens(x, 0, 3), cache, {.causal = true}), tokens(whole, 0, 3)),
          "")
          << l.name << " " << pages.name;
    }
  }
}

// ---- Cross-attention over a memory -------------------------------------------------------------

TEST(KvCache, a_memory_is_appended_once_and_attended_many_times) {
  const MultiHeadAttention layer = drawn({.model_dim = kWidth,
                                          .heads = 4,
                                          .key_heads = 2,
                                          .d_k = 3,
                                          .d_v = 4,
                                          .key_dim = 5,
                                          .value_dim = 6});
  const Tensor query = numbers({kBatch, 7, kWidth}, DType::f32, 66),
               key = numbers({kBatch, 9, 5}, DType::f32, 67),
               value = numbers({kBatch, 9, 6}, DType::f32, 68);
  const Tensor lengths = lengths_tensor({9, 4, 0});
  const Tensor whole = layer.forward(query, key, value, {.key_lengths = lengths});
  for (const Pages& pages : kPages) {
    KvCache cache = layer.make_cache(kBatch, 20, pages.size);
    layer.append(key, value, cache, lengths);
    for (std::int64_t i = 0; i < 7; ++i)
      EXPECT_EQ(difference(layer.attend(tokens(query, i, 1), cache), tokens(whole, i, 1)), "")
          << pages.name << " query " << i;
    EXPECT_EQ(difference(layer.attend(query, cache), whole), "") << pages.name;
    EXPECT_EQ(cache.length(1), 4);
  }
}

TEST(KvCache, a_block_decodes_to_the_bits_of_its_forward) {
  for (const bool cross : {false, true})
    for (const NormPlacement placement : {NormPlacement::post, NormPlacement::pre})
      for (const Pages& pages : kPages) {
        AttentionBlock block(
            {.attention = {.model_dim = kWidth, .heads = 4, .key_heads = 2, .rotary = Rotary{}},
             .cross = cross,
             .memory_dim = cross ? 5 : 0,
             .hidden_dim = 12,
             .activation = Activation::swiglu,
             .placement = placement});
        draw_parameters(block, 69);
        const Tensor x = numbers({kBatch, kLength, kWidth}, DType::f32, 70),
                     memory = numbers({kBatch, 6, 5}, DType::f32, 71);
        const Tensor whole =
            cross ? block.forward(x, memory, {.causal = true}) : block.forward(x, {.causal = true});
        for (const auto& schedule : kSchedules) {
          KvCache cache = block.attention().make_cache(kBatch, kLength, pages.size);
          KvCache kept = cross ? block.cross().make_cache(kBatch, 6, pages.size) : cache;
          if (cross) block.cross().append(memory, memory, kept);
          expect_same_rows(
              x, whole, schedule,
              [&](const Tensor& part) {
                return cross ? block.forward(part, cache, kept, {.causal = true})
                             : block.forward(part, cache, {.causal = true});
              },
              pages.name);
        }
      }
}

// ---- What is refused changes nothing -----------------------------------------------------------

// Free pages, and of every sequence its length, its pages and their keys and values.
std::vector<Tensor> state_of(const KvCache& cache) {
  std::vector<Tensor> all = {lengths_tensor({cache.free_pages()})};
  const std::int64_t size = cache.keys().size(2);
  for (std::int64_t b = 0; b < cache.options().batch; ++b) {
    all.push_back(lengths_tensor({cache.length(b)}));
    for (std::int64_t j = 0; j < cache.length(b); ++j) {
      const std::int64_t page =
          cache.block_table() ? cache.block_table().at<std::int64_t>({b, j / size}) : b;
      all.push_back(lengths_tensor({page}));
      for (const ConstTensorView& t : {cache.keys(), cache.values()})
        all.push_back(Tensor::copy_of(t.slice(0, page, page + 1).slice(2, j % size, j % size + 1)));
    }
  }
  return all;
}

void expect_unchanged(const KvCache& cache, const std::vector<Tensor>& before, const char* name) {
  const std::vector<Tensor> after = state_of(cache);
  ASSERT_EQ(after.size(), before.size()) << name;
  for (std::size_t n = 0; n < before.size(); ++n)
    EXPECT_EQ(difference(after[n], before[n]), "") << name << " " << n;
}

TEST(KvCache, refusals_change_nothing_and_the_next_token_is_right) {
  const MultiHeadAttention layer = drawn({.model_dim = kWidth, .heads = 4, .rotary = Rotary{}});
  const Tensor x = numbers({kBatch, kLength, kWidth}, DType::f32, 72), more = tokens(x, 5, 4);
  const Tensor whole = layer.forward(x, {.causal = true});
  const Tensor bad_mask({kBatch, 2, 4, 9}, DType::u8), bad_lengths = lengths_tensor({1, 5, 1}),
                                                       negative = lengths_tensor({1, -1, 1}),
                                                       few = lengths_tensor({1});
  for (const Pages& pages : kPages) {
    KvCache cache = layer.make_cache(kBatch, 8, pages.size);
    layer.forward(tokens(x, 0, 5), cache, {.causal = true});
    const std::vector<Tensor> before = state_of(cache);
    const auto refused = [&](const char* name, const auto& call) {
      EXPECT_TRUE(error_of(call).starts_with("InvalidArgument: "))
          << name << ": " << error_of(call);
      expect_unchanged(cache, before, name);
    };
    refused("capacity", [&] { layer.forward(more, cache); });
    refused("lengths too long", [&] { layer.forward(more, cache, {}, bad_lengths); });
    refused("lengths negative", [&] { layer.forward(more, cache, {}, negative); });
    refused("lengths of another batch", [&] { layer.forward(more, cache, {}, few); });
    const Tensor two = tokens(x, 5, 2);
    refused("mask", [&] { layer.forward(two, cache, {.mask = bad_mask}); });
    refused("scale", [&] { layer.forward(two, cache, AttentionOptions{.scale = NAN}); });
    refused("query_offset", [&] { layer.forward(two, cache, {.query_offset = 0}); });
    refused("key_lengths", [&] { layer.forward(two, cache, {.key_lengths = few}); });
    refused("batch", [&] { layer.forward(two.view().slice(0, 0, 2), cache); });
    refused("width", [&] { layer.forward(numbers({kBatch, 2, 5}, DType::f32, 1), cache); });
    refused("type", [&] { layer.forward(numbers({kBatch, 2, kWidth}, DType::f64, 1), cache); });
    refused("none", [&] { layer.forward(ConstTensorView(), cache); });
    refused("truncate", [&] { cache.truncate(0, 6); });
    refused("truncate", [&] { cache.truncate(3, 0); });
    EXPECT_EQ(difference(layer.forward(two, cache, {.causal = true}), tokens(whole, 5, 2)), "")
        << pages.name;
  }
}

TEST(KvCache, a_block_that_fails_behind_its_attention_forgets_the_tokens) {
  const AttentionBlock block({.attention = {.model_dim = kWidth, .heads = 4}, .cross = true});
  const Tensor x = numbers({kBatch, 2, kWidth}, DType::f32, 73), bad_mask({2}, DType::f32);
  KvCache cache = block.attention().make_cache(kBatch, 8, 3);
  KvCache memory = block.cross().make_cache(kBatch, 4);
  block.cross().append(x, x, memory);
  block.forward(x, cache, memory);
  const std::vector<Tensor> before = state_of(cache);
  EXPECT_TRUE(error_of([&] {
                block.forward(x, cache, memory, {}, {.mask = bad_mask});
              }).starts_with("InvalidArgument: attention"));
  expect_unchanged(cache, before, "block");
}

// ---- Pages -------------------------------------------------------------------------------------

TEST(KvCache, pages_are_taken_as_sequences_grow_and_come_back) {
  KvCache cache({.batch = 2, .key_heads = 1, .d_k = 2, .capacity = 10, .page_size = 3, .pages = 5});
  EXPECT_EQ(cache.free_pages(), 5);
  const auto append = [&](std::int64_t first, std::int64_t second) {
    const std::int64_t n = std::max(first, second);
    cache.append(Tensor({2, 1, n, 2}), Tensor({2, 1, n, 2}), lengths_tensor({first, second}));
  };
  append(3, 0);
  EXPECT_EQ(cache.free_pages(), 4);
  append(1, 1);
  EXPECT_EQ(cache.free_pages(), 2);
  append(2, 2);
  EXPECT_EQ(cache.free_pages(), 2);
  append(1, 1);
  EXPECT_EQ(cache.free_pages(), 0);
  EXPECT_EQ(error_of([&] { append(3, 0); }),
            "InvalidArgument: kv_cache: 1 more pages of 3 tokens are needed, 0 of 5 are free");
  EXPECT_EQ(
      error_of([&] { append(2, 7); }),
      "InvalidArgument: kv_cache: sequence 1 holds 4 tokens and 7 more are given; the capacity "
      "is 10");
  cache.truncate(0, 4);
  EXPECT_EQ(cache.free_pages(), 1);
  append(0, 3);
  EXPECT_EQ(cache.free_pages(), 0);
  cache.truncate(0, 0);
  cache.truncate(1, 0);
  EXPECT_EQ(cache.free_pages(), 5);
  append(9, 6);
  std::vector<bool> held(5);  // no page belongs to two
  for (const auto& [b, page] : {std::pair{0, 0}, {0, 1}, {0, 2}, {1, 0}, {1, 1}}) {
    const auto place = static_cast<std::size_t>(cache.block_table().at<std::int64_t>({b, page}));
    EXPECT_FALSE(held.at(place));
    held[place] = true;
  }
}

// A copy is a cache of its own: both go on from the same tokens.
TEST(KvCache, copies_part_ways) {
  const MultiHeadAttention layer = drawn({.model_dim = kWidth, .heads = 4});
  const Tensor x = numbers({1, kLength, kWidth}, DType::f32, 74),
               other = numbers({1, kLength, kWidth}, DType::f32, 75);
  for (const Pages& pages : kPages) {
    KvCache cache = layer.make_cache(1, kLength, pages.size);
    layer.forward(tokens(x, 0, 4), cache, {.causal = true});
    KvCache copy = cache;
    layer.forward(tokens(other, 4, 3), copy, {.causal = true});
    EXPECT_EQ(difference(layer.forward(tokens(x, 4, 7), cache, {.causal = true}),
                         tokens(layer.forward(x, {.causal = true}), 4, 7)),
              "");
    EXPECT_EQ(copy.length(0), 7);
    copy.truncate(0, 0);
    EXPECT_EQ(copy.free_pages(), copy.options().pages);
  }
}

// Keys and values lie where attention() looks for them, from any strides.
TEST(KvCache, holds_what_was_appended) {
  const Tensor k = numbers({2, 3, 5, 4}, DType::f16, 76), v = numbers({2, 3, 5, 2}, DType::f16, 77);
  Scattered sk(k), sv(v);
  for (const Pages& pages : kPages) {
    KvCache cache({.batch = 2,
                   .key_heads = 3,
                   .d_k = 4,
                   .d_v = 2,
                   .capacity = 6,
                   .page_size = pages.size,
                   .type = DType::f16});
    cache.append(sk.view(), sv.view());
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t j = 0; j < 5; ++j) {
        const std::int64_t page = pages.size == 0
                                      ? b
                                      : cache.block_table().at<std::int64_t>({b, j / pages.size}),
                           place = pages.size == 0 ? j : j % pages.size;
        const auto row = [](const ConstTensorView& t, std::int64_t n, std::int64_t i) {
          return t.slice(0, n, n + 1).slice(2, i, i + 1);
        };
        EXPECT_EQ(difference(row(cache.keys(), page, place), row(k, b, j)), "") << pages.name;
        EXPECT_EQ(difference(row(cache.values(), page, place), row(v, b, j)), "") << pages.name;
      }
  }
}

}  // namespace
}  // namespace attend::test
