// Statistics between Python and the library, for the function and the layer.
#pragma once

#include "arrays.h"

#include <attend/inspect.h>

namespace attend::python {

// The arguments of inspect() besides the options of attention: numbers as given, and the tokens.
// Not to be copied: `options` shows the tokens.
class InspectArguments {
  Array tokens_;  // made before the options that show them

 public:
  InspectArguments(const InspectOptions& given, nb::handle tokens, const char* where,
                   Devices devices = Devices::host);
  InspectArguments(const InspectArguments&) = delete;
  InspectArguments& operator=(const InspectArguments&) = delete;

  InspectOptions options{};
};

// attend.Statistics, with arrays of the library that `like` is from.
nb::object to_python(Statistics&& statistics, nb::handle like);

}  // namespace attend::python
