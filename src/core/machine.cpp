// By itself, so that a program of the tests may have another (tests/emulated/machine.cpp).
#include "core/machine.h"

namespace attend {

Machine this_machine() noexcept { return detected_machine(); }

}  // namespace attend
