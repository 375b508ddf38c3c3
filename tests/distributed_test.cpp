// Does attention over ranks give the bits of the undivided call, on every case of the table, in
// every type, forward and backward?
//
//   distributed_test --case='type=f32 batch=2 ...'   that case alone, divided in every way
//   distributed_test --all                           every case in every way, for hours
#include "cases/cases.h"
#include "support/ranks.h"
#include "support/sanitized.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>

namespace attend::test {
namespace {

using distributed::Bits;
using distributed::Scheme;

bool all_ways = false;

constexpr int kRanks[] = {1, 2, 3, 5, 8};

// Every way to divide a problem: ranks, granules (of most cases one of 256 holds all), scheme,
// bits.
std::vector<Division> ways() {
  std::vector<Division> all;
  for (const int ranks : kRanks)
    for (const std::int64_t granule : {std::int64_t{16}, distributed::kGranule})
      for (const Scheme scheme : {Scheme::gather, Scheme::heads})
        for (const Bits bits : {Bits::one_process, Bits::fast}) {
          if (scheme == Scheme::heads && bits == Bits::fast) continue;  // is the same
          all.push_back({ranks, granule, false, scheme, bits});
        }
  return all;
}

// The case without what ranks do not write.
cases::Case divided(cases::Case problem) {
  problem.weights = problem.scores = false;
  return problem;
}

// What is wrong about a case, divided in these ways.
std::string examine(const cases::Case& problem, const std::vector<Division>& divisions,
                    Context& context) {
  cases::Instance whole = cases::make(problem);
  whole.outputs.visited_blocks = nullptr;
  attention(whole.q, whole.k, whole.v, whole.out, whole.options, {.lse = whole.lse}, context);
  attention_backward(whole.backward_inputs(), whole.options, whole.gradients, context);
  std::string wrong;
  for (const Division& division : divisions) {
    std::string found;
    try {
      found = differs(whole, run_ranks(whole, division, context), division);
    } catch (const std::exception& error) {
      found = error.what();
    }
    if (!found.empty()) wrong += cases::name(problem) + ", " + name(division) + ": " + found + "\n";
  }
  return wrong;
}

constexpr int kParts = 8;
class Table : public testing::TestWithParam<std::tuple<DType, int>> {};

// Each case in two of the ways, in turn, so that each of them meets every option; with --all in
// all of them.
TEST_P(Table, ranks_give_the_bits_of_one_process) {
  Context context({.threads = 1});
  const auto& [type, part] = GetParam();
  const std::vector<Division> every = ways();
  const std::vector<cases::Case> all = kSanitized ? cases::reduced_table() : cases::table();
  for (std::size_t n = static_cast<std::size_t>(part); n < all.size(); n += kParts) {
    cases::Case problem = divided(all[n]);
    problem.type = type;
    if (!can_be_divided(problem)) continue;
    const std::size_t first =
        n / kParts * 7 + static_cast<std::size_t>(part) + 5 * static_cast<std::size_t>(type);
    const std::vector<Division> two{every[first % every.size()],
                                    every[(first + every.size() / 2 + 1) % every.size()]};
    EXPECT_EQ(examine(problem, all_ways ? every : two, context), "");
  }
}

INSTANTIATE_TEST_SUITE_P(all, Table,
                         testing::Combine(testing::ValuesIn(cases::kTypes),
                                          testing::Range(0, kParts)),
                         [](const auto& test) {
                           return std::string(name_of(std::get<0>(test.param))) + "_" +
                                  std::to_string(std::get<1>(test.param));
                         });

int run_one(const char* line) {
  Context context({.threads = 1});
  const std::string wrong = examine(divided(cases::parse(line)), ways(), context);
  std::printf("%s", wrong.c_str());
  return wrong.empty() ? 0 : 1;
}

}  // namespace
}  // namespace attend::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int n = 1; n < argc; ++n) {
    if (std::strncmp(argv[n], "--case=", 7) == 0) return attend::test::run_one(argv[n] + 7);
    if (std::strcmp(argv[n], "--all") == 0) attend::test::all_ways = true;
  }
  return RUN_ALL_TESTS();
}
