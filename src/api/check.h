// The only place where arguments are judged: everything the caller gave becomes a Problem and a
// Call, or an InvalidArgument that says what was found and what is allowed. Nothing behind it
// checks again.
#pragma once

#include "core/operation.h"
#include "core/sequence.h"

#include <attend/inspect.h>

#include <vector>

namespace attend {

struct ForwardArguments {
  const ConstTensorView &q, &k, &v;
  const TensorView& out;
  const AttentionOptions& options;
  const AttentionOutputs& outputs;
};

struct BackwardArguments {
  const BackwardInputs& inputs;
  const AttentionOptions& options;
  const AttentionGradients& gradients;
};

struct MergeArguments {
  const std::vector<ConstTensorView>&o, &lse;
  const TensorView &out, &lse_out;
};

struct PartialArguments {
  const ConstTensorView &q, &k, &v;
  const TensorView& state;
  const AttentionOptions& options;
};

// Partial states that are joined into one, or into out (and lse, if given).
struct StatesArguments {
  const char* function;
  const std::vector<ConstTensorView>& states;
  const TensorView &state, &out, &lse;
};

struct InspectArguments {
  const ConstTensorView &q, &k;
  const AttentionOptions& options;
  const InspectOptions& inspect;
};

struct WindowArguments {
  const ConstTensorView &q, &k, &lse;
  const WeightsWindow& window;
  const AttentionOptions& options;
};

template <class Operation>
struct Request {
  typename Operation::Problem problem;
  typename Operation::Call call;
};

Request<Forward> check(const ForwardArguments& arguments);
Request<Forward> check_inputs(const ConstTensorView& q, const ConstTensorView& k,
                              const ConstTensorView& v,
                              const AttentionOptions& options);  // nothing written yet
Request<Backward> check_inputs(const BackwardInputs& inputs,
                               const AttentionOptions& options);  // likewise
Request<Backward> check(const BackwardArguments& arguments);
// The calls point into parts.
Request<Merge> check(const MergeArguments& arguments, std::vector<Part>& parts);
Request<Forward> check(const PartialArguments& arguments, std::vector<Part>& parts);
Request<Forward> check(const StatesArguments& arguments, std::vector<Part>& parts);
// What is written is not in these two: the functions make it.
Request<Inspect> check(const InspectArguments& arguments);
Request<Weights> check(const WindowArguments& arguments);
// The window lies within its sequence. On a device, only who has read the lengths can say so.
void check_window(const WeightsProblem& problem, const Sequence& sequence,
                  const WeightsWindow& window);

}  // namespace attend
