// What the oracle says about a trial, in the tensors that a call would write.
#pragma once

#include "property_compare.h"

namespace attend::test {

Written truth_of(const Trial& trial);  // all f64

// Whether every tensor that was written is within `error` of the truth, relative to the tensor's
// largest value (or to 1, where that is larger).
testing::AssertionResult close_to_truth(const Trial& trial, const Written& written, double error);

}  // namespace attend::test
