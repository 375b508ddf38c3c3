// What the sweeps share: they draw random cases, judge each on every kernel that runs here, and go
// on until their time or their number of cases is over.
//
//   sweep_NAME                       for ATTEND_SOAK_SECONDS, or 600 seconds, new cases each time
//   sweep_NAME --cases 100           so many cases, the same each time, whatever time they take
//   sweep_NAME --seconds 60 --seed 7 --kernels avx512,reference --failures 3
//   sweep_NAME --skip weights,inspect   what is known: failures with these words do not count
//   sweep_NAME --case='...'          one case alone: what a failure prints
//
// A failure is made smaller, as far as it goes on failing, and is one line. The last lines say how
// many cases there were and which kernels took how many of them. It exits 1 if anything failed, if
// no case ran, or if a word of --kernels fits no kernel that ran.
#pragma once

#include "cases/cases.h"

#include <attend/context.h>

#include <map>
#include <string>
#include <vector>

namespace attend::test {

// A problem, and what a sweep does to it; `variant` chooses among all it could do.
struct SweepCase {
  cases::Case problem;
  std::uint64_t variant = 0;
};
std::string line_of(const SweepCase& sweep_case);
SweepCase parse_sweep_case(const std::string& line);

// What one run of a sweep has done so far.
class Tally {
 public:
  explicit Tally(std::vector<std::string> wanted = {}) : wanted_(std::move(wanted)) {}
  bool wants(const std::string& kernel) const;  // by --kernels
  void ran(const std::string& what) { ++runs_[what]; }
  void declined(const std::string& what) { ++declined_[what]; }
  std::vector<KernelInfo> kernels(std::string_view operation) const;  // those that are wanted
  // How often each ran; false if nothing did, or nothing that fits one of the words.
  bool report() const;

 private:
  std::vector<std::string> wanted_;
  std::map<std::string, std::int64_t> runs_, declined_;
};

struct Sweep {
  std::string name;  // of the program
  SweepCase (*draw)(std::uint64_t seed);
  // What is wrong, "forward by cpu.neon.forward: ..." each: what stands before the first colon
  // tells failures apart.
  std::vector<std::string> (*judge)(const SweepCase& sweep_case, Tally& tally);
};
int sweep_main(int argc, char** argv, const Sweep& sweep);

// Contexts of 1, 2, 3, ... threads that last as long as the program.
Context& context_of(int threads);

// A problem with every option likely, of sizes from 0 up to a few hundred, now and then with
// thousands of keys.
cases::Case random_problem(std::uint64_t seed);

}  // namespace attend::test
