// A row of the kernel table from a kernel that is written once: with vectors of float, also for
// 16-bit tensors, and with vectors of double.
#pragma once

#include "core/kernel.h"

namespace attend {
namespace {

template <template <class> class Of, class Float, class Double>
constexpr Kernel kernel_row(std::string_view name, decltype(Kernel::declines) declines) {
  return {
      .name = name,
      .operation = Of<Float>::kOperation,
      .only_if_forced = false,
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

}  // namespace
}  // namespace attend
