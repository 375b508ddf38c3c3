// Tensors as plain arrays, under the tests' own name.
#pragma once

#include "cases/oracle/widen.h"

namespace attend::test {

using namespace oracle;

}  // namespace attend::test
