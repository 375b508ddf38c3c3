// Options of MultiHeadAttention from keywords and back; blocks take them too.
#pragma once

#include "layer.h"

#include <attend/multi_head_attention.h>

namespace attend::python {

std::optional<Rotary> to_rotary(nb::handle value, const char* where);
MultiHeadAttentionOptions to_multi_head_options(nb::handle dict, const char* where);
nb::dict to_python(const MultiHeadAttentionOptions& options);

}  // namespace attend::python
