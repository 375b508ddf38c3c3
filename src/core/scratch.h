// Cutting a strand's scratch memory into arrays, the same way when counting and when running.
#pragma once

#include "core/kernel.h"

#include <cstddef>
#include <cstdint>
#include <limits>

namespace attend {

// size * count, or the largest size_t when that is too much: an allocation of it fails.
inline std::size_t saturating_product(std::size_t size, std::int64_t count) noexcept {
  std::size_t product = 0;
  return __builtin_mul_overflow(size, static_cast<std::size_t>(count), &product)
             ? std::numeric_limits<std::size_t>::max()
             : product;
}

class Scratch {
 public:
  explicit Scratch(std::byte* memory) noexcept : memory_(memory) {}

  template <class T>
  T* take(std::int64_t count) noexcept {
    T* array = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + used_);
    const std::size_t bytes = saturating_product(sizeof(T), count);
    const std::size_t rounded = (bytes + kWorkspaceAlignment - 1) & ~(kWorkspaceAlignment - 1);
    if (rounded < bytes || __builtin_add_overflow(used_, rounded, &used_))
      used_ = std::numeric_limits<std::size_t>::max();
    return array;
  }
  std::size_t used() const noexcept { return used_; }

 private:
  std::byte* memory_;
  std::size_t used_ = 0;
};

}  // namespace attend
