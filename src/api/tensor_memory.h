// The memory of tensors.
#pragma once

#include <cstddef>

namespace attend {

void* take_memory(std::size_t bytes) noexcept;  // aligned to 64 bytes; null: there is none
void give_memory(void* memory) noexcept;

// Before somebody says that there is no memory; false if nothing was kept.
bool give_up_kept_memory() noexcept;

}  // namespace attend
