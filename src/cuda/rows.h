// What the rows for NVIDIA GPUs have in common.
#pragma once

#include "cuda/device.h"

#include "core/clamp.h"
#include "core/kernel.h"
#include "core/text.h"

namespace attend::cuda {

inline constexpr Features kTakenByPortable =
    kHostTypes | kLayouts | kScoreOptions | Features{Feature::device_memory,  Feature::own_key_type,
                                                     Feature::own_value_type, Feature::key_scales,
                                                     Feature::value_scales,   Feature::dropout};

// How the portable kernels cut a problem (portable.cuh).
inline constexpr unsigned kPortableThreads = 128;
inline constexpr std::int64_t kPortableRows = 16, kPortableColumns = 128, kPortableLanes = 32;

// Why the portable kernels cannot run on a GPU (80: of sm_80).
inline std::string declines_portable(Device device, int capability) {
  if (capability >= 80) return {};
  return text("needs a GPU of sm_80 or later, ", device, " is sm_", capability);
}
template <class Problem>
std::string portable_declines(const Problem& p, const Machine&) {
  if (std::string reason = Gpu::why_not(p.device.index); !reason.empty()) return reason;
  return declines_portable(p.device, Gpu::find(p.device.index)->capability());
}

Status launch_portable_forward(const ForwardProblem& problem, const ForwardCall& call,
                               Queue& queue) noexcept;
// lse, weights and scores alone, of a problem whose `out` another kernel writes.
Status launch_portable_statistics(const ForwardProblem& problem, const ForwardCall& call,
                                  Queue& queue) noexcept;
Status launch_portable_backward(const BackwardProblem& problem, const BackwardCall& call,
                                Queue& queue) noexcept;

}  // namespace attend::cuda
