// Whether two tensors share memory, exactly: gradients interleaved in one buffer do not.
#pragma once

#include <attend/tensor.h>

namespace attend {

// Whether the addresses of the view's elements fit in 63 bits.
bool spans_too_far(const ConstTensorView& view) noexcept;

// Whether two different elements of the view share a byte.
bool overlaps_itself(const ConstTensorView& view) noexcept;

// Whether an element of one and an element of the other share a byte. Strides so tangled that this
// takes more than a bounded search count as overlap.
bool overlap(const ConstTensorView& a, const ConstTensorView& b) noexcept;

}  // namespace attend
