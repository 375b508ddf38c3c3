// The operations: each has a type of Problem, of Call, and rows of its own in the kernel table.
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

// Products of matrices, which layers are made of: their rows are in core/product.h.
struct Product {
  static constexpr std::string_view kName = "product";
  using Problem = ProductProblem;
};

// Those whose rows are tasks.
template <template <class...> class Of>
using WithOperations = Of<Forward, Backward, Merge, Inspect, Weights>;

// Calls use(operation) for each.
template <class Use>
void for_each_operation(Use use) {
  use(Forward{}), use(Backward{}), use(Merge{}), use(Inspect{}), use(Weights{}), use(Product{});
}

}  // namespace attend
