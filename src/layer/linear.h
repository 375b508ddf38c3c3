// Several linear maps at once: threads are joined once instead of three times.
#pragma once

#include <attend/linear.h>

#include <initializer_list>
#include <span>
#include <vector>

namespace attend {

struct LinearPass {
  const Linear& linear;
  const ConstTensorView& x;
  const TensorView& y;  // contiguous
};
void linear_forward(std::initializer_list<LinearPass> passes, const Where& where);

struct LinearBackwardPass {
  const Linear& linear;
  ConstTensorView dy, x;
};
std::vector<LayerGradients> linear_backward(std::span<const LinearBackwardPass> passes,
                                            const Where& where);

}  // namespace attend
