// The public functions: check, plan, run.
#include <attend/attention.h>
#include <attend/plan.h>

#include "api/check.h"
#include "api/context.h"
#include "api/statistics.h"
#include "core/partial_state.h"
#include "core/reporting.h"
#include "core/text.h"

#include <variant>

namespace attend {

struct Plan::State {
  std::variant<std::shared_ptr<const Decision<Forward>>, std::shared_ptr<const Decision<Backward>>,
               std::shared_ptr<const Decision<Inspect>>>
      decision;
  std::string kernel;

  // The decision for a request, which must be of the Plan's problem.
  template <class Operation>
  const Decision<Operation>& for_request(const Request<Operation>& request) const {
    const auto* made = std::get_if<std::shared_ptr<const Decision<Operation>>>(&decision);
    if (made != nullptr && (*made)->problem == request.problem) return **made;
    const auto problem = [](const auto& plan) { return attend::describe(plan->problem); };
    throw InvalidArgument(text("plan: made for ", std::visit(problem, decision), "; called with ",
                               attend::describe(request.problem)));
  }
};

namespace {

template <class Operation>
void plan_and_run(const char* function, const Request<Operation>& request, Context& context) {
  Context::State& state = context.state();
  state.execute(function, *state.plan_for<Operation>(request.problem), request.call);
}

template <class Operation>
void run_planned(const char* function, const Plan::State& plan, const Request<Operation>& request,
                 Context& context) {
  context.state().execute(function, plan.for_request(request), request.call);
}

template <class Operation>
std::shared_ptr<const Plan::State> make_state(const Request<Operation>& request,
                                              const PlanOptions& options, Context& context) {
  Context::State& state = context.state();
  auto decision = options.kernel.empty()
                      ? state.plan_for<Operation>(request.problem)
                      : std::make_shared<const Decision<Operation>>(decide<Operation>(
                            request.problem, state.machine, state.threads, options.kernel));
  std::string kernel(decision->kernel->name);
  return std::make_shared<const Plan::State>(Plan::State{std::move(decision), std::move(kernel)});
}

Tensor like(const ConstTensorView& view, const Context& context) {
  return view ? context.make_tensor(view.shape(), view.dtype()) : Tensor();
}

}  // namespace

void attention(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
               const TensorView& out, const AttentionOptions& options,
               const AttentionOutputs& outputs, Context& context) {
  reporting("attention", [&] {
    plan_and_run("attention", check(ForwardArguments{q, k, v, out, options, outputs}), context);
  });
}

Tensor attention(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                 const AttentionOptions& options, Context& context) {
  // Shapes that are not even of four dimensions are left to the check, which says so.
  if (q.rank() != 4 || v.rank() != 4) check(ForwardArguments{q, k, v, {}, options, {}});
  Tensor out = context.make_tensor({q.size(0), q.size(1), q.size(2), v.size(3)}, q.dtype());
  attention(q, k, v, out, options, {}, context);
  return out;
}

Shape weights_shape(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                    const AttentionOptions& options) {
  return reporting("attention", [&] {
    const Problem problem = check_inputs(q, k, v, options).problem;
    return Shape{problem.batch, problem.heads, problem.q_length, problem.k_length};
  });
}

void attention_backward(const ConstTensorView& q, const ConstTensorView& k,
                        const ConstTensorView& v, const ConstTensorView& out,
                        const ConstTensorView& lse, const ConstTensorView& dout,
                        const AttentionGradients& gradients, const AttentionOptions& options,
                        const ConstTensorView& dlse, Context& context) {
  reporting("attention_backward", [&] {
    plan_and_run("attention_backward",
                 check(BackwardArguments{q, k, v, out, lse, dout, gradients, options, dlse}),
                 context);
  });
}

BackwardResult attention_backward(const ConstTensorView& q, const ConstTensorView& k,
                                  const ConstTensorView& v, const ConstTensorView& out,
                                  const ConstTensorView& lse, const ConstTensorView& dout,
                                  const AttentionOptions& options, const ConstTensorView& dlse,
                                  Context& context) {
  BackwardResult r{like(q, context),
                   like(k, context),
                   like(v, context),
                   like(options.bias, context),
                   like(options.sinks, context),
                   like(options.alibi, context)};
  attention_backward(q, k, v, out, lse, dout, {r.dq, r.dk, r.dv, r.dbias, r.dsinks, r.dalibi},
                     options, dlse, context);
  return r;
}

void merge(const std::vector<ConstTensorView>& o, const std::vector<ConstTensorView>& lse,
           const TensorView& out, const TensorView& lse_out, Context& context) {
  reporting("merge", [&] {
    std::vector<Part> parts;
    plan_and_run("merge", check(MergeArguments{o, lse, out, lse_out}, parts), context);
  });
}

void attention_partial(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                       const TensorView& state, const AttentionOptions& options, Context& context) {
  reporting("attention_partial", [&] {
    std::vector<Part> parts;
    plan_and_run("attention_partial", check(PartialArguments{q, k, v, state, options}, parts),
                 context);
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
                   Context& context) {
  reporting("merge_partial", [&] {
    std::vector<Part> parts;
    if (!state) throw InvalidArgument("merge_partial: state is missing");
    plan_and_run("merge_partial",
                 check(StatesArguments{"merge_partial", states, state, {}, {}}, parts), context);
  });
}

void finish_partial(const std::vector<ConstTensorView>& states, const TensorView& out,
                    const TensorView& lse, Context& context) {
  reporting("finish_partial", [&] {
    std::vector<Part> parts;
    plan_and_run("finish_partial",
                 check(StatesArguments{"finish_partial", states, {}, out, lse}, parts), context);
  });
}

// ---- Plan --------------------------------------------------------------------------------------

Plan::Plan(std::shared_ptr<const State> state, Context& context)
    : state_(std::move(state)), context_(&context) {}

Plan Plan::attention(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                     const TensorView& out, const AttentionOptions& options,
                     const AttentionOutputs& outputs, const PlanOptions& plan, Context& context) {
  return reporting("plan", [&]() -> Plan {
    return {make_state(check(ForwardArguments{q, k, v, out, options, outputs}), plan, context),
            context};
  });
}

Plan Plan::attention_backward(const ConstTensorView& q, const ConstTensorView& k,
                              const ConstTensorView& v, const ConstTensorView& out,
                              const ConstTensorView& lse, const ConstTensorView& dout,
                              const AttentionGradients& gradients, const AttentionOptions& options,
                              const ConstTensorView& dlse, const PlanOptions& plan,
                              Context& context) {
  return reporting("plan", [&]() -> Plan {
    const auto request =
        check(BackwardArguments{q, k, v, out, lse, dout, gradients, options, dlse});
    return {make_state(request, plan, context), context};
  });
}

void Plan::run(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
               const TensorView& out, const AttentionOptions& options,
               const AttentionOutputs& outputs) const {
  reporting("attention", [&] {
    run_planned("attention", *state_, check(ForwardArguments{q, k, v, out, options, outputs}),
                *context_);
  });
}

void Plan::run_backward(const ConstTensorView& q, const ConstTensorView& k,
                        const ConstTensorView& v, const ConstTensorView& out,
                        const ConstTensorView& lse, const ConstTensorView& dout,
                        const AttentionGradients& gradients, const AttentionOptions& options,
                        const ConstTensorView& dlse) const {
  reporting("attention_backward", [&] {
    run_planned("attention_backward", *state_,
                check(BackwardArguments{q, k, v, out, lse, dout, gradients, options, dlse}),
                *context_);
  });
}

Plan Plan::inspect(const ConstTensorView& q, const ConstTensorView& k,
                   const AttentionOptions& options, const InspectOptions& inspect_options,
                   const PlanOptions& plan, Context& context) {
  return reporting("inspect", [&] {
    const auto request = check(InspectArguments{q, k, options, inspect_options});
    return Plan(make_state(request, plan, context), context);
  });
}

Statistics Plan::run_inspect(const ConstTensorView& q, const ConstTensorView& k,
                             const AttentionOptions& options,
                             const InspectOptions& inspect_options) const {
  return reporting("inspect", [&] {
    const InspectArguments given{q, k, options, inspect_options};
    const auto request = check(given);
    return statistics_of(request, state_->for_request(request), given, *context_);
  });
}

const std::string& Plan::kernel() const noexcept { return state_->kernel; }
std::size_t Plan::workspace_bytes() const noexcept {
  return std::visit([](const auto& plan) { return plan->workspace_bytes; }, state_->decision);
}
std::string Plan::describe() const {
  return std::visit([](const auto& plan) { return attend::describe(*plan); }, state_->decision);
}

}  // namespace attend
