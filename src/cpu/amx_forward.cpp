// cpu.amx.forward: bf16 by the tiles of AMX. The kernel is flash_forward.h; its products, with the
// order of their sums, are amx_tiles.h.
#include "cpu/amx_tiles.h"

#include "cpu/declines.h"
#include "cpu/flash_forward.h"

namespace attend {
namespace {

using AmxForward = FlashForward<F32>;

void run(const ForwardProblem& p, const Tiles& tiles, const ForwardCall& call,
         const Task& task) noexcept {
  const TilesInUse in_use;
  stay_awake();
  AmxForward::run(p, tiles, call, task);
}

}  // namespace

extern constinit const Kernel<Forward> kAmxForward{
    .name = "cpu.amx.forward",
    .only_if_forced = false,
    .takes = (kTaken<Forward> - kHostTypes) | Features{Feature::bf16},
    .stages = AmxForward::kStages,
    .declines = declines_amx<ForwardProblem>,
    .tiles = AmxForward::tiles,
    .tasks = AmxForward::tasks,
    .workspace = AmxForward::workspace,
    .run = run,
};

}  // namespace attend
