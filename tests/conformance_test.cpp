// Does every kernel give the truth, on every case of the table, in every type, forward, backward
// and as statistics?
//
//   conformance_test --case='type=f32 batch=2 ...'   that case alone, with all kernels
//   conformance_test --reduced                       the reduced table, for slow machines; so
//                                                    under a sanitizer, too
//   conformance_test --only=cuda.                    kernels whose names begin so
//   conformance_test --d=64                          with d and dv of 64 instead of the cases' own
#include "cases/cases.h"
#include "cases/oracle/philox.h"
#include "core/machine.h"
#include "cuda/device.h"
#include "support/examination.h"
#include "support/sanitized.h"

#include <attend/cuda.h>

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <map>

namespace attend::test {
namespace {

bool reduced = kSanitized;
std::string only;          // what names of kernels begin with
std::int64_t other_d = 0;  // 0: that of each case

// What happened, by kernel and type.
struct Tally {
  std::int64_t cases = 0;
  struct Runs {
    std::int64_t count = 0, declined = 0;
    double worst = 0;  // error, as a part of the allowed
  };
  std::map<std::pair<std::string, DType>, Runs> runs;
  std::map<std::string, std::int64_t> declined;  // by kernel and reason
};
Tally tally;

void count(const std::string& kernel, DType type, const Outcome& outcome) {
  Tally::Runs& runs = tally.runs[{kernel, type}];
  if (outcome.declined) {
    ++runs.declined;
    ++tally.declined[kernel + ": " + outcome.message];
    return;
  }
  ++runs.count;
  runs.worst = std::max(runs.worst, outcome.worst);
}

// All kernels on one case; what is wrong, if anything.
std::vector<std::string> examine(const cases::Case& problem) {
  std::vector<std::string> wrong;
  Examination examination(problem);
  ++tally.cases;
  const auto take = [&](const std::string& kernel, const Outcome& outcome) {
    count(kernel, problem.type, outcome);
    if (!outcome.declined && !outcome.message.empty()) wrong.push_back(outcome.message);
  };
  for (const std::string& kernel : kernels_for("forward"))
    if (kernel.starts_with(only)) take(kernel, examination.forward(kernel));
  for (const std::string& kernel : kernels_for("backward"))
    if (kernel.starts_with(only)) take(kernel, examination.backward(kernel));
  for (const std::string& kernel : kernels_for("inspect"))
    if (kernel.starts_with(only)) take(kernel, examination.inspect(kernel));
  for (const std::string& kernel : kernels_for("weights"))
    if (kernel.starts_with(only)) take(kernel, examination.window(problem.seed, kernel));
  return wrong;
}

// The table in parts, so that a run can be divided among processes.
constexpr int kParts = 16;

class Table : public testing::TestWithParam<std::tuple<DType, int>> {};

TEST_P(Table, every_kernel_gives_the_truth) {
  const auto& [type, part] = GetParam();
  const std::vector<cases::Case> all = reduced ? cases::reduced_table() : cases::table();
  for (std::size_t n = static_cast<std::size_t>(part); n < all.size(); n += kParts) {
    cases::Case problem = all[n];
    problem.type = type;
    if (other_d > 0) problem.d = problem.dv = other_d;
    for (const std::string& wrong : examine(problem)) ADD_FAILURE() << wrong;
  }
}

INSTANTIATE_TEST_SUITE_P(all, Table,
                         testing::Combine(testing::ValuesIn(cases::kTypes),
                                          testing::Range(0, kParts)),
                         [](const auto& test) {
                           return std::string(name_of(std::get<0>(test.param))) + "_" +
                                  std::to_string(std::get<1>(test.param));
                         });

TEST(cases, a_name_reads_back_as_its_case) {
  for (cases::Case problem : cases::table()) {
    for (const DType type : cases::kTypes) {
      problem.type = type;
      EXPECT_EQ(cases::parse(cases::name(problem)), problem) << cases::name(problem);
    }
  }
  EXPECT_THROW(cases::parse("batch=two"), std::invalid_argument);
  EXPECT_THROW(cases::parse("mask=some"), std::invalid_argument);
  EXPECT_THROW(cases::parse("colour=red"), std::invalid_argument);
}

TEST(cases, no_two_cases_are_equal) {
  std::map<std::string, int> seen;
  for (cases::Case problem : cases::table()) {
    problem.seed = 0;
    EXPECT_EQ(++seen[cases::name(problem)], 1) << cases::name(problem);
  }
}

// The random numbers are the same on every machine: these were written down once.
TEST(cases, data_is_the_same_everywhere) {
  const cases::Instance instance = cases::make({.type = DType::f64, .seed = 42});
  const std::vector<double> q = widen(instance.q);
  EXPECT_EQ(q[0], -0x1.04547dff4c094p+0);
  EXPECT_EQ(q[31], -0x1.cfd090d7b9169p-2);
  EXPECT_EQ(widen(instance.v)[5], 0x1.d1277e8e17b66p-2);
}

// Known answers published with the generator (Random123).
TEST(oracle, philox_gives_its_known_answers) {
  using Words = std::array<std::uint32_t, 4>;
  constexpr std::uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32_10({ones, ones, ones, ones}, {ones, ones}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// The oracle of 53 bits and that of 113 agree, so that neither hides a mistake of its arithmetic.
TEST(oracle, does_not_depend_on_its_precision) {
  for (cases::Case problem : cases::reduced_table()) {
    problem.type = DType::f32;
    const cases::Instance in = cases::make(problem);
    const Reader reader({in.q, in.k, in.v, in.dout, in.dlse, in.options});
    const Results<double> narrow = truth<double>(reader);
    const Results<Float128> wide = truth<Float128>(reader);
    const Bounds bound = bounds(reader);
    for (std::size_t n = 0; n < narrow.dq.size(); ++n)
      ASSERT_LE(std::abs(static_cast<double>(narrow.dq[n] - wide.dq[n])),
                100 * 0x1p-53 * bound.accumulated.dq[n])
          << cases::name(problem);
    for (std::size_t n = 0; n < narrow.out.size(); ++n)
      ASSERT_LE(std::abs(static_cast<double>(narrow.out[n] - wide.out[n])),
                100 * 0x1p-53 * bound.accumulated.out[n])
          << cases::name(problem);
  }
}

int run_one(const char* line) {
  const std::vector<std::string> wrong = examine(cases::parse(line));
  for (const std::string& message : wrong) std::printf("%s\n", message.c_str());
  return wrong.empty() ? 0 : 1;
}

// Whether this machine has the instruction set that a kernel is named after, and the kernel takes
// the type.
bool can_run(const std::string& kernel, DType type) {
  const Machine machine = this_machine();
  const std::pair<const char*, bool> sets[] = {
      {"cpu.amx.", machine.amx_bf16 && machine.amx_permitted && type == DType::bf16},
      {"cpu.amx_fp16.", machine.amx_fp16 && machine.amx_permitted && type == DType::f16},
      {"cpu.avx512_bf16.", machine.avx512_bf16 && type == DType::bf16},
      {"cpu.neon_bf16.", machine.neon_bf16 && type == DType::bf16},
      {"cpu.avx512.", machine.avx512},
      {"cpu.avx2.", machine.avx2},
      {"cpu.neon.", machine.neon}};
  for (const auto& [set, there] : sets)
    if (kernel.starts_with(set)) return there;
  if (kernel.starts_with("cuda.portable.")) return cuda::why_unavailable().empty();
  if (kernel.starts_with("cuda.sm90."))
    return (type == DType::bf16 || type == DType::f16) && cuda::why_unavailable().empty() &&
           cuda::Gpu::find(0)->capability() == 90;
  return true;
}

// A kernel that the machine can run and that took no case was not tested; one that ran without its
// instruction set cannot have. (cuda.sm90.* take few cases as they are: --d gives them more.)
int rows_that_did_not_run() {
  int wrong = 0;
  for (const auto& [row, runs] : tally.runs) {
    const auto& [kernel, type] = row;
    if ((runs.count > 0) == can_run(kernel, type)) continue;
    if (kernel.starts_with("cuda.sm90.") && runs.count == 0) continue;
    ++wrong;
    std::printf("%s %s: %lld runs, and this machine %s run it\n", kernel.c_str(),
                std::string(name_of(type)).c_str(), static_cast<long long>(runs.count),
                can_run(kernel, type) ? "can" : "cannot");
  }
  return wrong;
}

void print_tally() {
  std::int64_t total = 0;
  for (const auto& [row, runs] : tally.runs) total += runs.count;
  std::printf("%lld cases x kernels: %lld runs\n", static_cast<long long>(tally.cases),
              static_cast<long long>(total));
  for (const auto& [row, runs] : tally.runs) {
    const std::string name = row.first + " " + std::string(name_of(row.second));
    if (can_run(row.first, row.second))
      std::printf("  %-24s %5lld runs, %lld declined, largest error %.3f of the allowed\n",
                  name.c_str(), static_cast<long long>(runs.count),
                  static_cast<long long>(runs.declined), runs.worst);
    else std::printf("  %-24s skipped: not on this machine, or not of this type\n", name.c_str());
  }
  for (const auto& [reason, times] : tally.declined)
    std::printf("  declined %lld times: %s\n", static_cast<long long>(times), reason.c_str());
}

}  // namespace
}  // namespace attend::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  int result = 0;
  for (int n = 1; n < argc; ++n) {
    constexpr char kCase[] = "--case=", kOnly[] = "--only=", kD[] = "--d=";
    if (std::strcmp(argv[n], "--reduced") == 0) {
      attend::test::reduced = true;
    } else if (std::strncmp(argv[n], kOnly, sizeof kOnly - 1) == 0) {
      attend::test::only = argv[n] + sizeof kOnly - 1;
    } else if (std::strncmp(argv[n], kD, sizeof kD - 1) == 0) {
      attend::test::other_d = std::atoll(argv[n] + sizeof kD - 1);
    } else if (std::strncmp(argv[n], kCase, sizeof kCase - 1) == 0) {
      result = attend::test::run_one(argv[n] + sizeof kCase - 1);
      attend::test::print_tally();
      return result;
    } else {
      std::fprintf(stderr, "conformance_test: unknown argument %s\n", argv[n]);
      return 2;
    }
  }
  result = RUN_ALL_TESTS();
  attend::test::print_tally();
  const bool all = GTEST_FLAG_GET(filter) == "*";
  if (all && attend::test::rows_that_did_not_run() > 0) result = 1;
  return result;
}
