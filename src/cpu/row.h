// A row of the kernel table from a kernel that is written once: with vectors of float, also for
// 16-bit tensors, and with vectors of double.
#pragma once

#include "core/kernel.h"

namespace attend {
namespace {

// What the fused kernels take: all there is, each of it written there by hand.
template <class Operation>
inline constexpr Features kTaken;
template <>
inline constexpr Features kTaken<Forward> =
    kHostTypes | kLayouts | kScoreOptions |
    Features{Feature::own_key_type,   Feature::own_value_type, Feature::key_scales,
             Feature::value_scales,   Feature::dropout,        Feature::lse,
             Feature::weights,        Feature::weight_heads,   Feature::scores,
             Feature::visited_blocks, Feature::partial_states, Feature::query_runs};
template <>
inline constexpr Features kTaken<Backward> =
    kHostTypes | kLayouts | kScoreOptions |
    Features{Feature::dropout,  Feature::dlse,      Feature::dq,     Feature::dk,
             Feature::dv,       Feature::dbias,     Feature::dsinks, Feature::dalibi,
             Feature::row_sums, Feature::query_runs};
template <>
inline constexpr Features kTaken<Inspect> =
    kHostTypes | kLayouts | kScoreOptions |
    Features{Feature::top_keys, Feature::key_mass, Feature::metrics, Feature::tokens, Feature::map};

template <template <class> class Of, class Float, class Double,
          class Operation = typename Of<Float>::Operation>
constexpr Kernel<Operation> kernel_row(std::string_view name,
                                       decltype(Kernel<Operation>::declines) declines) {
  using Problem = typename Operation::Problem;
  using Call = typename Operation::Call;
  return {
      .name = name,
      .only_if_forced = false,
      .takes = kTaken<Operation>,
      .stages = Of<Float>::kStages,
      .declines = declines,
      .tiles =
          [](const Problem& p, const Machine& m) {
            return p.type == DType::f64 ? Of<Double>::tiles(p, m) : Of<Float>::tiles(p, m);
          },
      .tasks =
          [](const Problem& p, const Tiles& t, int stage) {
            return p.type == DType::f64 ? Of<Double>::tasks(p, t, stage)
                                        : Of<Float>::tasks(p, t, stage);
          },
      .workspace =
          [](const Problem& p, const Tiles& t) {
            return p.type == DType::f64 ? Of<Double>::workspace(p, t) : Of<Float>::workspace(p, t);
          },
      .run =
          [](const Problem& p, const Tiles& t, const Call& call, const Task& task) noexcept {
            p.type == DType::f64 ? Of<Double>::run(p, t, call, task)
                                 : Of<Float>::run(p, t, call, task);
          },
  };
}

// Of one for tensors of one type.
template <class Of, class Operation = typename Of::Operation>
constexpr Kernel<Operation> kernel_row_of(std::string_view name, Feature type,
                                          decltype(Kernel<Operation>::declines) declines) {
  return {
      .name = name,
      .only_if_forced = false,
      .takes = (kTaken<Operation> - kHostTypes) | Features{type},
      .stages = Of::kStages,
      .declines = declines,
      .tiles = Of::tiles,
      .tasks = Of::tasks,
      .workspace = Of::workspace,
      .run = Of::run,
  };
}

}  // namespace
}  // namespace attend
