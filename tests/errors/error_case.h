// A mistake and what the library must say about it. Each file of this folder has a table of them;
// errors_test.cpp runs them all and checks that no message of the sources is without one.
#pragma once

#include "support/thrown_by.h"

#include <functional>
#include <string>
#include <vector>

namespace attend::test {

struct ErrorCase {
  std::string mistake;         // snake_case: the test's name
  std::function<void()> make;  // throws, and checks that nothing was written
  std::string message;         // all of it
  std::string type = "InvalidArgument";
};

// Of attention and attention_backward alike:
std::vector<ErrorCase> input_errors();     // q, k, v
std::vector<ErrorCase> sequence_errors();  // lengths, packed sequences, pages
std::vector<ErrorCase> option_errors();    // what becomes of scores

std::vector<ErrorCase> output_errors();      // out, lse, weights, scores, gradients, parts of merge
std::vector<ErrorCase> overlap_errors();     // what is written shares memory
std::vector<ErrorCase> partial_errors();     // partial states
std::vector<ErrorCase> statistics_errors();  // inspect, weights_of
std::vector<ErrorCase> tensor_errors();      // Shape, views, Tensor
std::vector<ErrorCase> launch_errors();      // what devices report
std::vector<ErrorCase> planning_errors();    // Context, Plan, kernels that decline, workspaces
std::vector<ErrorCase> no_memory_errors();   // any other memory

}  // namespace attend::test
