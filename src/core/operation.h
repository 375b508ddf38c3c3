// The operations: each has a type of Problem, of Call, and rows of its own in the kernel table.
// Those of layers are in core/product.h and core/row_operations.h.
#pragma once

#include "core/call.h"
#include "core/problem.h"

#include <string_view>

namespace attend {

struct Forward {
  static constexpr std::string_view kName = "forward";
  using Problem = ForwardProblem;
  using Call = ForwardCall;
};
struct Backward {
  static constexpr std::string_view kName = "backward";
  using Problem = BackwardProblem;
  using Call = BackwardCall;
};
struct Merge {
  static constexpr std::string_view kName = "merge";
  using Problem = MergeProblem;
  using Call = MergeCall;
};
struct Inspect {
  static constexpr std::string_view kName = "inspect";
  using Problem = InspectProblem;
  using Call = InspectCall;
};
struct Weights {
  static constexpr std::string_view kName = "weights";
  using Problem = WeightsProblem;
  using Call = WeightsCall;
};

}  // namespace attend
