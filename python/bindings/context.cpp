// Context: threads and kernels, and Ctrl-C. A caller's own threads and memory are for C++ alone,
// but for PyTorch's threads.
#include "bindings.h"
#include "fields.h"
#include "openmp.h"
#include "options.h"

#include <attend/context.h>

#include <pthread.h>
#include <unistd.h>

#include <string>
#include <unordered_map>
#include <utility>

namespace attend::python {

using namespace nb::literals;

namespace {

// Python's handlers run on its main thread: others need not look. In a child of fork() the one
// thread that is left becomes it.
const pthread_t importing_thread = pthread_self();
bool on_main_thread() {
  return pthread_equal(pthread_self(), importing_thread) != 0 || gettid() == getpid();
}

// A call that ends soon must not wait for the GIL: the first question of each is not passed on.
thread_local bool first_question = true;

bool ask_for_signals() {
  if (std::exchange(first_question, false) || !on_main_thread()) return false;
  const nb::gil_scoped_acquire locked;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();  // KeyboardInterrupt, or a handler's own
  return false;
}

// What Contexts were made with, for pickle, by their addresses: whichever comes to lie where one
// was takes its place. To be used with the GIL.
struct MadeWith {
  int threads = 0;
  std::string kernels;
};
std::unordered_map<const Context*, MadeWith> made_with;

ContextOptions with_signals(ContextOptions options) {
  options.interrupt = ask_for_signals;
  return options;
}

}  // namespace

Unlocked::Unlocked() { first_question = true; }

void check_signals() { ask_for_signals(); }

Context& python_context() {
  static auto* context = new Context(with_signals({}));  // never destroyed, as default_context()
  return *context;
}

GivenContext given_context(nb::handle object) {
  Context* context = nullptr;
  if (object.is_none() || nb::try_cast(object, context)) return {context};
  raise_type_error("context takes an attend.Context or None, found " + name_of_type(object));
}

void bind_context(nb::module_& m) {
  nb::class_<Context>(m, "Context", nb::is_weak_referenceable(),
                      R"(Where calls run: how many threads, which kernels.

threads  0: the environment variable ATTEND_THREADS, or as many as the calling thread may run on
kernels  one per operation, "forward:reference.forward,backward:reference.backward"; empty: the
         environment variable ATTEND_KERNEL, or what the planner chooses

A Context may be used from any number of threads and survives fork(). copy gives the same Context;
pickle one that is made with the same arguments, where it is loaded.

>>> attend.Context(threads=2).threads
2
)")
      .def(
          "__init__",
          [](Context* self, const nb::args& places, const nb::kwargs& keywords) {
            const Keywords given(places, keywords, "Context", {"threads", "kernels"},
                                 "as in Context(threads=4)");
            ContextOptions options;
            options.threads = given.whole("threads", 0);
            if (const nb::object kernels = given.get("kernels"); kernels.is_valid())
              options.kernels = text_of(kernels, "Context: kernels");
            MadeWith& made = made_with[self];
            new (self) Context(with_signals(options));
            made = {options.threads, options.kernels};
          },
          "places"_a, "keywords"_a,
          nb::sig("def __init__(self, *, threads: int = 0, kernels: str = '') -> None"))
      // A Context belongs to its process: a copy of who uses it uses the same, and a pickle holds
      // what it was made with.
      .def(
          "__reduce__",
          [](nb::handle self) {
            const auto& context = nb::cast<const Context&>(self);
            if (&context == &python_context())
              return nb::make_tuple(nb::module_::import_("attend._types").attr("shared_context"),
                                    nb::make_tuple());
            nb::dict arguments;
            arguments["threads"] = made_with[&context].threads;
            arguments["kernels"] = made_with[&context].kernels;
            const nb::object partial = nb::module_::import_("functools").attr("partial");
            return nb::make_tuple(partial(nb::type<Context>(), **arguments), nb::make_tuple());
          },
          nb::sig("def __reduce__(self) -> tuple[Any, ...]"))
      .def(
          "__copy__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __copy__(self) -> Context"))
      .def(
          "__deepcopy__", [](nb::handle self, nb::handle) { return nb::borrow(self); }, "memo"_a,
          nb::sig("def __deepcopy__(self, memo: Any) -> Context"))
      .def_prop_ro("threads", &Context::threads)
      .def_static(
          "with_openmp",
          [](int threads) {
            ContextOptions options;
            options.threads = threads;
            options.parallel_for = openmp_threads(threads);
            auto* const context = new Context(with_signals(options));
            made_with[context] = {threads, {}};
            return context;
          },
          nb::rv_policy::take_ownership, "threads"_a,
          nb::sig("def with_openmp(threads: int) -> Context"),
          "One that computes with the threads of PyTorch's OpenMP; with its own, where that is not "
          "loaded.\nFor PyTorch's tensors, as attend.torch does.")
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
      "default_context", [] { return &python_context(); }, nb::rv_policy::reference,
      "The Context that every function uses unless it is given another.");
}

}  // namespace attend::python
