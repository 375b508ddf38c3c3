#pragma once

#include <attend/context.h>

namespace attend::python {

// So many threads of the OpenMP that is loaded, PyTorch's; none, where there is no such library.
ParallelFor openmp_threads(int threads);

}  // namespace attend::python
