// The rows of the kernel table and the machines they are for: whom does the plan choose for the
// cases of the table on a machine with AVX2, with AVX-512, with NEON, with none of them?
#include "api/check.h"
#include "cases/cases.h"
#include "cases/instance.h"
#include "plan/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace attend {
namespace {

struct Choice {
  Machine machine;
  std::string rows;  // what the names of its rows begin with
};

// Machines of this architecture: the table has no rows of the other. And those whose code this
// machine runs: a row's workspace is counted by functions that are compiled for it.
std::vector<Choice> choices() {
#if defined(__x86_64__)
  std::vector<Choice> list = {{{.architecture = "x86-64"}, "cpu.generic."}};
  if (__builtin_cpu_supports("avx2"))
    list.push_back({{.architecture = "x86-64", .avx2 = true}, "cpu.avx2."});
  if (__builtin_cpu_supports("avx512f"))
    list.push_back({{.architecture = "x86-64", .avx2 = true, .avx512 = true}, "cpu.avx512."});
  return list;
#elif defined(__aarch64__)
  return {{{.architecture = "aarch64"}, "cpu.generic."},
          {{.architecture = "aarch64", .neon = true}, "cpu.neon."}};
#else
  return {{{.architecture = "unknown"}, "cpu.generic."}};
#endif
}
// What no fast row takes yet.
constexpr Features kReferenceAlone{Feature::own_key_type, Feature::own_value_type,
                                   Feature::key_scales, Feature::value_scales};

// A test for each type.
class KernelRows : public testing::TestWithParam<DType> {};

TEST_P(KernelRows, no_case_is_left_to_the_reference) {
  int asked = 0;
  for (cases::Case problem : cases::table()) {
    problem.type = GetParam();
    const cases::Instance in = cases::make(problem);
    const auto expect_row = [&]<class Operation>(const Request<Operation>& wanted) {
      for (const Choice& choice : choices()) {
        const auto decision = decide<Operation>(wanted.problem, choice.machine, 1, "");
        const Features features = features_of(wanted.problem);
        const bool alone = features - kReferenceAlone != features;
        const std::string rows = alone ? "reference." : choice.rows;
        ASSERT_TRUE(decision.kernel->name.starts_with(rows))
            << "a row " << rows << " is wanted for " << cases::name(problem) << "\n"
            << describe(decision);
        ++asked;
      }
    };
    expect_row(check(ForwardArguments{in.q, in.k, in.v, in.out, in.options, in.outputs}));
    expect_row(check(BackwardArguments{in.backward_inputs(), in.options, in.gradients}));
    if (HasFailure()) return;
  }
  EXPECT_GT(asked, 400) << "the table has a few hundred cases";
}

INSTANTIATE_TEST_SUITE_P(types, KernelRows, testing::ValuesIn(cases::kTypes),
                         [](const auto& test) { return std::string(name_of(test.param)); });

// Asked another way than the library asks: by what the system says.
TEST(Machine, has_the_instruction_sets_that_the_system_lists) {
  const Machine machine = this_machine();
#if defined(__x86_64__)
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line) && !line.starts_with("flags")) {
  }
  if (line.empty()) GTEST_SKIP() << "/proc/cpuinfo lists no flags";
  std::istringstream words(line);
  const std::set<std::string> flags{std::istream_iterator<std::string>(words), {}};
  const auto has = [&](std::initializer_list<const char*> names) {
    return std::all_of(names.begin(), names.end(),
                       [&](const char* name) { return flags.contains(name); });
  };
  EXPECT_EQ(machine.avx2, has({"avx2", "fma", "f16c"}));
  EXPECT_EQ(machine.avx512,
            has({"avx2", "fma", "f16c", "avx512f", "avx512dq", "avx512bw", "avx512vl"}));
  EXPECT_FALSE(machine.neon);
#elif defined(__aarch64__)
  EXPECT_EQ(machine.neon, (getauxval(AT_HWCAP) & HWCAP_ASIMD) != 0);
  EXPECT_FALSE(machine.avx2 || machine.avx512);
#endif
}

}  // namespace
}  // namespace attend
