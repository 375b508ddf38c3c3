// A Plan: the arguments checked, the kernel and its tiles chosen, the workspace counted. Made once,
// run often with other data of the same shapes, types and options. attention() makes one for each
// new problem and keeps it in the Context. Make your own to force a kernel, or to see what was
// decided.
#pragma once

#include <attend/inspect.h>

#include <cstddef>
#include <memory>
#include <string>

namespace attend {

struct PlanOptions {
  std::string kernel{};  // use this row of the kernel table, or throw its reason
};

class ATTEND_API Plan {
 public:
  // Only types, shapes, devices, strides and lengths of the tensors are read. The Context must
  // outlive the Plan.
  static Plan attention(const ConstTensorView& q, const ConstTensorView& k,
                        const ConstTensorView& v, const TensorView& out,
                        const AttentionOptions& options = {}, const AttentionOutputs& outputs = {},
                        const PlanOptions& plan = {}, Context& context = default_context());
  static Plan attention_backward(const BackwardInputs& inputs, const AttentionOptions& options,
                                 const AttentionGradients& gradients, const PlanOptions& plan = {},
                                 Context& context = default_context());
  static Plan inspect(const ConstTensorView& q, const ConstTensorView& k,
                      const AttentionOptions& options = {},
                      const InspectOptions& inspect_options = {}, const PlanOptions& plan = {},
                      Context& context = default_context());

  // As attention(), attention_backward() and inspect(). Data, strides, the values of lengths and
  // offsets, and the seed, offset and origin of dropout may differ from the Plan's; anything else
  // throws. Of packed sequences the longest must stay as long, or max_q and max_k be given.
  void run(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
           const TensorView& out, const AttentionOptions& options = {},
           const AttentionOutputs& outputs = {}, Queue* queue = nullptr) const;
  void run_backward(const BackwardInputs& inputs, const AttentionOptions& options,
                    const AttentionGradients& gradients, Queue* queue = nullptr) const;
  Statistics run_inspect(const ConstTensorView& q, const ConstTensorView& k,
                         const AttentionOptions& options = {},
                         const InspectOptions& inspect_options = {}, Queue* queue = nullptr) const;

  const std::string& kernel() const noexcept;
  std::size_t workspace_bytes() const noexcept;  // NOLINT(bugprone-exception-escape): never
  std::string describe() const;  // problem, kernel, who declined and why, tasks, threads, workspace

 private:
  friend struct PlanState;
  Plan(std::shared_ptr<const struct PlanState> state, Context& context);
  std::shared_ptr<const struct PlanState> state_;
  Context* context_;
};

}  // namespace attend
