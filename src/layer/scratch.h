// What a layer makes on the way to its result: tensors for the time of a call, in memory that the
// Context keeps for the next one. After the first call nothing is allocated.
#pragma once

#include "api/lease.h"
#include "core/kernel.h"

#include <array>
#include <cstddef>
#include <limits>
#include <utility>

namespace attend {

// More than this no Context leases: a sum of sizes that gets there stays there.
inline constexpr std::size_t kMostScratch = std::numeric_limits<std::size_t>::max();

struct ScratchTensor {
  Shape shape;
  DType type = DType::f32;
  // Each begins at a multiple of what workspaces are aligned to.
  std::size_t bytes() const {
    constexpr std::size_t kAlignment = kWorkspaceAlignment;
    std::size_t bytes = 0;
    const bool overflow = __builtin_mul_overflow(static_cast<std::size_t>(element_count(shape)),
                                                 static_cast<std::size_t>(size_of(type)), &bytes) ||
                          __builtin_add_overflow(bytes, kAlignment - 1, &bytes);
    return overflow ? kMostScratch : bytes / kAlignment * kAlignment;
  }
};

//   const Scratch scratch(where, {{up_shape, type}, {gate_shape, type}});
//   const auto& [up, gate] = scratch.tensors;
//
// They are where the tensors of the call are.
template <std::size_t N>
class Scratch {
 public:
  Scratch(const Where& where, const ScratchTensor (&list)[N], Device device = {})
      : lease_(where, bytes(list), device),
        tensors(views(list, device, std::make_index_sequence<N>())) {}

 private:
  static std::size_t bytes(const ScratchTensor (&list)[N]) {
    std::size_t sum = 0;
    for (const ScratchTensor& tensor : list)
      if (__builtin_add_overflow(sum, tensor.bytes(), &sum)) return kMostScratch;
    return sum;
  }
  template <std::size_t... I>
  std::array<TensorView, N> views(const ScratchTensor (&list)[N], Device device,
                                  std::index_sequence<I...>) const {
    std::byte* next = lease_.data();
    return {TensorView(std::exchange(next, next + list[I].bytes()), list[I].type, list[I].shape,
                       device)...};
  }
  Lease lease_;

 public:
  const std::array<TensorView, N> tensors;  // contiguous
};

}  // namespace attend
