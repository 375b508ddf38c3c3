// Whether two tensors share memory, exactly: gradients interleaved in one buffer do not.
#pragma once

#include <attend/tensor.h>

namespace attend {

struct ByteRange {
  std::int64_t first = 0, last = 0;  // lowest and highest address of a byte
};
// Of a view that does not span too far. What it says of an empty one means nothing.
ByteRange byte_range_of(const ConstTensorView& view) noexcept;

// Whether the view's first and last byte are more than 2^60 bytes apart.
bool spans_too_far(const ConstTensorView& view) noexcept;

// Strides so tangled that the search takes more steps than this count as overlap. Those of real
// tensors take less than a hundred.
inline constexpr int kMaxOverlapSteps = 100000;

// Whether two different elements of the view share a byte.
bool overlaps_itself(const ConstTensorView& view, int max_steps = kMaxOverlapSteps) noexcept;

// Whether an element of one and an element of the other share a byte.
bool overlap(const ConstTensorView& a, const ConstTensorView& b,
             int max_steps = kMaxOverlapSteps) noexcept;

}  // namespace attend
