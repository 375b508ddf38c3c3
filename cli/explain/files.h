// What `attend explain` tells of files.
#pragma once

#include "explanation.h"
#include "files/attention_flags.h"
#include "files/layer_file.h"

#include <attend/context.h>

namespace attend::cli {

struct ExplainFiles {
  std::vector<std::string> paths;  // a trace; a layer and its input; or q, k, v
  AttentionFlags attention{};
  std::string text{}, tokens{};  // whose words are the tokens; a file of them
  LayerFile layer{};             // how to read a layer; its prefix is a trace's too
  std::int64_t head = 0, sequence = 0;
};
Explanation explain_files(const ExplainFiles& files, Context& context);

}  // namespace attend::cli
