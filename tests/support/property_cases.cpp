// Random cases for the properties: small enough that a plain kernel takes milliseconds, and rich
// enough that every option meets every other one sooner or later.
#include "dice.h"
#include "property_trial.h"
#include "sanitized.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>

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

// Decode as it mostly is: few queries, heads of whole tiles of a matrix instruction, and nothing
// added to a score. Kernels have ways of their own for it (cpu/matrix_few_rows.h).
void roll_decode(Dice& dice, cases::Case& c) {
  c.d = 32 * dice.between(1, 5);
  c.dv = 32 * dice.between(1, 3);
  c.q_length = dice.between(1, 3);
  if (c.addressing == cases::Addressing::packed_self) c.k_length = c.q_length;
  c.page_size = dice.one_of({c.page_size, std::int64_t{32}, std::int64_t{64}});
  c.mask = cases::Mask::none;
  c.bias = cases::Bias::none;
  c.blocks = cases::BlockMask::none;
  c.softcap = c.dropout = 0;
  c.alibi = c.dropout_origin = false;
}

// What the matrix units of a GPU take: 16 bits, rows of whole 16 bytes, and nothing added to a
// score; more than a tile, and decode over some tiles.
void roll_matrix(Dice& dice, cases::Case& c) {
  c.type = dice.one_of({DType::bf16, DType::f16});
  c.batch = dice.between(1, 2);
  c.heads = c.kv_heads * dice.between(1, 2);
  c.d = c.dv = 8 * dice.between(1, 8);
  if (dice.chance(0.2)) c.d = c.dv = 8 * dice.between(9, 32);
  if (dice.chance(0.3)) c.dv = 8 * dice.between(1, 8);
  c.q_length = dice.chance(0.1) ? dice.between(180, 220) : dice.between(1, 100);
  c.k_length = dice.between(1, 150);
  if (dice.chance(0.15)) {
    c.q_length = 1;
    c.k_length = dice.between(250, 700);
  }
  if (c.addressing == cases::Addressing::paged) c.addressing = cases::Addressing::dense;
  if (c.addressing == cases::Addressing::packed_paged) c.addressing = cases::Addressing::packed;
  if (c.addressing == cases::Addressing::packed_self) c.k_length = c.q_length;
  c.mask = cases::Mask::none;
  c.bias = cases::Bias::none;
  c.blocks = cases::BlockMask::none;
  c.softcap = c.dropout = 0;
  c.alibi = c.sinks = c.dropout_origin = c.bias_f32 = false;
  c.width = cases::Width::same;
  if (dice.chance(0.5)) c.dlse = c.lse_f64 = false;  // what a backward kernel takes
  if (c.window_left != kUnlimited) c.window_left *= 5;
}

// The cases of a test, drawn one after the other.
class Draw {
 public:
  Draw(int first_seed, const Adapt& adapt) : adapt_(adapt) {
    static std::map<int, std::uint64_t> rounds;  // a test that is repeated draws new cases
    next_ = static_cast<std::uint64_t>(first_seed) + rounds[first_seed]++ * 1000000;
  }
  cases::Case operator()() {
    if (const char* line = std::getenv("ATTEND_CASE")) return cases::parse(line);
    cases::Case drawn = random_case(next_++);
    adapt_(drawn);
    return drawn;
  }

 private:
  const Adapt& adapt_;
  std::uint64_t next_;
};

}  // namespace

cases::Case random_case(std::uint64_t seed) {
  Dice dice(seed);
  cases::Case c;
  c.seed = seed;
  roll_sizes(dice, c);
  roll_options(dice, c);
  if (dice.chance(0.2)) roll_decode(dice, c);
  if (on_gpu() && seed % 2 == 1) roll_matrix(dice, c);
  return c;
}

void for_trials(const std::vector<KernelUnderTest>& kernels, int first_seed, int count,
                const Adapt& adapt, const TrialBody& body) {
  constexpr int kMost = 200;
  const bool one = std::getenv("ATTEND_CASE") != nullptr;
  if (kSanitized) count = (count + 3) / 4;
  std::set<std::string> waiting;  // kernels that have declined every case; for them it goes on
  for (const KernelUnderTest& kernel : kernels) waiting.insert(kernel.name);
  std::map<std::string, int> taken;
  Draw draw(first_seed, adapt);
  for (int n = 0; n < (one ? 1 : kMost) && (n < count || !waiting.empty()); ++n) {
    const Trial trial = make_trial(draw());
    for (const KernelUnderTest& kernel : kernels) {
      if (n >= count && !waiting.contains(kernel.name)) continue;
      SCOPED_TRACE("repeat with ATTEND_CASE=\"" + trial.line + "\", kernel " + kernel.name);
      std::optional<Written> results = trial.run(kernel);
      if (!results) continue;
      waiting.erase(kernel.name);
      ++taken[kernel.name];
      body(trial, kernel, *results);
      if (testing::Test::HasFailure()) return;
    }
  }
  if (one) return;
  for (const auto& [name, number] : taken)
    if (on_gpu()) std::printf("  %s took %d cases\n", name.c_str(), number);
  for (const KernelUnderTest& kernel : kernels)  // some properties are of options that it lacks
    if (waiting.contains(kernel.name) && !kernel.takes_few_options())
      ADD_FAILURE() << kernel.name << " declined every case";
}

}  // namespace attend::test
