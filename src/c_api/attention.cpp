// Attention, its gradient, merging, and plans of them.
#include "c_api/handles.h"

#include <algorithm>

namespace c_api = attend::c_api;
using c_api::Call;

attend_status attend_attention(const attend_view* q, const attend_view* k, const attend_view* v,
                               const attend_view* out, const attend_attention_options* options,
                               const attend_attention_outputs* outputs, attend_context* context) {
  return c_api::guarded("attend_attention", [&](const Call& call) {
    attend::attention(call.view(q, "q"), call.view(k, "k"), call.view(v, "v"),
                      call.view(out, "out"), call.options(options), call.outputs(outputs),
                      c_api::context_of(context));
  });
}

attend_status attend_weights_shape(const attend_view* q, const attend_view* k, const attend_view* v,
                                   const attend_attention_options* options, int64_t* shape) {
  return c_api::guarded("attend_weights_shape", [&](const Call& call) {
    call.need(shape, "shape");
    const attend::Shape made = attend::weights_shape(call.view(q, "q"), call.view(k, "k"),
                                                     call.view(v, "v"), call.options(options));
    std::copy(made.begin(), made.end(), shape);
  });
}

attend_status attend_attention_backward(const attend_backward_inputs* inputs,
                                        const attend_attention_options* options,
                                        const attend_attention_gradients* gradients,
                                        attend_context* context) {
  return c_api::guarded("attend_attention_backward", [&](const Call& call) {
    attend::attention_backward(call.backward_inputs(inputs), call.options(options),
                               call.gradients(gradients), c_api::context_of(context));
  });
}

attend_status attend_attention_partial(const attend_view* q, const attend_view* k,
                                       const attend_view* v, const attend_view* state,
                                       const attend_attention_options* options,
                                       attend_context* context) {
  return c_api::guarded("attend_attention_partial", [&](const Call& call) {
    attend::attention_partial(call.view(q, "q"), call.view(k, "k"), call.view(v, "v"),
                              call.view(state, "state"), call.options(options),
                              c_api::context_of(context));
  });
}

attend_status attend_merge_partial(int64_t parts, const attend_view* const* states,
                                   const attend_view* state, attend_context* context) {
  return c_api::guarded("attend_merge_partial", [&](const Call& call) {
    attend::merge_partial(call.views(parts, states, "states"), call.view(state, "state"),
                          c_api::context_of(context));
  });
}

attend_status attend_finish_partial(int64_t parts, const attend_view* const* states,
                                    const attend_view* out, const attend_view* lse,
                                    attend_context* context) {
  return c_api::guarded("attend_finish_partial", [&](const Call& call) {
    attend::finish_partial(call.views(parts, states, "states"), call.view(out, "out"),
                           call.optional_view(lse, "lse"), c_api::context_of(context));
  });
}

attend_status attend_merge(int64_t parts, const attend_view* const* o,
                           const attend_view* const* lse, const attend_view* out,
                           const attend_view* lse_out, attend_context* context) {
  return c_api::guarded("attend_merge", [&](const Call& call) {
    attend::merge(call.views(parts, o, "o"), call.views(parts, lse, "lse"), call.view(out, "out"),
                  call.optional_view(lse_out, "lse_out"), c_api::context_of(context));
  });
}

// ---- plans -------------------------------------------------------------------------------------

namespace {

void give_plan(attend_plan** made, const attend::Plan& plan) {
  c_api::give(made, plan, plan.describe());
}

}  // namespace

attend_status attend_plan_attention(const attend_view* q, const attend_view* k,
                                    const attend_view* v, const attend_view* out,
                                    const attend_attention_options* options,
                                    const attend_attention_outputs* outputs, const char* kernel,
                                    attend_context* context, attend_plan** made) {
  return c_api::guarded("attend_plan_attention", [&](const Call& call) {
    call.need(made, "made");
    give_plan(made, attend::Plan::attention(call.view(q, "q"), call.view(k, "k"), call.view(v, "v"),
                                            call.view(out, "out"), call.options(options),
                                            call.outputs(outputs), {Call::optional_text(kernel)},
                                            c_api::context_of(context)));
  });
}

attend_status attend_plan_attention_backward(const attend_backward_inputs* inputs,
                                             const attend_attention_options* options,
                                             const attend_attention_gradients* gradients,
                                             const char* kernel, attend_context* context,
                                             attend_plan** made) {
  return c_api::guarded("attend_plan_attention_backward", [&](const Call& call) {
    call.need(made, "made");
    give_plan(made,
              attend::Plan::attention_backward(
                  call.backward_inputs(inputs), call.options(options), call.gradients(gradients),
                  {Call::optional_text(kernel)}, c_api::context_of(context)));
  });
}

attend_status attend_plan_run(const attend_plan* plan, const attend_view* q, const attend_view* k,
                              const attend_view* v, const attend_view* out,
                              const attend_attention_options* options,
                              const attend_attention_outputs* outputs) {
  return c_api::guarded("attend_plan_run", [&](const Call& call) {
    call.need(plan, "plan")
        .plan.run(call.view(q, "q"), call.view(k, "k"), call.view(v, "v"), call.view(out, "out"),
                  call.options(options), call.outputs(outputs));
  });
}

attend_status attend_plan_run_backward(const attend_plan* plan,
                                       const attend_backward_inputs* inputs,
                                       const attend_attention_options* options,
                                       const attend_attention_gradients* gradients) {
  return c_api::guarded("attend_plan_run_backward", [&](const Call& call) {
    call.need(plan, "plan")
        .plan.run_backward(call.backward_inputs(inputs), call.options(options),
                           call.gradients(gradients));
  });
}

attend_status attend_plan_describe(const attend_plan* plan, const char** kernel,
                                   const char** description, int64_t* workspace_bytes) {
  return c_api::guarded("attend_plan_describe", [&](const Call& call) {
    const attend_plan& made = call.need(plan, "plan");
    if (kernel != nullptr) *kernel = made.plan.kernel().c_str();
    if (description != nullptr) *description = made.description.c_str();
    if (workspace_bytes != nullptr)
      *workspace_bytes = static_cast<int64_t>(made.plan.workspace_bytes());
  });
}

void attend_plan_destroy(attend_plan* plan) { delete plan; }
