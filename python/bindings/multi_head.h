// What the files of MultiHeadAttention share: its options from keywords and back, which blocks take
// too, and the two halves of its binding.
#pragma once

#include "layer.h"

#include <attend/multi_head_attention.h>

namespace attend::python {

std::optional<Rotary> to_rotary(nb::handle value, const char* where);
MultiHeadAttentionOptions to_multi_head_options(nb::handle dict, const char* where);
nb::dict to_python(const MultiHeadAttentionOptions& options);

void bind_weights(nb::class_<MultiHeadAttention>& type);

}  // namespace attend::python
