// Running an inspect call that is checked and planned.
#pragma once

#include "api/check.h"
#include "api/context.h"

#include <attend/inspect.h>

namespace attend {

// Makes the tensors, runs, and turns sums into means.
Statistics statistics_of(Request<Inspect> request, const Decision<Inspect>& decision,
                         const InspectArguments& given, const Where& where);

}  // namespace attend
