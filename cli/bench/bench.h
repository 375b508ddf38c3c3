// The parts of attend bench: cases made ready to run, and the clock that times them.
#pragma once

#include "cases/bench.h"

#include <attend/context.h>

#include <functional>
#include <string>
#include <vector>

namespace attend::cli {

// A case with its tensors: run() computes it once more.
struct Work {
  std::function<void()> run;
  std::string kernel, plan;         // what the planner chose, and its own words
  std::size_t workspace_bytes = 0;  // besides inputs and results
};
Work prepare(const cases::BenchCase& measured, Context& context);

// A name to show, and how to make it ready; that is called when its turn comes.
struct Timed {
  std::string name;
  std::function<std::function<void()>()> make;
};

constexpr int kRepetitions = 5;

// Seconds of one call, kRepetitions of them for each case; each is the mean over so many calls that
// they take `seconds`. `turn` is told the number of the case that comes next. Throws UsageError
// where the program was built without Google Benchmark.
std::vector<std::vector<double>> time_calls(const std::vector<Timed>& all, double seconds,
                                            const std::function<void(std::size_t)>& turn);

}  // namespace attend::cli
