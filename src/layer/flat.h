// Contiguous tensors as one row, piece by piece: what is computed with numbers of another type than
// the tensors' is so for a piece at a time, which stays close.
#pragma once

#include "api/tensor_memory.h"
#include "core/strided.h"

#include <attend/tensor.h>

#include <algorithm>
#include <cstdint>

namespace attend {

// A contiguous view as one row, for load_row and load_integer.
inline Strided flat(const ConstTensorView& view) noexcept {
  auto* data = static_cast<std::byte*>(const_cast<void*>(view.data()));
  return {data, view.dtype(), true, {0, 0, 0, 1}};
}

// Calls use(begin, count) for pieces of at most kPiece elements that together are `total`.
inline constexpr std::int64_t kPiece = 1024;

template <class Use>
void for_pieces(std::int64_t total, Use use) {
  for (std::int64_t begin = 0; begin < total; begin += kPiece)
    use(begin, std::min(kPiece, total - begin));
}

}  // namespace attend
