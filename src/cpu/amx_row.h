// A row of the kernel table whose tasks have the tiles of AMX.
#pragma once

#include "cpu/amx.h"
#include "cpu/declines.h"
#include "cpu/flash_forward.h"

namespace attend {
namespace {

constexpr Kernel<Forward> amx_forward_row(std::string_view name, Feature type,
                                          decltype(Kernel<Forward>::declines) declines) {
  using Of = FlashForward<F32>;
  return {
      .name = name,
      .only_if_forced = false,
      .takes = (kTaken<Forward> - kHostTypes) | Features{type},
      .stages = Of::kStages,
      .declines = declines,
      .tiles = Of::tiles,
      .tasks = Of::tasks,
      .workspace = Of::workspace,
      .run =
          [](const ForwardProblem& p, const Tiles& tiles, const ForwardCall& call,
             const Task& task) noexcept {
            const TilesInUse in_use;
            stay_awake();
            Of::run(p, tiles, call, task);
          },
  };
}

}  // namespace
}  // namespace attend
