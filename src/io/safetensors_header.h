// The header of a safetensors file: what its JSON says, by kind and place, not yet what it means.
#pragma once

#include "io/file.h"

#include <attend/io.h>

#include <string>
#include <string_view>
#include <vector>

namespace attend {

inline constexpr std::string_view kMetadataKey = "__metadata__";
inline constexpr std::uint64_t kMaxSafetensorsHeader = 100'000'000;  // the format's own limit

struct TensorEntry {
  std::string name;
  std::string dtype;
  std::vector<std::uint64_t> shape;    // at most kMaxRank, each less than 2^63
  std::vector<std::uint64_t> offsets;  // two
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // in the order of the text
  Metadata metadata;
};

SafetensorsHeader parse_safetensors_header(const Source& source, std::string_view json);

// A string as JSON; throws InvalidArgument if it is not UTF-8. `where` and `what` are for that.
std::string json_string(const std::string& where, std::string_view what, const std::string& string);

}  // namespace attend
