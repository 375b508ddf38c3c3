// Where calls run: on the host, or on the first GPU, with arguments and results on the host.
#pragma once

#include "call_memory.h"

#include <attend/inspect.h>

#include <string>

namespace attend::test {

struct Place {
  Context context;
  bool gpu;

  explicit Place(const std::string& kernels = {}, int threads = 0)
      : context({.threads = threads, .kernels = kernels}),
        gpu(kernels.find(":cuda.") != kernels.npos) {}

  Statistics inspect(const ConstTensorView& q, const ConstTensorView& k,
                     const AttentionOptions& options = {}, const InspectOptions& asked = {}) {
    CallMemory memory(gpu);
    const ConstTensorView q_there = memory.in(q), k_there = memory.in(k);
    const AttentionOptions given = memory.in(q, k, k, options);
    InspectOptions wanted = asked;
    wanted.tokens = memory.in(asked.tokens);
    return attend::inspect(q_there, k_there, given, wanted, memory.begin(context));
  }

  Tensor weights_of(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& lse,
                    const WeightsWindow& window, const AttentionOptions& options = {}) {
    CallMemory memory(gpu);
    const ConstTensorView q_there = memory.in(q), k_there = memory.in(k);
    const AttentionOptions given = memory.in(q, k, k, options);
    return attend::weights_of(q_there, k_there, lse, window, given, memory.begin(context));
  }

  // lse of attention(); values do not matter.
  Tensor lse(const ConstTensorView& q, const ConstTensorView& k, const AttentionOptions& options) {
    Tensor out(q.shape(), q.dtype()), found({q.size(0), q.size(1), q.size(2)});
    CallMemory memory(gpu);
    const ConstTensorView q_there = memory.in(q), k_there = memory.in(k);
    const AttentionOptions given = memory.in(q, k, k, options);
    const TensorView out_there = memory.out(out), lse_there = memory.out(found);
    attention(q_there, k_there, k_there, out_there, given, {.lse = lse_there},
              memory.begin(context));
    memory.end();
    return found;
  }
};

}  // namespace attend::test
