// What went wrong in other libraries when attention was divided, each a test here. (What happens
// when a rank fails: distributed_faults_test.cpp.)
#include "support/ranks.h"

#include <attend/distributed.h>

#include <gtest/gtest.h>

#include <cmath>

namespace attend::test {
namespace {

using namespace distributed;

// A case, undivided, and what `division` of it gives.
struct Divided {
  cases::Instance whole;
  RanksResult result;
  explicit Divided(const cases::Case& problem, const Division& division = {.ranks = 4})
      : whole(cases::make(problem)), result(run(division)) {
    EXPECT_EQ(differs(whole, result, division), "") << cases::name(problem);
  }

 private:
  RanksResult run(const Division& division) {
    Context context({.threads = 1});
    attention(whole.q, whole.k, whole.v, whole.out, whole.options, {.lse = whole.lse}, context);
    attention_backward(whole.backward_inputs(), whole.options, whole.gradients, context);
    return run_ranks(whole, division, context);
  }
};

bool same(const ConstTensorView& a, const ConstTensorView& b) {
  return static_cast<bool>(same_bits(a, b));
}

const cases::Case kCausal{.heads = 4,
                          .kv_heads = 2,
                          .q_length = 1100,
                          .k_length = 1100,
                          .d = 16,
                          .dv = 16,
                          .causal = true};

// zhuzilin/ring-flash-attention#42: parts were kept in bf16, and gradients were wrong from 4 ranks
// on. Joined in f64 they are rounded once: nearly all elements are those of one process, and none
// is further away than a rounding.
TEST(traps, gradients_of_bf16_are_rounded_once) {
  cases::Case problem = kCausal;
  problem.type = DType::bf16;
  const Divided divided(problem, {.ranks = 8, .bits = Bits::fast});
  std::int64_t different = 0, count = 0;
  const ConstTensorView one = divided.whole.gradients.dk;
  for (std::int64_t h = 0; h < 2; ++h)
    for (std::int64_t j = 0; j < 1100; ++j)
      for (std::int64_t x = 0; x < 16; ++x, ++count) {
        const double a = value_at(one, {0, h, j, x}), b = value_at(divided.result.dk, {0, h, j, x});
        different += a == b ? 0 : 1;
        EXPECT_LE(std::abs(a - b), std::abs(a) * 0x1p-7 + 0x1p-20);
      }
  EXPECT_LT(different, count / 50);
}

// jzhang38/EasyContext#14: exp overflowed where parts were joined.
TEST(traps, large_scores_do_not_overflow) {
  cases::Case problem = kCausal;
  problem.scale = 40;
  const Divided divided(problem);
  EXPECT_TRUE(all_finite(divided.result.out));
  EXPECT_TRUE(all_finite(divided.result.dk));
  // Of one query partial states are joined, and no score of a chunk is within exp() of the next
  // chunk's: maxima of 0, 300, 600 and so on, at either end.
  problem.q_length = 1;
  for (const double step : {300.0, -300.0}) {
    cases::Instance whole = cases::make(problem);
    Tensor bias(Shape{1, 1, 1, 1100});
    for (std::int64_t j = 0; j < 1100; ++j)
      static_cast<float*>(bias.view().data())[j] =
          static_cast<float>(step * static_cast<double>(j / 256));
    whole.options.bias = bias;
    whole.gradients.dbias = {};
    Context context({.threads = 1});
    attention(whole.q, whole.k, whole.v, whole.out, whole.options, {.lse = whole.lse}, context);
    attention_backward(whole.backward_inputs(), whole.options, whole.gradients, context);
    const Division division{.ranks = 4};
    const RanksResult result = run_ranks(whole, division, context);
    EXPECT_EQ(differs(whole, result, division), "");
    EXPECT_TRUE(all_finite(result.out));
    EXPECT_TRUE(all_finite(result.lse));
    EXPECT_TRUE(all_finite(result.dk));
    EXPECT_GT(std::abs(value_at(result.lse, {0, 0, 0})), step > 0 ? 1000 : 0);
  }
}

// flashinfer#4051, flash-attention#978, flashinfer#4452, Megatron-LM#1764: parts in which nothing
// is visible became NaN, or had an lse that was not -inf.
TEST(traps, a_rank_whose_tokens_are_all_masked_gives_zeros) {
  for (const Scheme scheme : {Scheme::gather, Scheme::heads}) {
    cases::Case problem = kCausal;
    problem.mask = cases::Mask::nothing;
    const Divided divided(problem, {.ranks = 3, .scheme = scheme});
    EXPECT_TRUE(all_zero(divided.result.out));
    EXPECT_TRUE(all_zero(divided.result.dk));
    EXPECT_EQ(value_at(divided.result.lse, {0, 0, 700}), -std::numeric_limits<double>::infinity());
  }
}

// sglang#33926: lse to base 2 met one to base e.
TEST(traps, lse_is_natural_on_every_rank) {
  cases::Case problem = kCausal;
  problem.values = cases::Values::constant;
  problem.scale = 0;
  const Divided divided(problem);
  for (const std::int64_t i : {0, 255, 256, 700, 1099})
    EXPECT_NEAR(value_at(divided.result.lse, {0, 1, i}), std::log(static_cast<double>(i + 1)),
                1e-5);
}

// accelerate#4177: a window was dropped silently.
TEST(traps, a_window_is_not_dropped) {
  cases::Case problem = kCausal;
  const Divided without(problem);
  problem.window_left = 100;
  const Divided with(problem);
  EXPECT_FALSE(same(with.result.out, without.result.out));
}

// Of one run of another rank's keys a rank may need several parts: as many blocks more.
TEST(traps, what_is_needed_of_one_run_may_be_apart) {
  cases::Case problem = kCausal;
  problem.q_length = problem.k_length = 3072;
  problem.window_left = 100;
  for (const Bits bits : {Bits::one_process, Bits::fast})
    Divided(problem, {.ranks = 3, .bits = bits, .contiguous_keys = true});
}

// prime-rl#3397, lmdeploy#3951: sinks were swallowed, or counted on every rank.
TEST(traps, sinks_are_counted_once) {
  cases::Case problem = kCausal;
  const Divided without(problem);
  problem.sinks = true;
  for (const Scheme scheme : {Scheme::gather, Scheme::heads}) {
    const Divided with(problem, {.ranks = 4, .scheme = scheme});
    EXPECT_FALSE(same(with.result.out, without.result.out));
  }
}

// TransformerEngine#1046, flashinfer#1606: ALiBi began anew on every rank, or with every head.
TEST(traps, alibi_knows_where_a_rank_begins) {
  cases::Case problem = kCausal;
  problem.alibi = true;
  for (const Scheme scheme : {Scheme::gather, Scheme::heads})
    Divided(problem, {.ranks = 4, .scheme = scheme});
}

// ring-flash-attention#36: backward drew other numbers than forward.
TEST(traps, dropout_is_the_same_for_any_number_of_ranks_forward_and_backward) {
  cases::Case problem = kCausal;
  problem.dropout = 0.3;
  for (const int ranks : {1, 2, 5})
    for (const Bits bits : {Bits::one_process, Bits::fast})
      Divided(problem, {.ranks = ranks, .bits = bits});
}

// TransformerEngine#3331, Megatron's cu_seqlens, pytorch#183968: lengths that no number of ranks
// divides were padded, truncated or refused.
TEST(traps, any_lengths_are_taken) {
  for (const std::int64_t length : {1, 2, 255, 257, 513, 1023})
    for (const int ranks : {2, 3, 8}) {
      cases::Case problem = kCausal;
      problem.heads = problem.kv_heads = 1;
      problem.q_length = problem.k_length = length;
      Divided(problem, {.ranks = ranks});
      Divided(problem, {.ranks = ranks, .granule = 7, .contiguous = true});
    }
  cases::Case packed = kCausal;
  packed.batch = 7;
  packed.addressing = cases::Addressing::packed;
  packed.q_length = packed.k_length = 300;
  for (const int ranks : {2, 5}) Divided(packed, {.ranks = ranks});
  const distributed::Layouts none =  // of which there are no pairs to divide evenly
      distributed::balanced_layouts({.queries = 5, .keys = 7, .batch = 0}, {.window = {.left = 3}},
                                    2);
  EXPECT_EQ(none.queries.total(), 5);
  EXPECT_EQ(none.keys.total(), 7);
}

// SkyRL#1420: gradients were 1 / P of what they are, or P times.
TEST(traps, gradients_do_not_grow_or_shrink_with_the_ranks) {
  const Divided two(kCausal, {.ranks = 2, .bits = Bits::fast}),
      eight(kCausal, {.ranks = 8, .bits = Bits::fast});
  EXPECT_TRUE(close(two.result.dk, eight.result.dk, 1e-5));
  EXPECT_TRUE(same(two.result.dq, eight.result.dq));
}

// DeepSpeed#8316: the number of heads was one for the whole process.
TEST(traps, problems_of_different_heads_take_turns) {
  for (int n = 0; n < 2; ++n)
    for (const std::int64_t heads : {2, 6}) {
      cases::Case problem = kCausal;
      problem.heads = heads;
      Divided(problem, {.ranks = 3, .scheme = Scheme::heads});
    }
}

// DeepSpeed-Ulysses: fewer key heads than ranks failed.
TEST(traps, fewer_key_heads_than_ranks) {
  cases::Case problem = kCausal;
  problem.kv_heads = 1;
  Divided(problem, {.ranks = 5, .scheme = Scheme::heads});
}

// vllm#47181: several queries against a long cache stood a few positions off.
TEST(traps, a_few_queries_at_the_end_of_many_keys) {
  for (const std::int64_t queries : {1, 3, 17}) {
    cases::Case problem = kCausal;
    problem.q_length = queries;
    Divided(problem, {.ranks = 4});
    problem.window_left = 300;
    Divided(problem, {.ranks = 4, .granule = 4});
  }
}

// Partial states of chunks travel there: sinks are in one of them, and every option knows where its
// chunk stands.
TEST(traps, states_of_one_query_know_where_their_keys_stand) {
  cases::Case plain = kCausal;
  plain.q_length = 1;
  using Change = void (*)(cases::Case&);
  for (const Change change : std::initializer_list<Change>{
           [](cases::Case&) {}, [](cases::Case& c) { c.sinks = true; },
           [](cases::Case& c) { c.sinks = c.alibi = true; },
           [](cases::Case& c) { c.bias = cases::Bias::full; },
           [](cases::Case& c) { c.bias = cases::Bias::short_full; },
           [](cases::Case& c) { c.mask = cases::Mask::full; },
           [](cases::Case& c) { c.mask = cases::Mask::nothing; },
           [](cases::Case& c) { c.blocks = cases::BlockMask::full; },
           [](cases::Case& c) { c.key_lengths = cases::Lengths::mixed, c.batch = 3; },
           [](cases::Case& c) { c.dropout = 0.4; },
           [](cases::Case& c) { c.softcap = 3, c.window_left = 700, c.sinks = true; }})
    for (const DType type : cases::kTypes) {
      cases::Case problem = plain;
      change(problem);
      problem.type = type;
      Divided(problem, {.ranks = 3});
    }
}

// Megatron-LM#1764, of one rank alone: what it owns is hidden, or sees nothing.
TEST(traps, a_rank_whose_tokens_alone_are_masked_gives_zeros) {
  constexpr int kRanks = 3, kMasked = 1;
  const Layouts layouts{Layout::serpentine({1100}, kRanks), Layout::serpentine({1100}, kRanks)};
  for (const bool keys : {false, true})
    for (const Scheme scheme : {Scheme::gather, Scheme::heads})
      for (const Bits bits : {Bits::one_process, Bits::fast}) {
        cases::Case problem = kCausal;
        problem.causal = false;
        cases::Instance whole = cases::make(problem);
        Tensor mask(keys ? Shape{1, 1, 1, 1100} : Shape{1, 1, 1100, 1}, DType::boolean);
        for (std::int64_t n = 0; n < 1100; ++n)
          static_cast<bool*>(mask.view().data())[n] = layouts.queries.owner(0, n) != kMasked;
        whole.options.mask = mask;
        Context context({.threads = 1});
        attention(whole.q, whole.k, whole.v, whole.out, whole.options, {.lse = whole.lse}, context);
        attention_backward(whole.backward_inputs(), whole.options, whole.gradients, context);
        const Division division{.ranks = kRanks, .scheme = scheme, .bits = bits};
        const RanksResult result = run_ranks(whole, division, context);
        EXPECT_EQ(differs(whole, result, division), "");
        const auto mine = [&](const Tensor& all) {
          return take_rows(layouts.queries, kMasked, all);
        };
        EXPECT_TRUE(all_finite(result.out));
        EXPECT_TRUE(all_zero(mine(keys ? result.dk : result.out)));
        EXPECT_TRUE(all_zero(mine(keys ? result.dv : result.dq)));
      }
}

}  // namespace
}  // namespace attend::test
