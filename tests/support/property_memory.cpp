#include "property_memory.h"

#include "cases/random.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

namespace attend::test {
namespace {

void copy_elements(const ConstTensorView& from, const TensorView& to) {
  const auto size = static_cast<std::size_t>(size_of(from.dtype()));
  std::vector<std::int64_t> offsets;
  for_each_element(from.shape(), from.strides(),
                   [&](std::int64_t, std::int64_t offset) { offsets.push_back(offset); });
  for_each_element(to.shape(), to.strides(), [&](std::int64_t n, std::int64_t offset) {
    const std::int64_t at = offsets[static_cast<std::size_t>(n)] * static_cast<std::int64_t>(size);
    std::memcpy(static_cast<std::byte*>(to.data()) + offset * static_cast<std::int64_t>(size),
                static_cast<const std::byte*>(from.data()) + at, size);
  });
}

std::size_t page_bytes() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

}  // namespace

TensorView ScatteredMemory::scatter(const ConstTensorView& view) {
  const cases::Random random(++seed_, 80);
  const int rank = view.rank();
  std::uint64_t n = 0;
  Shape strides = view.shape();
  std::int64_t stride = 1 + random.below(3, n++), first = 0;
  for (const std::int64_t dim : shuffled(rank, seed_)) {
    const auto d = static_cast<int>(dim);
    strides[d] = stride;
    stride = stride * std::max<std::int64_t>(view.size(d), 1) + random.below(4, n++);
    if (random.chance(0.4, n++)) {
      first += strides[d] * std::max<std::int64_t>(view.size(d) - 1, 0);
      strides[d] = -strides[d];
    }
  }
  const std::int64_t size = size_of(view.dtype());
  Buffer& buffer = buffers_.emplace_back();
  buffer.bytes.assign(static_cast<std::size_t>((stride + 1) * size), std::byte{0xff});
  void* data = buffer.bytes.data() + first * size;
  buffer.view = TensorView(data, view.dtype(), view.shape(), strides);
  copy_elements(view, buffer.view);
  return buffer.view;
}

bool ScatteredMemory::gaps_untouched() const {
  for (const Buffer& buffer : buffers_) {
    std::vector<std::byte> bytes = buffer.bytes;
    const std::int64_t size = size_of(buffer.view.dtype());
    const auto base = static_cast<const std::byte*>(buffer.view.data()) - buffer.bytes.data();
    for_each_element(
        buffer.view.shape(), buffer.view.strides(), [&](std::int64_t, std::int64_t offset) {
          std::memset(bytes.data() + base + offset * size, 0xff, static_cast<std::size_t>(size));
        });
    for (const std::byte byte : bytes)
      if (byte != std::byte{0xff}) return false;
  }
  return true;
}

std::byte* GuardedMemory::allocate(std::size_t bytes, std::size_t alignment) {
  const std::size_t page = page_bytes(), inside = (bytes + page - 1) / page * page;
  const std::size_t total = inside + 2 * page;
  void* const region = mmap(nullptr, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (region == MAP_FAILED) throw std::bad_alloc();
  auto* const begin = static_cast<std::byte*>(region);
  regions_.push_back({begin, total});
  if (inside > 0 && mprotect(begin + page, inside, PROT_READ | PROT_WRITE) != 0)
    throw std::bad_alloc();
  std::memset(begin + page, 0xff, inside);
  const std::size_t slack = side_ == Side::before ? (inside - bytes) / alignment * alignment : 0;
  return begin + page + slack;
}

TensorView GuardedMemory::place(const ConstTensorView& view) {
  const std::int64_t size = size_of(view.dtype());
  std::byte* const memory =
      allocate(static_cast<std::size_t>(view.count() * size), static_cast<std::size_t>(size));
  void* const data = memory;
  const TensorView placed(data, view.dtype(), view.shape());
  copy_elements(view, placed);
  return placed;
}

void GuardedMemory::protect_from_writing() {
  const std::size_t page = page_bytes();
  for (const Region& region : regions_)
    if (region.bytes > 2 * page) mprotect(region.begin + page, region.bytes - 2 * page, PROT_READ);
}

Allocator GuardedMemory::allocator() {
  return {[this](std::size_t bytes, std::size_t alignment) -> void* {
            allocated_.push_back(bytes);
            return allocate(bytes, alignment);
          },
          [](void*, std::size_t) {}};
}

GuardedMemory::~GuardedMemory() {
  for (const Region& region : regions_) munmap(region.begin, region.bytes);
}

Allocator filled_allocator(int byte) {
  return {[byte](std::size_t bytes, std::size_t alignment) {
            void* const memory = std::aligned_alloc(alignment, bytes);
            if (memory != nullptr) std::memset(memory, byte, bytes);
            return memory;
          },
          [](void* memory, std::size_t) { std::free(memory); }};
}

ContextOptions one_thread(const Allocator& allocator) {
  ContextOptions options;
  options.threads = 1;
  options.allocator = allocator;
  return options;
}

}  // namespace attend::test
