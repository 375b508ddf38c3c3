// Hidden means hidden in layers too (P6, P26): NaN or infinity in a row that nobody sees changes no
// bit of any output or gradient, those of the weights included; what is seen reaches them.
#include "support/attention_layers.h"

#include <attend/block.h>

#include <functional>

namespace attend::test {
namespace {

constexpr std::int64_t kBatch = 2, kQueries = 5, kKeys = 7;

struct Case {
  const char* name;
  AttentionOptions options{};
  bool cross = true;
  bool packed = false;  // one row of sequences: 3 + 2 queries, 4 + 3 keys
  std::int64_t keys = kKeys;
};

// What the options of the cases show.
struct OptionTensors {
  Tensor lengths = lengths_tensor({4, 0}), packed_lengths = lengths_tensor({2, 3}),
         starts = lengths_tensor({0, 3, 5}), key_starts = lengths_tensor({0, 4, 7});
  Tensor mask{{kBatch, 4, kQueries, kKeys}, DType::u8}, short_mask{{1, 1, 1, 4}, DType::u8};
  Tensor tokens{{kBatch, 1, kQueries, kQueries}, DType::u8}, bias, blocks{{3, 4}, DType::u8}, sinks;

  explicit OptionTensors(DType type)
      : bias(numbers({1, 4, kQueries, kKeys}, type, 3)),
        sinks(numbers({4}, type == DType::f64 ? type : DType::f32, 4)) {
    const auto fill = [](Tensor& t, auto visible) {
      for (std::int64_t n = 0; n < t.count(); ++n)
        t.data<std::uint8_t>()[n] =
            visible(n / t.size(t.view().rank() - 1) % t.size(t.view().rank() - 2),
                    n % t.size(t.view().rank() - 1));
    };
    fill(mask, [](auto i, auto j) { return i != 1 && j % 3 != 2 && (i + j) % 4 != 0; });
    fill(short_mask, [](auto, auto j) { return j != 1; });
    fill(tokens, [](auto i, auto j) { return i != 2 && j != 2 && i != 4 && j != 4; });
    fill(blocks, [](auto i, auto j) { return i != 1 && j != 2; });
    with_type(type, [&]<class T>(T) {
      for (std::int64_t n = 0; n < bias.count(); ++n)
        if (n % kKeys == 3 || n / kKeys % kQueries == 0)
          bias.data<T>()[n] = static_cast<T>(-INFINITY);
    });
  }
};

std::vector<Case> cases(const OptionTensors& t) {
  return {
      {"key_lengths", {.key_lengths = t.lengths}},
      {"mask", {.mask = t.mask}},
      {"short_mask", {.mask = t.short_mask}},
      {"bias", {.bias = t.bias}},
      {"blocks", {.blocks = {t.blocks, 2, 2}}},
      {"causal_offset", {.causal = true, .query_offset = 0}},
      {"before_the_keys", {.causal = true, .query_offset = -3}},
      {.name = "causal_with_fewer_keys", .options = {.causal = true}, .keys = 3},
      {"window", {.window = {0, 0}, .query_offset = 1}},
      {"sinks_and_dropout",
       {.sinks = t.sinks, .key_lengths = t.lengths, .dropout = {.p = 0.5, .seed = 3}}},
      {"packed",
       {.key_lengths = t.packed_lengths, .cu_seqlens_q = t.starts, .cu_seqlens_k = t.key_starts},
       true,
       true},
      {"tokens", {.mask = t.tokens}, false},
      {"tokens_behind_all", {.causal = true, .query_offset = -3}, false},
  };
}

// The rows that a layer is given, and which of them somebody sees.
struct Inputs {
  Tensor query, key, value;
  std::vector<bool> query_seen, key_seen;  // [batch * length]

