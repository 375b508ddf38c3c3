// One query a head: other kernels than those of prompts, and the same bits.
#pragma once

#include "cuda/forward_sm90.h"
#include "cuda/sm90.h"

namespace attend::cuda {

// Whether a problem of cuda.sm90.forward is one for them. No bit depends on it.
bool is_one_query(const ForwardProblem& problem, int size) noexcept;

// The tensors as the copy engine can read them; `a`: what the forward kernel would get.
struct OneQueryTensors {
  const AlignedTensor &q, &k, &v, &out;
};
Status start_one_query(const ForwardProblem& problem, const ForwardParameters& a, int size,
                       const OneQueryTensors& tensors, Loans& loans, StreamQueue& queue) noexcept;

}  // namespace attend::cuda
