// The memory of tensors: of the C++ runtime, or of a Context's pool.
#pragma once

#include "core/queue.h"

#include <attend/context.h>

#include <cstddef>
#include <memory>

namespace attend {

// Large blocks that tensors give back, kept for the next ones, of one Context and its allocator. A
// tensor keeps its pool alive; when the Context is gone, nothing more is kept.
class TensorPool;
std::shared_ptr<TensorPool> make_tensor_pool(const Allocator& allocator);
void close(TensorPool& pool) noexcept;
void before_fork(TensorPool& pool) noexcept;  // locks it, after all else of its Context
void after_fork(TensorPool& pool) noexcept;

// Aligned to 64 bytes; null: there is none. Without a pool it comes from the C++ runtime.
void* take_memory(std::size_t bytes, const std::shared_ptr<TensorPool>& pool = nullptr) noexcept;
void give_memory(void* memory) noexcept;

// Before somebody says that there is no memory; false if nothing was kept.
bool give_up_kept_memory(TensorPool& pool) noexcept;

// Memory of a device, and what owns it on the host: give_memory() of that gives it back to its
// queue. Null, and why: there is none.
struct DeviceBlock {
  void *owner = nullptr, *data = nullptr;
};
DeviceBlock take_device_memory(std::size_t bytes, Queue& queue, Status& why) noexcept;
Queue* queue_of(void* owner) noexcept;

// Whether the elements lie one behind the other, in order. Strides of single indices do not matter.
inline bool is_contiguous(const ConstTensorView& view) {
  std::int64_t stride = 1;
  for (int dim = view.rank(); dim-- > 0;) {
    if (view.size(dim) != 1 && view.strides()[dim] != stride) return view.count() == 0;
    stride *= view.size(dim);
  }
  return true;
}

// The elements of a view, one behind the other; and such elements into a view.
void copy_elements(const ConstTensorView& from, std::byte* to);
void copy_elements(const std::byte* from, const TensorView& to);

// From one view to another of the same shape and type, both on one device. On the host `to` is
// contiguous; on a device it may have any strides, and nobody waits.
void copy_elements(const ConstTensorView& from, const TensorView& to, const Where& where);

// A copy in memory of the Context; of a device, in that of the queue.
Tensor copied(const ConstTensorView& view, const Where& where);

}  // namespace attend
