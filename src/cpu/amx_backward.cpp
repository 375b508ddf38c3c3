// cpu.amx.backward: bf16 by the tiles of AMX. The kernel is flash_backward.h; its products, with
// the order of their sums, are amx_tiles.h and amx_gradients.h.
#include "cpu/amx_gradients.h"

#include "cpu/declines.h"
#include "cpu/flash_backward.h"

namespace attend {
namespace {

using AmxBackward = FlashBackward<F32>;

void run(const BackwardProblem& p, const Tiles& tiles, const BackwardCall& call,
         const Task& task) noexcept {
  const TilesInUse in_use;
  stay_awake();
  AmxBackward::run(p, tiles, call, task);
}

}  // namespace

extern constinit const Kernel<Backward> kAmxBackward{
    .name = "cpu.amx.backward",
    .only_if_forced = false,
    .takes = (kTaken<Backward> - kHostTypes) | Features{Feature::bf16},
    .stages = AmxBackward::kStages,
    .declines = declines_amx<BackwardProblem>,
    .tiles = AmxBackward::tiles,
    .tasks = AmxBackward::tasks,
    .workspace = AmxBackward::workspace,
    .run = run,
};

}  // namespace attend
