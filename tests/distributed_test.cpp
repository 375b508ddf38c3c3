// Does attention over ranks give the bits of the undivided call, on every case of the table, in
// every type, forward and backward?
//
//   distributed_test --case='type=f32 batch=2 ...'   that case alone, divided in every way
//   distributed_test --counts                        in f32 every case by every number of ranks
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

bool all_counts = false, all_ways = false;

constexpr int kRanks[] = {1, 2, 3, 5, 8};

// Every way to divide a problem: ranks, granules (of most cases one of 256 holds all; those of 1
// make so many blocks that they travel packed), scheme, bits.
std::vector<Division> ways() {
  std::vector<Division> all;
  for (const int ranks : kRanks)
    for (const std::int64_t granule : {std::int64_t{1}, std::int64_t{16}, distributed::kGranule})
      for (const Scheme scheme : {Scheme::gather, Scheme::heads})
        for (const Bits bits : {Bits::one_process, Bits::fast}) {
          if (scheme == Scheme::heads && bits == Bits::fast) continue;  // is the same
          all.push_back({ranks, granule, false, scheme, bits});
        }
  return all;
}

constexpr std::int64_t kGranules[] = {1, 16, distributed::kGranule};

// The bits of one process for two numbers of ranks, so that the types meet all of them together, in
// f32 for every number if that is asked for; granules and schemes in turn; and Bits::fast for one
// number of ranks, in f32 and one more type. Under a sanitizer a part of these.
std::vector<Division> ways_in_turn(std::size_t turn, DType type) {
  const std::size_t other = type == DType::f64 ? 0 : type == DType::bf16 ? 1 : 2;
  const bool all = all_counts && type == DType::f32;
  std::vector<Division> some;
  for (std::size_t r = 0; r < (all ? std::size(kRanks) : kSanitized ? 1 : 2); ++r) {
    const std::size_t ranks = all ? r : (turn + 2 * other + r) % std::size(kRanks);
    const std::size_t n = turn + ranks + (all ? 0 : 1 + other);  // of 6 ways
    some.push_back({kRanks[ranks], kGranules[n % 3], false,
                    n / 3 % 2 == 0 ? Scheme::gather : Scheme::heads, Bits::one_process});
  }
  if (type == DType::f32 || other == turn % 3)
    some.push_back({kRanks[turn % 5], kGranules[turn / 5 % 3], false, Scheme::gather, Bits::fast});
  return some;
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

// Each case in every type, by ranks in turn, all of them, or in all ways.
TEST_P(Table, ranks_give_the_bits_of_one_process) {
  Context context({.threads = 1});
  const auto& [type, part] = GetParam();
  const std::vector<cases::Case> all = kSanitized ? cases::reduced_table() : cases::table();
  for (std::size_t n = static_cast<std::size_t>(part); n < all.size(); n += kParts) {
    cases::Case problem = divided(all[n]);
    problem.type = type;
    if (!can_be_divided(problem)) continue;
    EXPECT_EQ(examine(problem, all_ways ? ways() : ways_in_turn(n + n / 6, type), context), "");
  }
}

INSTANTIATE_TEST_SUITE_P(all, Table,
                         testing::Combine(testing::ValuesIn(cases::kTypes),
                                          testing::Range(0, kParts)),
                         [](const auto& test) {
                           return std::string(name_of(std::get<0>(test.param))) + "_" +
                                  std::to_string(std::get<1>(test.param));
                         });

// Cases of several chunks of keys and several groups of rows, with the options that meet there.
constexpr const char* kLong[] = {
    "heads=4 kv_heads=2 q=1100 k=1100 d=32 dv=40 causal=1",
    "batch=2 heads=4 kv_heads=1 q=500 k=700 d=64 dv=64 causal=1 alibi=1 sinks=1 dlse=1",
    "batch=2 heads=2 kv_heads=2 q=520 k=1025 d=16 dv=16 window_left=300 window_right=40 softcap=20 "
    "bias=per_pair bias_before_softcap=1 dropout=0.2",
    "batch=3 heads=2 kv_heads=1 q=513 k=513 d=24 dv=8 causal=1 bias=key dropout=0.3 mask=per_key "
    "sinks=1",
    "batch=2 heads=3 kv_heads=3 q=600 k=600 d=40 dv=40 addressing=packed causal=1 bias=per_head "
    "alibi=1",
    "batch=4 heads=4 kv_heads=2 q=600 k=600 d=64 dv=64 addressing=packed_self causal=1 blocks=full "
    "block_q=48 block_k=24 key_lengths=mixed",
    "q=1500 k=600 d=64 dv=64 bias=query_key",
    "batch=8 heads=4 kv_heads=2 q=300 k=300 d=16 dv=16",
    "q=2600 k=2100 d=64 dv=64 causal=1",
    "batch=3 heads=4 kv_heads=2 q=600 k=700 d=16 dv=16 addressing=packed causal=1 bias=per_pair "
    "sinks=1",
};

// The sums of dk and dv are cut as in the undivided call, whatever its shape: heads that make
// segments of rows, or rows that are many. In f32 and, in turn, one more type.
TEST(long_sequences, have_the_bits_of_one_process) {
  Context context({.threads = 1});
  constexpr DType kOthers[] = {DType::f64, DType::bf16, DType::f16};
  std::size_t n = 0, turn = 0;
  for (const char* line : kLong) {
    const DType other = kOthers[turn++ % std::size(kOthers)];
    for (const DType type : cases::kTypes) {
      if (type != DType::f32 && type != other && !all_ways) continue;
      cases::Case problem = cases::parse(line);
      problem.type = type;
      const std::vector<Division> every = ways();
      const std::vector<Division> two{every[n % every.size()],
                                      every[(n + every.size() / 2 + 1) % every.size()]};
      n += 11;
      EXPECT_EQ(examine(problem, all_ways ? every : two, context), "");
    }
  }
}

// A rank's runs of queries are one call, which its threads divide.
TEST(threads, of_a_rank_change_no_bit) {
  Context one({.threads = 1}), four({.threads = 4});
  for (const char* line : {kLong[0], kLong[1], kLong[5]})
    for (const Bits bits : {Bits::one_process, Bits::fast}) {
      cases::Instance whole = cases::make(divided(cases::parse(line)));
      whole.outputs.visited_blocks = nullptr;
      const Division division{.ranks = 2, .granule = 16, .bits = bits};
      const RanksResult a = run_ranks(whole, division, one), b = run_ranks(whole, division, four);
      EXPECT_TRUE(same_bits(a.out, b.out)) << line;
      EXPECT_TRUE(same_bits(a.dq, b.dq)) << line;
      EXPECT_TRUE(same_bits(a.dk, b.dk)) << line;
      EXPECT_TRUE(same_bits(a.dv, b.dv)) << line;
    }
}

// Whichever row of the kernel table computes: each can leave and read what rows have summed.
TEST(kernels, each_gives_the_bits_of_its_own_undivided_call) {
  for (const char* operation : {"forward", "backward"})
    for (const KernelInfo& kernel : Context::kernels()) {
      if (kernel.operation != operation || kernel.only_if_forced) continue;
      Context context({.threads = 1, .kernels = kernel.operation + ":" + kernel.name});
      int ran = 0;
      for (const DType type : cases::kTypes)
        for (const char* line :
             {"heads=2 q=140 k=530 d=24 dv=16 causal=1 alibi=1 sinks=1 dlse=1 bias=per_head",
              "batch=2 heads=2 kv_heads=1 q=90 k=300 d=16 dv=16 softcap=9 bias=per_pair",
              "heads=4 kv_heads=2 q=1 k=1100 d=24 dv=16 sinks=1"}) {  // of partial states
          cases::Case problem = cases::parse(line);
          problem.type = type;
          try {
            EXPECT_EQ(
                examine(problem, {{.ranks = 3}, {.ranks = 2, .scheme = Scheme::heads}}, context),
                "");
            ++ran;
          } catch (const Unsupported&) {  // not on this machine, or not of this type
          }
        }
      EXPECT_TRUE(ran == 12 || !kernel.name.starts_with("reference."));
    }
}

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
    if (std::strcmp(argv[n], "--counts") == 0) attend::test::all_counts = true;
    if (std::strcmp(argv[n], "--all") == 0) attend::test::all_ways = true;
  }
  return RUN_ALL_TESTS();
}
