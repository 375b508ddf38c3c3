// A layer in a file of weights, as flags name it.
#pragma once

#include <attend/multi_head_attention.h>

#include <optional>
#include <string>

namespace attend::cli {

class Flags;

struct LayerFile {
  std::string weights, prefix, orientation = "automatic";
  std::int64_t heads = 0, key_heads = 0;  // 0: the file says it
  std::string rotary;                     // empty: the file says it
  double rotary_base = 10000;
  std::int64_t rotary_dim = 0;
  bool no_output_projection = false;
};

void add_layer_file_flags(Flags flags, LayerFile& file);

std::optional<Rotary> rotary_of(const LayerFile& file);

// Its weights turned into `type`, if that is given.
MultiHeadAttention load_layer(const LayerFile& file, std::optional<DType> type);

// Whether a file holds a layer's weights, for a hint where q, k and v or a trace were expected.
bool holds_weights(const TensorFile& file);

}  // namespace attend::cli