  Inputs(const Case& c, const MultiHeadAttention& layer) {
    const MultiHeadAttentionOptions& o = layer.options();
    const std::int64_t batch = c.packed ? 1 : kBatch, keys = c.cross ? c.keys : kQueries;
    query = numbers({batch, kQueries, o.model_dim}, o.type, 11);
    key = c.cross ? numbers({batch, keys, o.key_dim}, o.type, 12) : query;
    value = c.cross ? numbers({batch, keys, o.value_dim}, o.type, 13) : query;
    query_seen.assign(static_cast<std::size_t>(batch * kQueries), false);
    key_seen.assign(static_cast<std::size_t>(batch * keys), false);
    // By the scores: a hidden pair's is -inf.
    const std::int64_t pairs = c.packed ? 2 : batch, longest = c.packed ? 3 : kQueries,
                       longest_key = c.packed ? 4 : keys;
    Tensor scores({pairs, o.heads, longest, longest_key}, o.type);
    layer.forward(query, key, value, c.options, {.scores = scores});
    for (std::int64_t n = 0; n < scores.count(); ++n) {
      if (element(scores, n) == -INFINITY) continue;
      const std::int64_t j = n % longest_key, i = n / longest_key % longest,
                         b = n / longest_key / longest / o.heads;
      query_seen[static_cast<std::size_t>(c.packed ? 3 * b + i : b * kQueries + i)] = true;
      key_seen[static_cast<std::size_t>(c.packed ? 4 * b + j : b * keys + j)] = true;
    }
  }

