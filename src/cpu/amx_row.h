// A row of the kernel table whose tasks have the tiles of AMX.
#pragma once

#include "cpu/amx.h"
#include "cpu/declines.h"
#include "cpu/row.h"

namespace attend {
namespace {

// Of a kernel that is written once, for tensors of one type.
template <class Of, class Operation = typename Of::Operation>
constexpr Kernel<Operation> amx_row(std::string_view name, Feature type,
                                    decltype(Kernel<Operation>::declines) declines) {
  Kernel<Operation> row = kernel_row_of<Of>(name, type, declines);
  row.run = [](const typename Operation::Problem& p, const Tiles& tiles,
               const typename Operation::Call& call, const Task& task) noexcept {
    if (task.interrupt != nullptr) configure_tiles();
    stay_awake();
    Of::run(p, tiles, call, task);
  };
  row.around = [](void (*tasks)(void*) noexcept, void* of) noexcept {
    const TilesInUse in_use;
    tasks(of);
  };
  return row;
}

}  // namespace
}  // namespace attend
