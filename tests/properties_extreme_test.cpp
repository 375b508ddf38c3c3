// Properties at the ends of the numbers. P24: scores of 1e17 to the type's largest, a whole row of
// them or single ones, of either sign, from the bias, the product, ALiBi, a softcap or a sink:
// every output is that of the scores less their maximum. P25: dropout of nothing and of everything.
#include "support/property_shown.h"
#include "support/property_truth.h"

#include "cases/arena.h"
#include "cases/random.h"

#include <cfloat>
#include <cmath>

namespace attend::test {
namespace {

using cases::Case;

double largest_of(const std::vector<double>& list) {
  double most = 0;
  for (const double x : list) most = std::max(most, std::abs(x));
  return most;
}

// ---- P24 ---------------------------------------------------------------------------------------

// Where the large scores come from. All of them are exact in every kernel's arithmetic: powers of
// two times a small number, or numbers of the bias's type.
enum class Source { bias, product, alibi, softcap, sink };
constexpr Source kSources[] = {Source::bias, Source::product, Source::alibi, Source::softcap,
                               Source::sink};

// How they lie in a row.
enum class Pattern { whole_row, single_key, mixed, neighbours };
constexpr Pattern kPatterns[] = {Pattern::whole_row, Pattern::single_key, Pattern::mixed,
                                 Pattern::neighbours};

struct Extreme {
  Source source;
  Pattern pattern;
  double level;  // a power of two, or the type's largest
  double sign;
  cases::Random random;

