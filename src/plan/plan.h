// The planner: which kernel solves a problem, cut how, with how much workspace. Decided here, once.
#pragma once

#include "core/product.h"
#include "core/row_operations.h"

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace attend {

template <class Operation>
using Table = std::span<const Kernel<Operation>* const>;

// The rows of an operation, the best first; the reference is the last that may be chosen.
template <class Operation>
Table<Operation> kernel_table() noexcept;

// Operations whose rows are tasks; and those with rows that are chosen once for each type and
// variant, whose tasks are cut by who calls.
template <template <class...> class Of>
using WithTasks = Of<Forward, Backward, Merge, Inspect, Weights>;
template <template <class...> class Of>
using ChosenOnce = Of<Product, NormForward, NormBackward, ActivationForward, ActivationBackward,
                      RotaryForward, Convert, Add>;

// Calls use(operation) for each.
template <class... Operations>
struct EachOf {
  static void call(auto& use) { (use(Operations{}), ...); }
};
template <class Use>
void for_each_operation(Use use) {
  WithTasks<EachOf>::call(use);
  ChosenOnce<EachOf>::call(use);
}

// What is decided, whatever the operation.
struct Outcome {
  bool forced = false;
  std::vector<std::pair<std::string_view, std::string>> declined;  // kernel, reason
  Tiles tiles;
  std::vector<std::int64_t> tasks;  // of each stage
  Workspace workspace;
  int strands = 1;                  // how many may run at the same time
  std::size_t workspace_bytes = 0;  // shared + strands * per_strand
};

// A finished decision.
template <class Operation>
struct Decision : Outcome {
  typename Operation::Problem problem;
  const Kernel<Operation>* kernel = nullptr;
};

// Walks the table. With `forced` (a kernel's name) only that row is asked, and its refusal is
// final. Throws InvalidArgument for an unknown name, Unsupported when every row declines.
template <class Operation>
Decision<Operation> decide(
    const typename Operation::Problem& problem, const Machine& machine, int threads,
    std::string_view forced,
    std::type_identity_t<Table<Operation>> table = kernel_table<Operation>());

// The row alone, with those that declined before it.
template <class Operation>
const Kernel<Operation>& choose(
    const typename Operation::Problem& problem, const Machine& machine, std::string_view forced,
    std::vector<std::pair<std::string_view, std::string>>& declined,
    std::type_identity_t<Table<Operation>> table = kernel_table<Operation>());

// Why a row does not take a problem that has these features: what it does not list, or its own
// reason. Empty if it does.
template <class Operation>
std::string why_not(const Kernel<Operation>& kernel, const typename Operation::Problem& problem,
                    const Features& features, const Machine& machine);

// One line: operation, type, sizes, options.
std::string describe(const ForwardProblem& problem);
std::string describe(const BackwardProblem& problem);
std::string describe(const MergeProblem& problem);
std::string describe(const InspectProblem& problem);
std::string describe(const WeightsProblem& problem);
std::string describe(const ProductProblem& problem);
std::string describe(const NormProblem& problem);
std::string describe(const ActivationProblem& problem);
std::string describe(const RotaryProblem& problem);
std::string describe(const ConvertProblem& problem);
std::string describe(const AddProblem& problem);
template <class Operation>
std::string describe(const Decision<Operation>& decision);  // a few lines

}  // namespace attend
