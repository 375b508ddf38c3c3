// The C++ runtime's operators, replaced by ones that count. Part of the tests that name it, and not
// of the support library: it changes the whole program.
#include "counted_allocations.h"

#include <cstdlib>
#include <new>

namespace attend::test {

std::atomic<std::size_t> bytes_allocated{0}, allocations{0}, living_allocations{0},
    failing_allocation{0};

}  // namespace attend::test

namespace {

using namespace attend::test;

void* counted(std::size_t bytes, std::size_t alignment) noexcept {
  bytes_allocated += bytes;
  if (++allocations == failing_allocation || bytes > std::size_t{1} << 60) return nullptr;
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* const memory = alignment <= alignof(std::max_align_t)
                           ? std::malloc(bytes == 0 ? 1 : bytes)
                           : std::aligned_alloc(alignment, rounded);
  living_allocations += memory != nullptr;
  return memory;
}

void* counted_or_throw(std::size_t bytes, std::size_t alignment) {
  void* const memory = counted(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void release(void* memory) noexcept {
  living_allocations -= memory != nullptr;
  std::free(memory);
}

}  // namespace

// Not inlined: g++ would see free() where it expects operator delete, and warn.
[[gnu::noinline]] void* operator new(std::size_t bytes) { return counted_or_throw(bytes, 1); }
[[gnu::noinline]] void* operator new[](std::size_t bytes) { return counted_or_throw(bytes, 1); }
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return counted(bytes, 1);
}
[[gnu::noinline]] void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return counted(bytes, 1);
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted_or_throw(bytes, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return counted_or_throw(bytes, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment,
                                     const std::nothrow_t&) noexcept {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void* operator new[](std::size_t bytes, std::align_val_t alignment,
                                       const std::nothrow_t&) noexcept {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { release(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { release(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { release(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::size_t) noexcept { release(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::align_val_t) noexcept {
  release(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  release(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  release(memory);
}
