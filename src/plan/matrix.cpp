// The kernels for products of matrices: one line an instruction set, and the choice among them.
#include "core/matrix.h"

namespace attend {

#if defined(__x86_64__)
extern const MatrixKernel kAvx512Matrix, kAvx2Matrix;
#elif defined(__aarch64__)
extern const MatrixKernel kNeonMatrix;
#endif
extern const MatrixKernel kGenericMatrix;

namespace {

constinit const MatrixKernel* const kKernels[] = {
#if defined(__x86_64__)
    &kAvx512Matrix,
    &kAvx2Matrix,
#elif defined(__aarch64__)
    &kNeonMatrix,
#endif
    &kGenericMatrix,
};

const MatrixKernel& best() noexcept {
  const Machine machine = this_machine();
  for (const MatrixKernel* kernel : kKernels)
    if (kernel->needs == nullptr || machine.*kernel->needs) return *kernel;
  return kGenericMatrix;
}

}  // namespace

std::span<const MatrixKernel* const> matrix_kernels() noexcept { return kKernels; }

const MatrixKernel& matrix_kernel() noexcept {
  static const MatrixKernel& kernel = best();
  return kernel;
}

}  // namespace attend
