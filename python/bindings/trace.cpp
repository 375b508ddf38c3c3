// Traces: every intermediate result by name.
#include "call.h"
#include "layer.h"
#include "paths.h"

#include <attend/trace.h>

namespace attend::python {
namespace {

using namespace nb::literals;

// The arrays show the trace's memory.
nb::list steps_of(nb::handle self) {
  const nb::object type = nb::module_::import_("attend._types").attr("TraceStep");
  nb::list list;
  for (TraceStep& step : nb::cast<Trace&>(self).steps) {
    list.append(type(step.name, step.formula, step.axes, show(step.value.view(), self)));
  }
  return list;
}

Trace trace(nb::handle q, nb::handle k, nb::handle v, GivenContext context,
            const nb::kwargs& keywords) {
  const Inputs in(q, k, v, "trace_attention");
  const Options options(keywords, "trace_attention");
  return unlocked([&] {
    return trace_attention(in.q, in.k, in.v, options.get(), context_or_default(context));
  });
}

}  // namespace

void bind_trace(nb::module_& m) {
  nb::class_<Trace>(m, "Trace",
                    R"(Intermediate results by name, in the order in which they are computed.

>>> x = numpy.ones((1, 1, 2, 4))
>>> trace = attend.trace_attention(x, x, x)
>>> [step.name for step in trace.steps]
['scores', 'scaled_scores', 'masked_scores', 'lse', 'weights', 'heads']
>>> trace['weights'].shape
(1, 1, 2, 2)
)")
      .def_prop_ro("steps", steps_of, nb::sig("def steps(self) -> list[TraceStep]"),
                   "(name, formula, axes, value) of each.")
      .def(
          "__getitem__",
          [](nb::handle self, nb::handle key) {
            const std::string name = text_of(key, "Trace: name");
            auto& trace = nb::cast<Trace&>(self);
            for (TraceStep& step : trace.steps) {
              if (step.name == name) return show(step.value.view(), self);
            }
            std::string list = name + "; there is";
            for (const TraceStep& step : trace.steps) list += " " + step.name;
            throw nb::key_error(list.c_str());
          },
          "name"_a, nb::sig("def __getitem__(self, name: str) -> Any"))
      .def(
          "__contains__",
          [](const Trace& self, nb::handle name) {
            return self.find(text_of(name, "Trace: name")) != nullptr;
          },
          "name"_a, nb::sig("def __contains__(self, name: str) -> bool"))
      .def(
          "save",
          [](const Trace& self, nb::handle file) {
            const std::filesystem::path path = to_path(file, "Trace.save");
            unlocked([&] { self.save(path); });
          },
          "path"_a, nb::sig("def save(self, path: str | os.PathLike[str]) -> None"),
          "Writes all of it as safetensors, with the formulas in the metadata.");

  m.def("trace_attention", trace, "q"_a.none(), "k"_a.none(), "v"_a.none(), nb::kw_only(),
        "context"_a = nb::none(), "options"_a,
        nb::sig("def trace_attention(q: Array, k: Array, v: Array, *, " ATTEND_OPTIONS
                "context: Context | None = None) -> Trace"),
        R"(Every step of attention(): scores, scaled_scores, masked_scores, lse, weights, heads.

>>> x = numpy.ones((1, 1, 2, 4))
>>> attend.trace_attention(x, x, x, causal=True)['weights'][0, 0]
array([[1. , 0. ],
       [0.5, 0.5]])
)");
}

}  // namespace attend::python
