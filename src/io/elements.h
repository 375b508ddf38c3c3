// The elements of a tensor as bytes of a file: row-major, little-endian, without gaps. That part is
// the same in both formats.
#pragma once

#include "io/file.h"

#include <attend/tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace attend {

// Bytes of a tensor of these sizes. Nothing if the product is 2^63 or more even without the sizes
// that are zero: then its strides could not be told. At most kMaxRank sizes.
std::optional<std::uint64_t> byte_count(const std::vector<std::uint64_t>& sizes, DType type);

// The sizes as a Shape, once byte_count has accepted them.
Shape shape_of(const std::vector<std::uint64_t>& sizes);

// A tensor from the bytes at `offset`; `what` stands for it in messages.
Tensor read_elements(const Source& source, std::uint64_t offset, const Shape& shape, DType type,
                     std::string_view what);

// The elements of a view with any strides.
void write_elements(Sink& sink, const ConstTensorView& view);

// Throws unless there is a tensor in host memory. `what` is "the tensor" or its name.
void check_writable(std::string_view where, std::string_view what, const ConstTensorView& view);

}  // namespace attend
