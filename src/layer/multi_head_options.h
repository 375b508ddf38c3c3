// The options of multi-head attention as metadata of a file.
#pragma once

#include "layer/metadata.h"

#include <attend/multi_head_attention.h>

namespace attend {

// heads, key_heads, d_k ... under `prefix` + name.
void write_options(Metadata& metadata, const std::string& prefix,
                   const MultiHeadAttentionOptions& options);
MultiHeadAttentionOptions read_options(const MetadataReader& reader, const std::string& prefix);

// rotary, rotary_base, rotary_dim; none, if `prefix` + rotary is not there or "none".
std::optional<Rotary> read_rotary(const MetadataReader& reader, const std::string& prefix);

}  // namespace attend
