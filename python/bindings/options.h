// Keyword arguments that become AttentionOptions. Every function and layer that takes the options
// of attention takes them by this one list of names.
#pragma once

#include "arrays.h"

#include <attend/context.h>
#include <attend/option_list.h>

#include <vector>

namespace attend::python {

// The options and the arrays that they show. Not to be copied: the options point into `arrays`.
class Options {
 public:
  Options(const nb::kwargs& keywords, const char* where, Devices devices = Devices::host);
  // The same from a dict or None, as an AttentionBlock takes them for each of its parts.
  Options(nb::handle dict_or_none, const char* where, const char* name,
          Devices devices = Devices::host);
  Options(const Options&) = delete;
  Options& operator=(const Options&) = delete;

  const AttentionOptions& get() const noexcept { return options_; }

 private:
  void take(nb::handle name, nb::handle value);
  ConstTensorView array(nb::handle value, const char* name, Kind kind);
  // One for each type that an option has.
  void set(double& to, const Option& option, nb::handle value);
  void set(bool& to, const Option& option, nb::handle value);
  void set(std::optional<double>& to, const Option& option, nb::handle value);
  void set(std::optional<std::int64_t>& to, const Option& option, nb::handle value);
  void set(TensorOrView& to, const Option& option, nb::handle value);
  void set(Window& to, const Option& option, nb::handle value);
  void set(QueryOffset& to, const Option& option, nb::handle value);
  void set(Blocks& to, const Option& option, nb::handle value);
  void set(Dropout& to, const Option& option, nb::handle value);

  const char* where_;
  Devices devices_;
  AttentionOptions options_{};
  std::vector<Array> arrays_;
};

// Where none is given, the shared one of Python's callers. Like every Context made from Python it
// asks for signals, so that Ctrl-C ends a long call.
Context& python_context();

// A Context or None, as a parameter of a function that is bound. nanobind's own cast would say of
// anything else no more than that the arguments fit no signature.
struct GivenContext {
  Context* context = nullptr;
};
GivenContext given_context(nb::handle object);

inline Context& context_or_default(GivenContext given) {
  return given.context ? *given.context : python_context();
}

// Runs without the GIL, as long as it lives.
class Unlocked {
 public:
  Unlocked();

 private:
  nb::gil_scoped_release released_;
};

// While it waits: throws what Python's handler of a signal raised, as a Context's calls do.
void check_signals();

ScoreStage to_stage(nb::handle name, const char* where);

}  // namespace attend::python

namespace nanobind::detail {
template <>
struct type_caster<attend::python::GivenContext> {
  using Value = attend::python::GivenContext;
  static constexpr auto Name = const_name("Context | None");
  template <class>
  using Cast = Value;
  template <class Flags>
  bool from_python(handle source, Flags, cleanup_list*) noexcept {
    source_ = source;
    return true;
  }
  explicit operator Value() { return attend::python::given_context(source_); }

 private:
  handle source_;
};
}  // namespace nanobind::detail
