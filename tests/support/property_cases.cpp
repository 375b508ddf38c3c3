// Random cases for the properties: small enough that a plain kernel takes milliseconds, and rich
// enough that every option meets every other one sooner or later.
#include "dice.h"
#include "property_trial.h"
#include "sanitized.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

namespace attend::test {
namespace {

void roll_sizes(Dice& dice, cases::Case& c) {
  c.type = dice.one_of({DType::f64, DType::f32, DType::bf16, DType::f16});
  c.batch = dice.between(1, 3);
  c.kv_heads = dice.between(1, 2);
  c.heads = c.kv_heads * dice.between(1, 3);
  c.q_length = dice.between(1, 20);
  c.k_length = dice.between(1, 40);
  c.d = dice.between(1, 18);
  c.dv = dice.between(1, 18);
  if (dice.chance(0.1)) {  // beyond a chunk of 256 keys
    c.batch = 1;
    c.heads = c.kv_heads = 2;
    c.q_length = dice.between(1, 5);
    c.k_length = dice.between(250, 600);
  }
  if (dice.chance(0.1)) c.values = cases::Values::outliers;
  using cases::Addressing;
  if (dice.chance(0.4))
    c.addressing = dice.one_of(
        {Addressing::packed, Addressing::packed_self, Addressing::paged, Addressing::packed_paged});
  if (c.addressing == Addressing::packed_self) c.k_length = c.q_length;
  if (dice.chance(0.3)) c.key_lengths = cases::Lengths::mixed;
  if (is_paged(c) && c.key_lengths == cases::Lengths::none) c.key_lengths = cases::Lengths::full;
  c.page_size = dice.between(1, 9);
  c.index_type = dice.one_of({DType::i32, DType::i64});
}

void roll_options(Dice& dice, cases::Case& c) {
  using cases::Bias, cases::BlockMask, cases::Mask, cases::Offset;
  c.causal = dice.chance(0.4);
  if (dice.chance(0.2)) c.window_left = dice.between(0, 12);
  if (dice.chance(0.2)) c.window_right = dice.between(0, 12);
  if (dice.chance(0.2)) c.query_offset = dice.one_of({Offset::one, Offset::each});
  c.offset = dice.between(-5, 15);
  if (dice.chance(0.35))
    c.mask = dice.one_of({Mask::full, Mask::per_pair, Mask::per_key, Mask::query_key, Mask::key,
                          Mask::per_head, Mask::rows, Mask::short_full, Mask::short_key});
  c.mask_type = dice.one_of({DType::boolean, DType::u8, DType::i8, DType::i32, DType::i64});
  if (dice.chance(0.35))
    c.bias =
        dice.one_of({Bias::full, Bias::per_pair, Bias::per_key, Bias::head_query_key,
                     Bias::query_key, Bias::key, Bias::per_head, Bias::infinite, Bias::short_full});
  c.bias_f32 = c.type != DType::f64 && dice.chance(0.5);
  if (dice.chance(0.2))
    c.blocks = dice.one_of({BlockMask::full, BlockMask::shared, BlockMask::rows});
  c.block_q = dice.between(1, 8);
  c.block_k = dice.between(1, 8);
  if (dice.chance(0.3)) c.scale = 0.125 * static_cast<double>(dice.between(1, 9));
  if (dice.chance(0.3)) c.softcap = static_cast<double>(dice.between(1, 30));
  c.bias_before_softcap = dice.chance(0.3);
  c.alibi = dice.chance(0.25);
  c.sinks = dice.chance(0.25);
  if (dice.chance(0.25)) c.dropout = 0.25;
  c.dropout_origin = c.dropout > 0 && dice.chance(0.5);
  c.lse_f64 = dice.chance(0.5);
  if (dice.chance(0.6)) c.width = cases::Width::f64;  // shows bits that rounding would hide
  c.dlse = dice.chance(0.5);
  if (dice.chance(0.15)) c.key_offset = dice.between(1, 600);
}

std::vector<cases::Case> cases_of(int first_seed, int count, const Adapt& adapt) {
  if (const char* line = std::getenv("ATTEND_CASE")) return {cases::parse(line)};
  if (kSanitized) count = (count + 3) / 4;
  static std::map<int, std::uint64_t> rounds;  // a test that is repeated draws new cases
  const std::uint64_t first =
      static_cast<std::uint64_t>(first_seed) + rounds[first_seed]++ * 1000000;
  std::vector<cases::Case> list;
  for (int n = 0; n < count; ++n) {
    list.push_back(random_case(first + static_cast<std::uint64_t>(n)));
    adapt(list.back());
  }
  return list;
}

}  // namespace

cases::Case random_case(std::uint64_t seed) {
  Dice dice(seed);
  cases::Case c;
  c.seed = seed;
  roll_sizes(dice, c);
  roll_options(dice, c);
  return c;
}

void for_trials(const std::vector<KernelUnderTest>& kernels, int first_seed, int count,
                const Adapt& adapt, const TrialBody& body) {
  std::map<std::string, int> taken;
  for (const cases::Case& problem : cases_of(first_seed, count, adapt)) {
    const Trial trial = make_trial(problem);
    for (const KernelUnderTest& kernel : kernels) {
      SCOPED_TRACE("repeat with ATTEND_CASE=\"" + trial.line + "\", kernel " + kernel.name);
      std::optional<Written> results = trial.run(kernel);
      if (!results) continue;
      ++taken[kernel.name];
      body(trial, kernel, *results);
      if (testing::Test::HasFailure()) return;
    }
  }
  if (std::getenv("ATTEND_CASE") != nullptr) return;
  for (const KernelUnderTest& kernel : kernels)
    EXPECT_GT(taken[kernel.name], 0) << kernel.name << " declined every case";
}

}  // namespace attend::test
