// Tensors in unusual memory: with any strides, or against a page that nobody may touch.
#pragma once

#include "property_trial.h"

#include <deque>

namespace attend::test {

// Copies of tensors with random strides: dimensions in any order, gaps, either sign. What lies
// between the elements is NaN.
class ScatteredMemory {
 public:
  explicit ScatteredMemory(std::uint64_t seed) : seed_(seed) {}
  TensorView scatter(const ConstTensorView& view);
  bool gaps_untouched() const;

 private:
  struct Buffer {
    std::vector<std::byte> bytes;
    TensorView view;
  };
  std::uint64_t seed_;
  std::deque<Buffer> buffers_;
};

// Copies of tensors that end right before, or begin right behind, a page without access.
class GuardedMemory {
 public:
  enum class Side { before, behind };
  explicit GuardedMemory(Side side) : side_(side) {}
  ~GuardedMemory();
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  TensorView place(const ConstTensorView& view);
  std::byte* allocate(std::size_t bytes, std::size_t alignment);
  Allocator allocator();        // that keeps everything until the end
  void protect_from_writing();  // what has been placed so far
  const std::vector<std::size_t>& allocated() const { return allocated_; }  // by the allocator

 private:
  struct Region {
    std::byte* begin = nullptr;
    std::size_t bytes = 0;  // with its two guard pages
  };
  Side side_;
  std::vector<Region> regions_;
  std::vector<std::size_t> allocated_;
};

// An Allocator whose memory is filled with a byte first.
Allocator filled_allocator(int byte);

// A Context of one thread with an allocator of its own.
ContextOptions one_thread(const Allocator& allocator = {});

}  // namespace attend::test
