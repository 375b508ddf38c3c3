// The format of `safetensors` on any Source and Sink.
//
//   offset 0   8 bytes   the header's length N
//          8   N bytes   {"__metadata__": {"key": "value", ...},
//                         "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
//      8 + N             data, to the end of the file; the offsets count from here
#pragma once

#include "io/file.h"

#include <attend/io.h>

#include <vector>

namespace attend {

TensorFile read_safetensors(const Source& source);

// `where` begins the messages about what cannot be written.
std::string safetensors_head(const std::string& where, const std::vector<NamedView>& tensors,
                             const Metadata& metadata);
void write_safetensors(Sink& sink, const std::string& head, const std::vector<NamedView>& tensors);

}  // namespace attend
