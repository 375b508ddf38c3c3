// Are the command's formulas those of a real layer?
#include "frame/usage_error.h"
#include "info/cost.h"

#include <attend/multi_head_attention.h>

#include <gtest/gtest.h>

namespace attend::cli {
namespace {

// Elements of the parameters whose names end so.
std::int64_t counted(const MultiHeadAttention& layer, std::string_view ending) {
  std::int64_t count = 0;
  for (const NamedView& parameter : layer.parameters())
    if (parameter.name.ends_with(ending)) count += parameter.tensor.count();
  return count;
}

TEST(command_cost, counts_the_parameters_of_a_real_layer) {
  const LayerSizes layers[] = {
      {.model_dim = 24, .heads = 4, .queries = 5},
      {.model_dim = 24, .heads = 4, .key_heads = 2, .queries = 5},
      {.model_dim = 24, .heads = 5, .d_k = 3, .d_v = 7, .queries = 5},
      {.model_dim = 24, .heads = 2, .key_dim = 10, .value_dim = 6, .queries = 5},
      {.model_dim = 24, .heads = 2, .bias = false, .queries = 5},
      {.model_dim = 24, .heads = 3, .output_projection = false, .queries = 5},
  };
  for (const LayerSizes& given : layers) {
    const MultiHeadAttention layer({.model_dim = given.model_dim,
                                    .heads = given.heads,
                                    .key_heads = given.key_heads,
                                    .d_k = given.d_k,
                                    .d_v = given.d_v,
                                    .key_dim = given.key_dim,
                                    .value_dim = given.value_dim,
                                    .bias = given.bias,
                                    .output_projection = given.output_projection});
    const LayerSizes sizes = filled_in(given);
    EXPECT_EQ(sizes.key_heads, layer.options().key_heads);
    EXPECT_EQ(sizes.d_k, layer.options().d_k);
    EXPECT_EQ(sizes.d_v, layer.options().d_v);
    const Cost cost = cost_of(sizes);
    EXPECT_EQ(cost.weights, counted(layer, ".weight"));
    EXPECT_EQ(cost.biases, counted(layer, ".bias"));
  }
}

TEST(command_cost, refuses_what_the_layer_refuses_in_its_words) {
  const auto message = [](auto make, const auto& of) -> std::string {
    try {
      make(of);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "nothing";
  };
  const auto layer = [](const MultiHeadAttentionOptions& of) { MultiHeadAttention made(of); };
  const std::pair<LayerSizes, MultiHeadAttentionOptions> pairs[] = {
      {{.model_dim = 512, .heads = 7, .queries = 1}, {.model_dim = 512, .heads = 7}},
      {{.model_dim = 8, .heads = 4, .key_heads = 3, .queries = 1},
       {.model_dim = 8, .heads = 4, .key_heads = 3}},
      {{.model_dim = 8, .heads = 4, .d_v = -1, .queries = 1},
       {.model_dim = 8, .heads = 4, .d_v = -1}},
  };
  for (const auto& [sizes, options] : pairs)
    EXPECT_EQ("multi_head_attention: " + message(filled_in, sizes), message(layer, options));
}

TEST(command_cost, notices_what_outgrows_64_bits) {
  const LayerSizes huge =
      filled_in({.model_dim = std::int64_t{1} << 31, .heads = 1, .queries = std::int64_t{1} << 31});
  EXPECT_THROW(cost_of(huge), UsageError);
}

}  // namespace
}  // namespace attend::cli
