// Context: threads and kernels. A caller's own threads and memory are for C++ alone.
#include "bindings.h"

#include <attend/context.h>

#include <nanobind/stl/string.h>

namespace attend::python {

using namespace nb::literals;

void bind_context(nb::module_& m) {
  nb::class_<Context>(m, "Context", R"(Where calls run: how many threads, which kernels.

threads  0: as many as the calling thread may run on
kernels  one per operation, "forward:reference.forward,backward:reference.backward"; empty: the
         environment variable ATTEND_KERNEL, or what the planner chooses

A Context may be used from any number of threads and survives fork().

>>> attend.Context(threads=2).threads
2
)")
      .def(
          "__init__",
          [](Context* self, int threads, const std::string& kernels) {
            ContextOptions options;
            options.threads = threads;
            options.kernels = kernels;
            new (self) Context(options);
          },
          nb::kw_only(), "threads"_a = 0, "kernels"_a = "")
      .def_prop_ro("threads", &Context::threads)
      .def_static(
          "kernels",
          [] {
            nb::list list;
            for (const KernelInfo& row : Context::kernels()) {
              list.append(nb::make_tuple(row.name, row.operation, row.only_if_forced));
            }
            return list;
          },
          nb::sig("def kernels() -> list[tuple[str, str, bool]]"),
          "The table of kernels, best first: (name, operation, only if forced).");

  m.def(
      "default_context", [] { return &default_context(); }, nb::rv_policy::reference,
      "The Context that every function uses unless it is given another.");
}

}  // namespace attend::python
