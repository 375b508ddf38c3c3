// What the rows for products on GPUs share.
#pragma once

#include "cuda/prepare.h"

#include "core/product.h"
#include "core/row_operations.h"

namespace attend::cuda {

// y = a + b, or a copy, of matrices of any strides.
Status start_add(DType type, const AddCall& call, std::int64_t rows, StreamQueue& queue) noexcept;

// The activation and the residual, if the problem has them, of a c whose sums are done; before them
// the bias, if that is not in the sums.
Status start_end(const ProductProblem& problem, const ProductCall& call, bool bias,
                 StreamQueue& queue) noexcept;

// The whole product by the portable kernel.
Status start_portable_product(const ProductProblem& problem, const ProductCall& call,
                              StreamQueue& queue) noexcept;

}  // namespace attend::cuda
