// A Case made real: memory, views, and the option structs that a call takes.
//
// Memory between the elements of a view, and on both sides of it, is filled with a pattern that is
// NaN in every floating-point type: who reads it spoils the result, who writes it is caught by
// guards_intact().
#pragma once

#include "cases.h"

#include <attend/attention.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace attend::cases {

struct Arena;  // the buffers of one Instance

// Movable; the views stay valid.
struct Instance {
  Instance();
  Instance(Instance&&) noexcept;
  Instance& operator=(Instance&&) noexcept;
  ~Instance();

  Case problem;
  ConstTensorView q, k, v, dout;
  ConstTensorView dlse;  // none unless the case has it
  TensorView out;
  TensorView lse;  // always there: backward needs it
  AttentionOptions options;
  AttentionOutputs outputs;  // what the case asks for; lse only if asked
  AttentionGradients gradients;
  std::unique_ptr<std::int64_t> visited_blocks;  // outputs points here, if there are blocks

  // As `outputs`, and lse in any case: the forward call that comes before a backward one.
  AttentionOutputs outputs_with_lse() const;

  // What that backward call reads.
  BackwardInputs backward_inputs() const {
    return {.q = q, .k = k, .v = v, .out = out, .lse = lse, .dout = dout, .dlse = dlse};
  }

  // Fills every output and gradient with NaN, so that an element nobody writes is noticed.
  void poison_outputs();

  // True if no byte outside the elements of any view has changed, and no input.
  bool guards_intact() const;

  std::unique_ptr<Arena> arena;
};

Instance make(const Case& problem);

}  // namespace attend::cases