  // A value in one or in all places of every row that nobody sees; how many rows.
  int plant(bool cross, double poison, bool everywhere) {
    int rows = 0;
    const auto in = [&](Tensor& x, auto hidden) {
      const std::int64_t width = x.size(2);
      for (std::int64_t row = 0; row < x.count() / width; ++row) {
        if (!hidden(static_cast<std::size_t>(row))) continue;
        ++rows;
        with_type(x.dtype(), [&]<class T>(T) {
          for (std::int64_t n = everywhere ? 0 : row % width; n < width;
               n += everywhere ? 1 : width)
            x.data<T>()[row * width + n] = static_cast<T>(poison);
        });
      }
    };
    const auto as_query = [&](std::size_t row) { return !query_seen[row]; };
    const auto as_key = [&](std::size_t row) { return !key_seen[row]; };
    if (!cross) {
      in(query, [&](std::size_t row) { return as_query(row) && as_key(row); });
      return rows;
    }
    in(query, as_query);
    in(key, as_key);
    in(value, as_key);
    return rows;
  }
};

// y and every gradient.
std::vector<NamedTensor> results(const MultiHeadAttention& layer, const Case& c, const Inputs& x) {
  auto [y, saved] = c.cross ? layer.forward_train(x.query, x.key, x.value, c.options)
                            : layer.forward_train(x.query, c.options);
  MultiHeadAttention::Gradients g = layer.backward(numbers(y.shape(), y.dtype(), 21), saved);
  std::vector<NamedTensor> list = std::move(g.parameters);
  list.push_back({"y", std::move(y)});
  for (auto& [name, tensor] : {std::pair<const char*, Tensor*>{"dx", &g.dx},
                               {"dquery", &g.dquery},
                               {"dkey", &g.dkey},
                               {"dvalue", &g.dvalue},
                               {"dbias", &g.dbias}})
    if (*tensor) list.push_back({name, std::move(*tensor)});
  return list;
}

MultiHeadAttention layer_of(DType type, bool cross, bool rotary) {
  MultiHeadAttentionOptions options{
      .model_dim = 8, .heads = 4, .key_heads = 2, .d_k = 6, .d_v = 3, .type = type};
  if (cross) options.key_dim = 5, options.value_dim = 7;
  if (rotary) options.rotary = Rotary{.base = 10};
  return drawn(options);
}

// The sign of a zero is nobody's promise.
std::string first_difference(const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b) {
  if (a.size() != b.size()) return "one list is longer";
  for (std::size_t n = 0; n < a.size(); ++n)
    if (largest_difference(a[n].tensor, b[n].tensor) != 0) return a[n].name;
  return "";
}

TEST(LayersHidden, nan_in_rows_that_nobody_sees_changes_no_bit) {
  for (const DType type : kFloatTypes) {
    const OptionTensors tensors(type);
    for (const Case& c : cases(tensors))
      for (const bool rotary : {false, true}) {
        const MultiHeadAttention layer = layer_of(type, c.cross, rotary);
        Inputs zeros(c, layer);
        ASSERT_GT(zeros.plant(c.cross, 0, true), 0) << c.name << " hides nothing";
        const std::vector<NamedTensor> expected = results(layer, c, zeros);
        for (const double poison : {static_cast<double>(NAN), static_cast<double>(INFINITY),
                                    -static_cast<double>(INFINITY)})
          for (const bool everywhere : {true, false}) {
            Inputs planted(c, layer);
            planted.plant(c.cross, 0, true);
            planted.plant(c.cross, poison, everywhere);
            ASSERT_EQ(first_difference(results(layer, c, planted), expected), "")
                << c.name << ", " << type << ", rotary " << rotary << ", " << poison;
          }
      }
  }
}

TEST(LayersHidden, nan_that_is_seen_reaches_the_weights) {
  const OptionTensors tensors(DType::f64);
  const Case c{"key_lengths", {.key_lengths = tensors.lengths}};
  const MultiHeadAttention layer = layer_of(DType::f64, true, false);
  for (const int which : {0, 1, 2}) {
    Inputs x(c, layer);
    Tensor& planted = which == 0 ? x.query : which == 1 ? x.key : x.value;
    planted.at<double>({0, 1, 2}) = NAN;
    std::string reached;
    for (const NamedTensor& found : results(layer, c, x))
      if (!all_finite(found.tensor)) reached += found.name + " ";
    for (const char* name : {"q.weight", "k.weight", "v.weight", "o.weight", "y"})
      EXPECT_NE(reached.find(name), std::string::npos) << which << " reached " << reached;
  }
}

// A row of self-attention that sees nothing itself is not hidden if one head sees it: its NaN
// reaches the gradients of all three weights, those of the other heads too.
TEST(LayersHidden, nan_in_a_row_that_one_head_sees_reaches_the_weights) {
  constexpr std::int64_t kRow = 2;
  const MultiHeadAttention layer = layer_of(DType::f64, false, false);
  const std::int64_t heads = layer.options().heads;
  Tensor mask({1, heads, kQueries, kQueries}, DType::u8);
  for (std::int64_t h = 0; h < heads; ++h)
    for (std::int64_t i = 0; i < kQueries; ++i)
      for (std::int64_t j = 0; j < kQueries; ++j)
        mask.at<std::uint8_t>({0, h, i, j}) = i != kRow && (j != kRow || h == 0);
  const Case c{"one head", {.mask = mask}, false};
  Inputs x(c, layer);
  x.query.at<double>({0, kRow, 3}) = NAN;
  for (const NamedTensor& found : results(layer, c, x)) {
    if (found.name != "q.weight" && found.name != "k.weight" && found.name != "v.weight") continue;
    for (std::int64_t out = 0; out < found.tensor.size(0); ++out)
      EXPECT_TRUE(std::isnan(found.tensor.at<double>({out, 3}))) << found.name << " " << out;
  }
}

// A memory of a decoder: rows behind key_lengths. The block's own rows are never hidden: each is
// its own output, by the residual.
TEST(LayersHidden, nan_in_hidden_rows_of_a_blocks_memory_changes_no_bit) {
  const Tensor lengths = lengths_tensor({4, 0});
  for (const NormPlacement placement : {NormPlacement::post, NormPlacement::pre}) {
    AttentionBlock block({.attention = {.model_dim = 8, .heads = 2, .type = DType::f64},
                          .cross = true,
                          .memory_dim = 6,
                          .hidden_dim = 12,
                          .placement = placement});
    draw_parameters(block, 5);
    const Tensor x = numbers({kBatch, kQueries, 8}, DType::f64, 1);
    const auto run = [&](double hidden) {
      Tensor memory = numbers({kBatch, kKeys, 6}, DType::f64, 2);
      for (std::int64_t b = 0; b < kBatch; ++b)
        for (std::int64_t j = b == 0 ? 4 : 0; j < kKeys; ++j)
          for (std::int64_t n = 0; n < 6; ++n) memory.at<double>({b, j, n}) = hidden;
      auto [y, saved] = block.forward_train(x, memory, {.causal = true}, {.key_lengths = lengths});
      AttentionBlock::Gradients g = block.backward(numbers(y.shape(), DType::f64, 3), saved);
      std::vector<NamedTensor> list = std::move(g.parameters);
      list.push_back({"y", std::move(y)});
      list.push_back({"dx", std::move(g.dx)});
      list.push_back({"dmemory", std::move(g.dmemory)});
      return list;
    };
    const std::vector<NamedTensor> expected = run(0);
    for (const double poison : {static_cast<double>(NAN), static_cast<double>(INFINITY)})
      EXPECT_EQ(first_difference(run(poison), expected), "") << poison;
  }
}

}  // namespace
}  // namespace attend::test
