// From a Case to its Instance.
#include "make.h"

#include <cmath>

namespace attend::cases {

Instance make(const Case& problem) {
  Instance instance;
  instance.problem = problem;
  instance.arena = std::make_unique<Arena>();
  const Sequences sequences = sequences_of(problem);
  make_tensors(sequences, instance);
  make_options(sequences, instance);
  instance.arena->seal();
  return instance;
}

Instance::Instance() = default;
Instance::Instance(Instance&&) noexcept = default;
Instance& Instance::operator=(Instance&&) noexcept = default;
Instance::~Instance() = default;

AttentionOutputs Instance::outputs_with_lse() const {
  AttentionOutputs all = outputs;
  all.lse = lse;
  return all;
}

void Instance::poison_outputs() {
  for (const TensorView& view :
       {out, lse, outputs.weights, outputs.scores, gradients.dq, gradients.dk, gradients.dv,
        gradients.dbias, gradients.dsinks, gradients.dalibi})
    if (view) for_each_index(view.shape(), [&](const Shape& index) { store(view, index, NAN); });
  if (visited_blocks) *visited_blocks = -1;
}

bool Instance::guards_intact() const { return arena->intact(); }

}  // namespace attend::cases
