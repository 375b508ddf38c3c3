// Everything that a row of the kernel table writes, in one list of tensors, so that two ways to
// compute it can be compared as a whole.
#pragma once

#include "support/property_trial.h"

#include <attend/io.h>

#include <optional>
#include <vector>

namespace attend::test {

using WrittenList = std::vector<NamedTensor>;

// What is computed: the arguments, the types of what is written, and the scores' stage.
struct Asked {
  Arguments arguments;
  DType out_type = DType::f32, lse_type = DType::f32;
  ScoreStage stage = ScoreStage::masked;
};
Asked asked_of(const Trial& trial, std::uint64_t variant);

// forward: out, lse, weights, scores; backward: every gradient; inspect: every statistic. None if
// the kernel declines. Forward is called with and without weights and scores, which is not the same
// way through a kernel: "out" must be the same bits, or there is an element "out again".
std::optional<WrittenList> written_by(const KernelInfo& kernel, const Asked& asked,
                                      Context& context);

// "" or the first tensor and element in which they differ.
std::string difference_of(const WrittenList& a, const WrittenList& b);

}  // namespace attend::test
