// Layouts and the options of distributed calls, as Python gives them.
#pragma once

#include "options.h"

#include <attend/distributed.h>

namespace attend::python {

// A pair (queries, keys) of Layouts, or one for both.
distributed::Layouts to_layouts(nb::handle layouts, const char* where);

distributed::DistributedOptions to_distributed(nb::handle scheme, nb::handle bits,
                                               nb::handle timeout, const char* where);

}  // namespace attend::python

// The arguments that name them.
#define ATTEND_DISTRIBUTED                                          \
  "scheme: Literal['automatic', 'heads', 'gather'] = 'automatic', " \
  "bits: Literal['one_process', 'fast'] = 'one_process', "
