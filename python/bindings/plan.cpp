// Plans: a call prepared once and run often.
#include "bindings.h"
#include "call.h"

#include <attend/plan.h>

namespace attend::python {
namespace {

using namespace nb::literals;

// A Plan, what it hands out, and the Context that must outlive it.
struct PythonPlan {
  Plan plan;
  Wanted wanted;
  nb::object context;

  Context& used() const { return context_or_default(given_context(context)); }
};

PythonPlan plan_forward(nb::handle q, nb::handle k, nb::handle v, nb::handle out,
                        nb::handle return_lse, nb::handle return_weights, nb::handle return_scores,
                        nb::handle weight_heads, nb::handle kernel, nb::handle context,
                        const nb::kwargs& keywords) {
  constexpr const char* where = "Plan.attention";
  const Inputs in(q, k, v, where, Devices::any);
  const Options options(keywords, where, Devices::any);
  const Wanted wanted(return_lse, return_weights, return_scores, weight_heads, where);
  Context& used = context_or_default(given_context(context));
  Results results(in, options.get(), wanted, out, where, Place(where, in.q, used));
  return {Plan::attention(in.q, in.k, in.v, results.out(), options.get(), results.outputs(),
                          {.kernel = text_of(kernel, "Plan: kernel")}, used),
          wanted, nb::borrow(context)};
}

nb::object run_plan(const PythonPlan& self, nb::handle q, nb::handle k, nb::handle v,
                    nb::handle out, const nb::kwargs& keywords) {
  constexpr const char* where = "Plan.run";
  const Inputs in(q, k, v, where, Devices::any);
  const Options options(keywords, where, Devices::any);
  const Place place(where, in.q, self.used());
  Results results(in, options.get(), self.wanted, out, where, place);
  place.run([&](const Where& at) {
    self.plan.run(in.q, in.k, in.v, results.out(), options.get(), results.outputs(), at.queue());
  });
  return results.to_python(q);
}

PythonPlan plan_backward(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse,
                         nb::handle dout, nb::handle dlse, nb::handle kernel, nb::handle context,
                         const nb::kwargs& keywords) {
  constexpr const char* where = "Plan.attention_backward";
  const Inputs in(q, k, v, where, Devices::any);
  const BackwardArrays more(out, lse, dout, dlse, where, Devices::any);
  const Options options(keywords, where, Devices::any);
  Context& used = context_or_default(given_context(context));
  const Gradients gradients(in, options.get(), Place(where, in.q, used));
  return {Plan::attention_backward(inputs_of(in, more), options.get(), gradients.views(),
                                   {.kernel = text_of(kernel, "Plan: kernel")}, used),
          {},
          nb::borrow(context)};
}

nb::object run_plan_backward(const PythonPlan& self, nb::handle q, nb::handle k, nb::handle v,
                             nb::handle out, nb::handle lse, nb::handle dout, nb::handle dlse,
                             const nb::kwargs& keywords) {
  constexpr const char* where = "Plan.run_backward";
  const Inputs in(q, k, v, where, Devices::any);
  const BackwardArrays more(out, lse, dout, dlse, where, Devices::any);
  const Options options(keywords, where, Devices::any);
  const Place place(where, in.q, self.used());
  Gradients gradients(in, options.get(), place);
  place.run([&](const Where& at) {
    self.plan.run_backward(inputs_of(in, more), options.get(), gradients.views(), at.queue());
  });
  return gradients.to_python(q);
}

}  // namespace

void bind_plan(nb::module_& m) {
  const auto no_context = nb::arg("context") = nb::none();
  nb::class_<PythonPlan>(m, "Plan",
                         R"(A call with its arguments checked and its kernel chosen.

Made once, run often with other data of the same shapes, types and options. attention() plans by
itself; make a Plan to force a kernel or to see what was decided.

>>> q = numpy.ones((1, 2, 3, 4), 'float32')
>>> plan = attend.Plan.attention(q, q, q, kernel='reference.forward')
>>> plan.kernel, plan.run(q, q, q).shape
('reference.forward', (1, 2, 3, 4))
)")
      .def_static("attention", plan_forward, "q"_a.none(), "k"_a.none(), "v"_a.none(),
                  nb::kw_only(), "out"_a = nb::none(), "return_lse"_a.none() = false,
                  "return_weights"_a.none() = false, "return_scores"_a = nb::none(),
                  "weight_heads"_a = nb::none(), "kernel"_a = "", no_context, "options"_a,
                  nb::sig("def attention(q: Array, k: Array, v: Array, *, " ATTEND_OPTIONS
                          "out: Array | None = None, " ATTEND_MORE
                          "kernel: str = '', context: Context | None = None) -> Plan"),
                  "A plan of attention(). `kernel` forces one, or raises with its reason.")
      .def_static("attention_backward", plan_backward, "q"_a.none(), "k"_a.none(), "v"_a.none(),
                  "out"_a, "lse"_a, "dout"_a, nb::kw_only(), "dlse"_a = nb::none(), "kernel"_a = "",
                  no_context, "options"_a,
                  nb::sig("def attention_backward(q: Array, k: Array, v: Array, out: Array, "
                          "lse: Array, dout: Array, *, " ATTEND_OPTIONS
                          "dlse: Array | None = None, kernel: str = '', "
                          "context: Context | None = None) -> Plan"),
                  "A plan of attention_backward().")
      .def("run", run_plan, "q"_a.none(), "k"_a.none(), "v"_a.none(), nb::kw_only(),
           "out"_a = nb::none(), "options"_a,
           nb::sig("def run(self, q: ArrayT, k: Array, v: Array, *, " ATTEND_OPTIONS
                   "out: ArrayT | None = None) -> Any"),
           "As attention(); data, strides, lengths and offsets may differ from the plan's.")
      .def("run_backward", run_plan_backward, "q"_a.none(), "k"_a.none(), "v"_a.none(), "out"_a,
           "lse"_a, "dout"_a, nb::kw_only(), "dlse"_a = nb::none(), "options"_a,
           nb::sig("def run_backward(self, q: ArrayT, k: Array, v: Array, out: Array, lse: Array, "
                   "dout: Array, *, " ATTEND_OPTIONS "dlse: Array | None = None) -> Any"),
           "As attention_backward().")
      .def_prop_ro(
          "kernel", [](const PythonPlan& self) { return self.plan.kernel(); },
          "The kernel's name, 'reference.forward'.")
      .def_prop_ro(
          "workspace_bytes", [](const PythonPlan& self) { return self.plan.workspace_bytes(); },
          "Memory that a run needs besides its results.")
      .def(
          "describe", [](const PythonPlan& self) { return self.plan.describe(); },
          "Problem, kernel, who declined and why, tasks, threads, workspace.");
}

}  // namespace attend::python
