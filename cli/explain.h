// What `attend explain` can tell of, each as an Explanation.
#pragma once

#include "attention_flags.h"
#include "explanation.h"
#include "layer_file.h"

namespace attend::cli {

// The worked examples of the introductory notes, with what is wrong in them (docs/corrections.md).
Explanation explain_single_head(Context& context);
Explanation explain_two_heads(Context& context);
Explanation explain_sentence(std::int64_t head, Context& context);

struct LayerShape {
  std::int64_t batch = 32, length = 20, model_dim = 512, heads = 8;
};
Explanation explain_shapes(const LayerShape& shape);

struct ExplainFiles {
  std::vector<std::string> paths;  // a trace; a layer and its input; or q, k, v
  AttentionFlags attention{};
  std::string text{}, tokens{};  // whose words are the tokens; a file of them
  LayerFile layer{};             // how to read a layer; its prefix is a trace's too
  std::int64_t head = 0, sequence = 0;
};
Explanation explain_files(const ExplainFiles& files, Context& context);

}  // namespace attend::cli
