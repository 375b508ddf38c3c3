// The oracle under the tests' own name, and the examination of a case with the truth of f64 in 113
// bits on every machine.
#pragma once

#include "cases/oracle/examination.h"

namespace attend::test {

using namespace oracle;

struct Examination : oracle::Examination {
  explicit Examination(const cases::Case& problem)
      : oracle::Examination(
            problem, {.truth_of_f64 = split_truth<Float128>, .program = "conformance_test"}) {}
};

}  // namespace attend::test
