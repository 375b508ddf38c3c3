// The memory of tensors: of the C++ runtime, or of a Context's pool.
#pragma once

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

// The elements of a view, one behind the other; and such elements into a view.
void copy_elements(const ConstTensorView& from, std::byte* to);
void copy_elements(const std::byte* from, const TensorView& to);

// A copy in memory of the Context.
Tensor copied(const ConstTensorView& view, const Context& context);

}  // namespace attend
