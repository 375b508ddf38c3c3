// Several linear maps at once: threads are joined once instead of three times. And what may come at
// the end of one.
#pragma once

#include <attend/feed_forward.h>

#include <initializer_list>
#include <optional>
#include <span>
#include <vector>

namespace attend {

// y = act(x W^T + b), or silu(gate) * (x W^T + b) with a gate; then + residual. Each is optional,
// of y's shape, and rounded as if it came after. Any strides; y must not overlap the others.
struct LinearPass {
  const Linear& linear;
  ConstTensorView x;
  TensorView y;
  std::optional<Activation> activation{};
  ConstTensorView gate{}, residual{};
};
void linear_forward(std::initializer_list<LinearPass> passes, const Where& where);

struct LinearBackwardPass {
  const Linear& linear;
  ConstTensorView dy, x;
};
std::vector<LayerGradients> linear_backward(std::span<const LinearBackwardPass> passes,
                                            const Where& where);

}  // namespace attend
