// The planner: which kernel solves a problem, cut how, with how much workspace. Decided here, once.
#pragma once

#include "core/product.h"

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
template <>
Table<Forward> kernel_table<Forward>() noexcept;
template <>
Table<Backward> kernel_table<Backward>() noexcept;
template <>
Table<Merge> kernel_table<Merge>() noexcept;
template <>
Table<Inspect> kernel_table<Inspect>() noexcept;
template <>
Table<Weights> kernel_table<Weights>() noexcept;
template <>
Table<Product> kernel_table<Product>() noexcept;

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
template <class Operation>
std::string describe(const Decision<Operation>& decision);  // a few lines

}  // namespace attend
