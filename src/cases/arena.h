// The memory of an Instance: strided tensors, surrounded and interspersed with bytes that nobody
// may read or write.
#pragma once

#include "cases.h"

#include <functional>
#include <span>
#include <vector>

namespace attend::cases {

// Calls visit(index) for every index of a shape, the last dimension fastest.
void for_each_index(const Shape& shape, const std::function<void(const Shape&)>& visit);

// Writes a number to the element of a view at an index, rounded to the view's type.
void store(const TensorView& view, const Shape& index, double value);

struct Arena {
  // A tensor in a buffer of its own, in a layout; where the layout does not apply, contiguous.
  TensorView place(const Shape& shape, DType type, Layout layout, bool output);

  // Tensors [B, H, T, d] of the same B, between each other in one buffer [B, T, all heads, d].
  std::vector<TensorView> interleave(std::span<const Shape> shapes, DType type, bool output);

  // To be called once the inputs are filled: from then on they may not change.
  void seal();
  bool intact() const;

  // Every buffer, guards included.
  std::vector<std::span<std::byte>> memory();

 private:
  struct Buffer {
    std::vector<std::byte> bytes;
    std::vector<bool> writable;  // outputs only: the bytes that are elements
    std::uint64_t checksum = 0;  // inputs only
    bool output = false;
  };
  Buffer& allocate(std::int64_t elements, DType type, bool output);
  TensorView view_of(Buffer& buffer, std::int64_t first, DType type, const Shape& shape,
                     const Shape& strides);

  std::vector<Buffer> buffers_;  // their bytes stay in place when the vector grows
};

}  // namespace attend::cases