  bool chance(double p, std::int64_t n) const {
    return random.chance(p, static_cast<std::uint64_t>(n));
  }
  // The score of key j; `next`: of numbers of this type the n-th towards 0.
  double score(std::int64_t j, DType type) const {
    switch (pattern) {
      case Pattern::whole_row: return sign * level;
      case Pattern::single_key: return j == 3 ? sign * level : 0;
      case Pattern::mixed:
        return chance(0.3, j)
                   ? 0
                   : (chance(0.5, 1000 + j) ? 1 : -1) * level * static_cast<double>(1 + j % 3) / 4;
      default: {  // a few units of the last place apart
        const double unit = level * (2 * unit_roundoff(type));
        return sign * (level - unit * static_cast<double>(random.below(4, 2000 + j)));
      }
    }
  }
};

// Powers of two from 1e17 to about the largest of the numbers that scores are held in, and one
// where the numbers next to it differ by 1/4.
double level_of(DType accumulator, std::uint64_t n) {
  constexpr double kLevels[] = {0x1p21, 0x1p57, 0x1p64, 0x1p100, 0x1p126};
  constexpr double kWide[] = {0x1p50, 0x1p57, 0x1p64, 0x1p500, 0x1p1022};
  return accumulator == DType::f64 ? kWide[n % 5] : kLevels[n % 5];
}

DType accumulator_of(const Trial& trial) {
  return trial.q.dtype() == DType::f64 ? DType::f64 : DType::f32;
}

void apply_bias(Trial& trial, const Extreme& extreme) {
  const bool own = extreme.pattern == Pattern::neighbours || extreme.chance(0.5, 1);
  const DType type = own ? accumulator_of(trial) : trial.q.dtype();
  trial.bias = Tensor({1, 1, trial.q.size(2), trial.k.size(2)}, type);
  Extreme of_type = extreme;
  if (type == DType::f16) of_type.level = 0x1p15;
  else if (extreme.chance(0.3, 2) && extreme.pattern != Pattern::mixed)  // the largest there is
    of_type.level = type == DType::f64 ? DBL_MAX : type == DType::f32 ? FLT_MAX : 0x1.fep127;
  cases::for_each_index(trial.bias.shape(), [&](const Shape& at) {
    set_value(trial.bias, at, of_type.score(at[3], type));
  });
}

// q = 2^a in one feature and k = score / 2^a, so that neither is larger than need be.
void apply_product(Trial& trial, const Extreme& extreme) {
  const DType type = trial.q.dtype();
  Extreme of_type = extreme;
  if (type == DType::f16) of_type.level = 0x1p20;
  const double of_q = std::exp2(std::ceil(std::log2(of_type.level) / 2));
  for (std::int64_t h = 0; h < trial.q.size(1); ++h)
    for (std::int64_t i = 0; i < trial.q.size(2); ++i) set_value(trial.q, {0, h, i, 1}, of_q);
  for (std::int64_t h = 0; h < trial.k.size(1); ++h)
    for (std::int64_t j = 0; j < trial.k.size(2); ++j)
      set_value(trial.k, {0, h, j, 1}, of_type.score(j, type) / of_q);
}

Trial make_extreme(const Extreme& extreme, const Case& problem) {
  Trial trial = make_trial(problem);
  trial.line += " source " + std::to_string(static_cast<int>(extreme.source)) + " pattern " +
                std::to_string(static_cast<int>(extreme.pattern)) + " level " +
                std::to_string(std::log2(extreme.level)) + " sign " + std::to_string(extreme.sign);
  trial.plain.scale = 1;
  fill(trial.q, 0);
  const DType sum = accumulator_of(trial);
  const std::int64_t heads = trial.q.size(1);
  switch (extreme.source) {
    case Source::bias: apply_bias(trial, extreme); break;
    case Source::product: apply_product(trial, extreme); break;
    case Source::alibi:
      trial.alibi = Tensor({heads}, sum);
      for (std::int64_t h = 0; h < heads; ++h)
        set_value(trial.alibi, {h}, extreme.sign * extreme.level / 1024 * static_cast<double>(h));
      break;
    case Source::softcap:
      apply_product(trial, extreme);  // 0, or so far beyond the cap that tanh is 1
      trial.plain.softcap = std::exp2(std::log2(largest_of(widen(trial.q))) * 2 - 12);
      break;
    case Source::sink: break;
  }
  if (extreme.source == Source::sink || extreme.chance(0.3, 3)) {
    trial.sinks = Tensor({heads}, sum);
    for (std::int64_t h = 0; h < heads; ++h)
      set_value(trial.sinks, {h}, extreme.chance(0.5, 10 + h) ? extreme.sign * extreme.level : 0);
  }
  return trial;
}

// Whether a case is one for a GPU's matrix units, too (support/property_cases.cpp).
bool for_matrix_units(std::uint64_t seed) { return on_gpu() && seed % 8 >= 4; }

Case extreme_case(std::uint64_t seed) {
  const cases::Random random(seed, 24);
  Case c{.batch = 1, .heads = 4, .kv_heads = 2, .q_length = 5, .k_length = 9, .d = 3, .dv = 5};
  if (for_matrix_units(seed)) c.d = c.dv = 8;
  c.seed = seed;
  c.type = cases::kTypes[seed % 4];
  c.k_length = random.below(4, 0) == 0 ? 300 + random.below(300, 1) : 1 + random.below(40, 1);
  c.q_length = 1 + random.below(7, 2);
  c.causal = random.chance(0.4, 3);
  if (random.chance(0.3, 4)) c.mask = cases::Mask::full;
  if (random.chance(0.3, 5)) c.dropout = 0.5;
  c.dlse = random.chance(0.5, 6);
  c.width = cases::Width::f64;
  c.lse_f64 = true;
  return c;
}

// Each number by itself: |a - b| <= error * max(|a|, scale).
testing::AssertionResult each_close(const std::vector<double>& truth,
                                    const std::vector<double>& found, double error,
                                    double scale = 1) {
  if (truth.size() != found.size()) return testing::AssertionFailure() << "sizes differ";
  for (std::size_t n = 0; n < truth.size(); ++n) {
    const double off = std::abs(truth[n] - found[n]);
    if (truth[n] == found[n] || off <= error * std::max(std::abs(truth[n]), scale)) continue;
    return testing::AssertionFailure()
           << "element " << n << " is " << found[n] << ", should be " << truth[n];
  }
  return testing::AssertionSuccess();
}

constexpr double kError[] = {1e-13, 2e-6};  // f64; f32 sums of all other types
double error_of(const Trial& trial) { return kError[trial.q.dtype() == DType::f64 ? 0 : 1]; }

void expect_truth(const Trial& trial, const Written& written, const Results<double>& truth,
                  const KernelUnderTest& kernel) {
  // Matrix units multiply weights that are rounded to the type, too.
  const double roundings = kernel.takes_few_options() ? 6 : 2;
  const double rounded = error_of(trial) + roundings * unit_roundoff(trial.q.dtype());
  EXPECT_TRUE(each_close(truth.out, widen(written.out), rounded)) << "out";
  EXPECT_TRUE(each_close(truth.lse, widen(written.lse), error_of(trial))) << "lse";
  // What a rounding of ds is multiplied by.
  const double of_q = largest_of(widen(trial.q)), of_k = largest_of(widen(trial.k));
  const std::tuple<const char*, const Tensor&, const std::vector<double>&, double> gradients[] = {
      {"dq", written.dq, truth.dq, of_k},
      {"dk", written.dk, truth.dk, of_q},
      {"dv", written.dv, truth.dv, 1},
      {"dbias", written.dbias, truth.dbias, 1},
      {"dsinks", written.dsinks, truth.dsinks, 1},
      {"dalibi", written.dalibi, truth.dalibi, 600}};
  for (const auto& [name, found, wanted, factor] : gradients) {
    if (!found) continue;
    const double scale = std::max({1.0, factor, largest_of(wanted)});
    EXPECT_TRUE(each_close(wanted, widen(found), 8 * rounded, scale)) << name;
  }
}

// Weights, scores of each stage, a window of weights and the statistics.
void expect_shown_truth(const Trial& trial, const Results<double>& truth) {
  const double error = error_of(trial);
  for (const KernelUnderTest& kernel : forward_kernels()) {
    if (kernel.yardstick) continue;
    SCOPED_TRACE(kernel.name);
    for (const ScoreStage stage : {ScoreStage::raw, ScoreStage::softcapped, ScoreStage::masked}) {
      const auto shown = show(trial, kernel, stage);
      if (!shown) continue;
      EXPECT_TRUE(each_close(truth.weights, widen(shown->weights), error)) << "weights";
      const std::vector<double>& scores = stage == ScoreStage::raw          ? truth.raw
                                          : stage == ScoreStage::softcapped ? truth.softcapped
                                                                            : truth.masked;
      EXPECT_TRUE(each_close(scores, widen(shown->scores), error)) << "scores";
    }
  }
  for (const std::string& kernel : inspect_kernels()) {
    SCOPED_TRACE(kernel);
    const auto found = statistics_of(trial, kernel);
    if (!found) continue;
    const StatisticsOfWeights wanted(trial, truth);
    EXPECT_TRUE(each_close(truth.lse, widen(found->lse), error + 1e-7)) << "lse";
    EXPECT_TRUE(each_close(wanted.maximum, widen(found->maximum), error)) << "maximum";
    EXPECT_TRUE(each_close(wanted.entropy, widen(found->entropy), 8 * error)) << "entropy";
    EXPECT_TRUE(each_close(wanted.mass, widen(found->key_mass), 8 * error)) << "mass";
    EXPECT_TRUE(each_close(wanted.tiles, widen(found->tile_mean), error)) << "map";
    EXPECT_TRUE(each_close(wanted.tiles, widen(found->tile_maximum), error)) << "largest of map";
    EXPECT_TRUE(each_close(wanted.sorted, widen(found->top_weights), error)) << "top weights";
  }
  EXPECT_TRUE(each_close(truth.weights, windows_of(trial), error + 1e-3)) << "window";
}

TEST(Properties, p24_extreme_scores_weigh_as_their_differences_do) {
  for (std::uint64_t seed = 24000; seed < 24400; ++seed) {
    const cases::Random random(seed, 1);
    const DType sum = cases::kTypes[seed % 4] == DType::f64 ? DType::f64 : DType::f32;
    Extreme extreme{kSources[random.below(5, 0)], kPatterns[random.below(4, 1)],
                    level_of(sum, random.bits(2)), random.chance(0.5, 3) ? 1.0 : -1.0,
                    cases::Random(seed, 2)};
    if (for_matrix_units(seed)) extreme.source = Source::product;
    Trial trial = make_extreme(extreme, extreme_case(seed));
    if (for_matrix_units(seed)) {
      trial.sinks = trial.mask = {};
      trial.plain.dropout = {};
      trial.out_type = trial.q.dtype();
    }
    const Results<double> truth = oracle::truth<double>(Reader(trial.arguments()));
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + trial.line);
    for (const KernelUnderTest& kernel : on_gpu() ? every_kernel() : all_kernels()) {
      if (kernel.yardstick) continue;  // stores scores and weights in the tensors' type
      SCOPED_TRACE(kernel.name);
      if (const auto written = trial.run(kernel)) expect_truth(trial, *written, truth, kernel);
    }
    expect_shown_truth(trial, truth);
    if (HasFailure()) return;
  }
}

// Scores that are exact in f64, in chunks of their own level, from 0 to where sums count otherwise:
// what is joined is as exact as in one chunk. (Gradients are made from lse, which is rounded.)
TEST(Properties, p24_sums_of_exact_scores_lose_no_digit_between_chunks) {
  for (const double level : {0.0, 100.0, 1000.0, 0x1p20 - 0.5, 1e6, 1e9})
    for (const double sign : {1.0, -1.0}) {
      Trial trial =
          make_trial({.type = DType::f64, .heads = 2, .q_length = 3, .k_length = 700, .dv = 5});
      const cases::Random random(24, 3);
      fill(trial.q, 0);
      trial.bias = Tensor({1, 1, 1, 700}, DType::f64);
      for (std::int64_t j = 0; j < 700; ++j)
        set_value(trial.bias, {0, 0, 0, j},
                  sign * level + 0x1p-20 * static_cast<double>(random.below(1 << 20, j)));
      const Results<Float128> truth = oracle::truth<Float128>(Reader(trial.arguments()));
      std::vector<double> out, weights;
      for (const Float128& x : truth.out) out.push_back(static_cast<double>(x));
      for (const Float128& x : truth.weights) weights.push_back(static_cast<double>(x));
      SCOPED_TRACE("level " + std::to_string(sign * level));
      for (const KernelUnderTest& kernel : forward_kernels()) {
        SCOPED_TRACE(kernel.name);
        const auto written = trial.run(kernel);
        if (!written) continue;
        EXPECT_TRUE(each_close(out, widen(written->out), 0x1p-51)) << "out";
        const auto shown = show(trial, kernel, ScoreStage::masked);
        if (shown && !kernel.yardstick) {
          EXPECT_TRUE(each_close(weights, widen(shown->weights), 0x1p-49, 0)) << "weights";
        }
      }
    }
}

// The largest and the lowest number as every score of a row: lse is that number.
TEST(Properties, p24_lse_of_the_largest_numbers) {
  for (const DType type : cases::kTypes)
    for (const double sign : {1.0, -1.0}) {
      Trial trial = make_trial({.type = type, .q_length = 2, .k_length = 300, .lse_f64 = true});
      fill(trial.q, 0);
      trial.bias = Tensor({1, 1, 1, 1}, accumulator_of(trial));
      const double level = sign * (type == DType::f64 ? DBL_MAX : FLT_MAX);
      fill(trial.bias, level);
      for (const KernelUnderTest& kernel : forward_kernels(type)) {
        if (kernel.yardstick) continue;  // rounds the score to the tensors' type
        const auto written = trial.run(kernel);
        if (!written) continue;
        for (const double lse : widen(written->lse))
          EXPECT_EQ(lse, level) << kernel.name << " " << name_of(type);
      }
    }
}

// Factors that f32 does not have, or whose inverse or product with q it does not have.
TEST(Properties, p24_any_scale_and_softcap_that_is_accepted_gives_the_truth) {
  struct Factors {
    double scale, softcap, q, k;
  };
  constexpr double kTiny = 0x1p-126;
  for (const DType type : cases::kTypes)
    for (const Factors& f : {Factors{1, 1e39, 1, 1}, Factors{1, 1e-40, 1, 1},
                             Factors{1e39, 0, 0, 1}, Factors{1e-40, 0, 1, 1},
                             Factors{0x1p70, 0, 0x1p60, kTiny}, Factors{0x1p70, 3, 0x1p60, kTiny},
                             Factors{-0x1p127, 0, 8, kTiny}, Factors{1e39, 1, 1, 1e-38}}) {
      if (type == DType::f16 && f.k < 1) continue;
      Trial trial = make_trial({.type = type, .q_length = 3, .k_length = 9, .dv = 5});
      trial.plain.scale = f.scale;
      trial.plain.softcap = f.softcap;
      const auto multiply = [&](Tensor& tensor, double factor) {
        cases::for_each_index(tensor.shape(), [&](const Shape& index) {
          const double x = factor * value_at(tensor, index);
          const bool is_zero =
              type == DType::bf16 && std::abs(x) < kTiny;  // to matrix instructions
          set_value(tensor, index, is_zero ? 0 : x);
        });
      };
      multiply(trial.q, f.q);
      multiply(trial.k, f.k);
      const Results<double> truth = oracle::truth<double>(Reader(trial.arguments()));
      const double error =
          8 * unit_roundoff(type) + (type == DType::f64 ? 1e-12 : 1e-5) * largest_of(truth.out);
      const auto written = [&](const KernelUnderTest& kernel) {
        SCOPED_TRACE(kernel.name + " " + std::string(name_of(type)) + " scale " +
                     std::to_string(f.scale) + ", softcap " + std::to_string(f.softcap));
        if (const auto found = trial.run(kernel)) {
          EXPECT_TRUE(each_close(truth.out, widen(found->out), error));
        }
      };
      written({});  // what the planner chooses
      for (const KernelUnderTest& kernel : forward_kernels(type))
        if (!kernel.yardstick) written(kernel);
    }
}

// ---- P25 ---------------------------------------------------------------------------------------

TEST(Properties, p25_dropout_of_everything_leaves_exactly_nothing) {
  const auto adapt = [](Case& c) {
    c.dropout = 1;
    c.dlse = false;
    if (c.seed % 2 == 0) c.scale = 60;  // weights that vanish
  };
  for_trials(every_kernel(), 25000, 150, adapt,
             [](const Trial&, const KernelUnderTest& kernel, Written& written) {
               EXPECT_TRUE(all_zero(written.out));
               if (!kernel.backward) return;
               if (kernel.yardstick) written.dbias = written.dsinks = written.dalibi = {};
               for (const auto member : {&Written::dq, &Written::dk, &Written::dv, &Written::dbias,
                                         &Written::dsinks, &Written::dalibi})
                 if (written.*member) {
                   EXPECT_TRUE(all_zero(written.*member));
                 }
             });
}

TEST(Properties, p25_dropout_of_nothing_changes_no_bit) {
  const auto adapt = [](Case& c) { c.dropout = 0; };
  for_trials(every_kernel(), 25500, 60, adapt,
             [](const Trial& trial, const KernelUnderTest& kernel, Written& without) {
               Trial seeded = trial;
               seeded.plain.dropout.p = 0;
               seeded.plain.dropout.seed = 7;
               const auto written = seeded.run(kernel);
               ASSERT_TRUE(written);
               EXPECT_TRUE(same_bits(without, *written));
             });
}

}  // namespace
}  // namespace attend::test
