// What a layer makes on the way to its result: tensors for the time of a call, in memory that the
// Context keeps for the next one. After the first call nothing is allocated.
#pragma once

#include "api/lease.h"

#include <array>
#include <cstddef>
#include <utility>

namespace attend {

struct ScratchTensor {
  Shape shape;
  DType type = DType::f32;
  // Each begins at a multiple of what workspaces are aligned to.
  std::size_t bytes() const {
    constexpr std::size_t kAlignment = 64;
    const auto exact =
        static_cast<std::size_t>(element_count(shape)) * static_cast<std::size_t>(size_of(type));
    return (exact + kAlignment - 1) / kAlignment * kAlignment;
  }
};

//   const Scratch scratch(where, {{up_shape, type}, {gate_shape, type}});
//   const auto& [up, gate] = scratch.tensors;
template <std::size_t N>
class Scratch {
 public:
  Scratch(const Where& where, const ScratchTensor (&list)[N])
      : lease_(where, bytes(list)), tensors(views(list, std::make_index_sequence<N>())) {}

 private:
  static std::size_t bytes(const ScratchTensor (&list)[N]) {
    std::size_t sum = 0;
    for (const ScratchTensor& tensor : list) sum += tensor.bytes();
    return sum;
  }
  template <std::size_t... I>
  std::array<TensorView, N> views(const ScratchTensor (&list)[N], std::index_sequence<I...>) const {
    std::byte* next = lease_.data();
    return {
        TensorView(std::exchange(next, next + list[I].bytes()), list[I].type, list[I].shape)...};
  }
  Lease lease_;

 public:
  const std::array<TensorView, N> tensors;  // contiguous
};

}  // namespace attend
