// The public functions: check, plan, run.
#include <attend/attention.h>
#include <attend/plan.h>

#include "api/check.h"
#include "api/context.h"
#include "api/known_layout.h"
#include "api/statistics.h"
#include "core/partial_state.h"
#include "core/reporting.h"
#include "core/text.h"

#include <variant>

namespace attend {

using KnownForward = KnownLayout<ForwardArguments, ForwardCall>;
using KnownBackward = KnownLayout<BackwardArguments, BackwardCall>;

struct PlanState {
  std::variant<std::shared_ptr<const Decision<Forward>>, std::shared_ptr<const Decision<Backward>>,
               std::shared_ptr<const Decision<Inspect>>>
      decision;
  std::variant<std::monostate, KnownForward, KnownBackward> known;

  const std::string& kernel() const noexcept { return kernel_; }
  PlanState(auto made, auto layout)
      : decision(std::move(made)), known(std::move(layout)),
        kernel_(std::visit([](const auto& plan) { return std::string(plan->kernel->name); },
                           decision)) {}

  // The decision for a request, which must be of the Plan's problem.
  template <class Operation>
  const Decision<Operation>& for_request(const Request<Operation>& request) const {
    const auto* made = std::get_if<std::shared_ptr<const Decision<Operation>>>(&decision);
    if (made != nullptr && (*made)->problem == request.problem) return **made;
    const auto problem = [](const auto& plan) { return attend::describe(plan->problem); };
    const bool longest = request.problem.packed_queries;
    throw InvalidArgument(text("plan: made for ", std::visit(problem, decision), "; called with ",
                               attend::describe(request.problem),
                               longest ? " (with max_q and max_k the lengths of packed sequences "
                                         "may differ)"
                                       : ""));
  }

