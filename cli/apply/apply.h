// What `attend apply` was asked for, and what came of it.
#pragma once

#include "files/attention_flags.h"
#include "files/layer_file.h"
#include "files/outputs.h"

#include <attend/block.h>

namespace attend::cli {

enum class Mode { attention, layer, block };

struct ApplyOptions {
  AttentionFlags attention;
  std::string q, k, v;                           // bare attention
  std::string input, query, key, value, memory;  // a layer or a block
  std::string cross_mask, cross_key_lengths;     // of a block's cross-attention
  LayerFile file;                                // its heads: those of `sizes`
  bool block = false;
  AttentionBlockOptions sizes{.attention = {.heads = 0}};  // of a layer: `attention`; 0: not given
  std::string activation = "gelu", placement = "post", norm = "layer_norm";
  bool no_bias = false;
  std::int64_t batch = 1, length = 0, key_length = 0;
  std::string type;  // empty: that of the inputs

  std::string output, save_weights, weight_heads, save_lse, save_scores, score_stage = "masked";
  std::string trace, save_layer;
};

struct NamedInput {
  std::string name;
  Tensor tensor;
};

struct Applied {
  Mode mode = Mode::attention;
  std::vector<NamedInput> inputs;
  std::int64_t parameters = 0;
  std::string kernel;
  double seconds = 0;
  Tensor output, weights, lse, scores;  // the last three if asked for
  Trace trace;                          // if asked for
};

// Reads, computes, writes all files or none.
Applied apply(const ApplyOptions& options, Mode mode, std::uint64_t seed, Context& context,
              Outputs& outputs);

}  // namespace attend::cli