 private:
  std::string kernel_;
};

namespace {

template <class Operation>
void plan_and_run(const char* function, const Request<Operation>& request, const Where& where) {
  ContextState& state = ContextState::of(where);
  state.execute(function, *state.plan_for<Operation>(request.problem), request.call, where.queue());
}

// Arguments that lie as the Plan's did need no check; others get the whole of it.
template <class Operation, class Arguments>
void run_planned(const char* function, const PlanState& plan, const Arguments& given,
                 Context& context, Queue* queue) {
  using Known = KnownLayout<Arguments, typename Operation::Call>;
  ContextState& state = ContextState::of(context);
  typename Operation::Call call;
  if (const auto* known = std::get_if<Known>(&plan.known); known && known->bind(given, call)) {
    const auto& made = std::get<std::shared_ptr<const Decision<Operation>>>(plan.decision);
    return state.execute(function, *made, call, queue);
  }
  const Request<Operation> request = check(given);
  state.execute(function, plan.for_request(request), request.call, queue);
}

template <class Operation, class Known>
std::shared_ptr<const PlanState> make_state(const Request<Operation>& request, Known known,
                                            const PlanOptions& options, Context& context) {
  ContextState& state = ContextState::of(context);
  auto decision = options.kernel.empty()
                      ? state.plan_for<Operation>(request.problem)
                      : std::make_shared<const Decision<Operation>>(decide<Operation>(
                            request.problem, state.machine, state.threads, options.kernel));
  return std::make_shared<const PlanState>(std::move(decision), std::move(known));
}

// Results that cannot be made are often those of arguments that do not fit: only then is it worth
// to check these before the call does, which says so.
template <class Make, class Check>
auto made(const char* function, const Make& make, const Check& check_arguments) {
  try {
    return make();
  } catch (const OutOfMemory& error) {
    reporting(function, check_arguments);
    throw OutOfMemory(std::string(function) + ": " + error.what());
  } catch (const InvalidArgument& error) {
    reporting(function, check_arguments);
    throw InvalidArgument(std::string(function) + ": " + error.what());
  }
}

// For a gradient, which whole numbers do not have.
Tensor like(const ConstTensorView& view, const Context& context) {
  return view && is_floating_point(view.dtype()) ? context.make_tensor(view.shape(), view.dtype())
                                                 : Tensor();
}

}  // namespace

void attention(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
               const Required<TensorView>& out, const AttentionOptions& options,
               const AttentionOutputs& outputs, const Where& where) {
  reporting("attention", [&] {
    plan_and_run("attention", check(ForwardArguments{q, k, v, out, options, outputs}), where);
  });
}

Tensor attention(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                 const AttentionOptions& options, const Where& where) {
  // Shapes that are not even of four dimensions are left to the check, which says so.
  if (q.rank() != 4 || v.rank() != 4) check(ForwardArguments{q, k, v, {}, options, {}});
  Tensor out = made(
      "attention",
      [&] {
        return where.context().make_tensor({q.size(0), q.size(1), q.size(2), v.size(3)}, q.dtype());
      },
      [&] { check_inputs(q, k, v, options); });
  attention(q, k, v, out, options, {}, where);
  return out;
}

void attention_backward(const BackwardInputs& inputs, const AttentionOptions& options,
                        const AttentionGradients& gradients, const Where& where) {
  reporting("attention_backward", [&] {
    plan_and_run("attention_backward", check(BackwardArguments{inputs, options, gradients}), where);
  });
}

BackwardResult attention_backward(const BackwardInputs& inputs, const AttentionOptions& options,
                                  const Where& where) {
  BackwardResult r = made(
      "attention_backward",
      [&] {
        return BackwardResult{like(inputs.q, where),      like(inputs.k, where),
                              like(inputs.v, where),      like(options.bias, where),
                              like(options.sinks, where), like(options.alibi, where)};
      },
      [&] { check_inputs(inputs, options); });
  attention_backward(inputs, options, {r.dq, r.dk, r.dv, r.dbias, r.dsinks, r.dalibi}, where);
  return r;
}

void merge(const std::vector<ConstTensorView>& o, const std::vector<ConstTensorView>& lse,
           const TensorView& out, const TensorView& lse_out, const Where& where) {
  reporting("merge", [&] {
    std::vector<Part> parts;
    plan_and_run("merge", check(MergeArguments{o, lse, out, lse_out}, parts), where);
  });
}

void attention_partial(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                       const TensorView& state, const AttentionOptions& options,
                       const Where& where) {
  reporting("attention_partial", [&] {
    std::vector<Part> parts;
    plan_and_run("attention_partial", check(PartialArguments{q, k, v, state, options}, parts),
                 where);
  });
}

Shape partial_state_shape(const ConstTensorView& q, const ConstTensorView& v) {
  if (q.rank() != 4 || v.rank() != 4)
    throw InvalidArgument(text("partial_state_shape: q is ", q.shape(), " and v ", v.shape(),
                               "; both must have 4 dimensions"));
  std::int64_t columns = 0;
  if (__builtin_add_overflow(v.size(3), kStateColumns, &columns))
    throw InvalidArgument(
        text("partial_state_shape: dv is ", v.size(3), ", too large: a state has dv + 4 columns"));
  return {q.size(0), q.size(1), q.size(2), columns};
}

void merge_partial(const std::vector<ConstTensorView>& states, const TensorView& state,
                   const Where& where) {
  reporting("merge_partial", [&] {
    std::vector<Part> parts;
    if (!state) throw InvalidArgument("merge_partial: state is missing");
    plan_and_run("merge_partial",
                 check(StatesArguments{"merge_partial", states, state, {}, {}}, parts), where);
  });
}

void finish_partial(const std::vector<ConstTensorView>& states, const TensorView& out,
                    const TensorView& lse, const Where& where) {
  reporting("finish_partial", [&] {
    std::vector<Part> parts;
    plan_and_run("finish_partial",
                 check(StatesArguments{"finish_partial", states, {}, out, lse}, parts), where);
  });
}

// ---- Plan --------------------------------------------------------------------------------------

Plan::Plan(std::shared_ptr<const PlanState> state, Context& context)
    : state_(std::move(state)), context_(&context) {}

Plan Plan::attention(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                     const TensorView& out, const AttentionOptions& options,
                     const AttentionOutputs& outputs, const PlanOptions& plan, Context& context) {
  return reporting("plan", [&]() -> Plan {
    const ForwardArguments given{q, k, v, out, options, outputs};
    const auto request = check(given);
    return {make_state(request, KnownForward(given, request.call), plan, context), context};
  });
}

Plan Plan::attention_backward(const BackwardInputs& inputs, const AttentionOptions& options,
                              const AttentionGradients& gradients, const PlanOptions& plan,
                              Context& context) {
  return reporting("plan", [&]() -> Plan {
    const BackwardArguments given{inputs, options, gradients};
    const auto request = check(given);
    return {make_state(request, KnownBackward(given, request.call), plan, context), context};
  });
}

void Plan::run(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
               const TensorView& out, const AttentionOptions& options,
               const AttentionOutputs& outputs, Queue* queue) const {
  reporting("attention", [&] {
    run_planned<Forward>("attention", *state_, ForwardArguments{q, k, v, out, options, outputs},
                         *context_, queue);
  });
}

void Plan::run_backward(const BackwardInputs& inputs, const AttentionOptions& options,
                        const AttentionGradients& gradients, Queue* queue) const {
  reporting("attention_backward", [&] {
    run_planned<Backward>("attention_backward", *state_,
                          BackwardArguments{inputs, options, gradients}, *context_, queue);
  });
}

Plan Plan::inspect(const ConstTensorView& q, const ConstTensorView& k,
                   const AttentionOptions& options, const InspectOptions& inspect_options,
                   const PlanOptions& plan, Context& context) {
  return reporting("inspect", [&] {
    const auto request = check(InspectArguments{q, k, options, inspect_options});
    return Plan(make_state(request, std::monostate(), plan, context), context);
  });
}

Statistics Plan::run_inspect(const ConstTensorView& q, const ConstTensorView& k,
                             const AttentionOptions& options, const InspectOptions& inspect_options,
                             Queue* queue) const {
  return reporting("inspect", [&] {
    const InspectArguments given{q, k, options, inspect_options};
    const auto request = check(given);
    return statistics_of(request, state_->for_request(request), given,
                         queue == nullptr ? Where(*context_) : Where(*context_, *queue));
  });
}

const std::string& Plan::kernel() const noexcept { return state_->kernel(); }
// NOLINTNEXTLINE(bugprone-exception-escape): a decision is made before there is a Plan
std::size_t Plan::workspace_bytes() const noexcept {
  return std::visit([](const auto& plan) { return plan->workspace_bytes; }, state_->decision);
}
std::string Plan::describe() const {
  return std::visit([](const auto& plan) { return attend::describe(*plan); }, state_->decision);
}

}  // namespace attend
