// Scores of 2^18 up to the largest number, of either sign: whole rows, single keys, ties, beside
// keys that are hidden; by bias, q . k, scale, ALiBi, sinks or softcap; every output and gradient
// of every kernel. And dropout of next to nothing and of everything.
//
// Weights of such scores are exact or nothing: equal scores share, a score that is less by a
// thousandth of 2^18 weighs 0. So the scores are made of powers of two, which no kernel may round,
// and the truth is asked with the errors of the sums alone, not with those of the scores. At 2^20,
// where the kernels begin to count in other units, chunks of a row also lie 0.5 to either side.
#include "judged.h"
#include "parts.h"
#include "support/property_compare.h"
#include "sweep.h"

#include "cases/arena.h"
#include "cases/oracle/statistics.h"
#include "core/softmax_state.h"

#include <cmath>

namespace attend::test {
namespace {

using cases::Case;

// ---- what is extreme ---------------------------------------------------------------------------

enum class Source { bias, product, scale, alibi, sinks, softcap, dropout };

struct Extreme {
  Source source = Source::bias;
  int exponent = 57;     // of the largest score
  bool largest = false;  // rather the largest finite number of the type
  bool edge = false;     // rather about kFar, by bias
  double sign = 1;
};

// Up to 2^126 (2^1022 of f64), the largest that is a power of two and has room for a factor.
Extreme draw_extreme(Dice& dice, DType type, std::int64_t keys) {
  Extreme e;
  e.source = dice.one_of({Source::bias, Source::bias, Source::product, Source::scale, Source::alibi,
                          Source::sinks, Source::softcap, Source::dropout});
  const std::int64_t most = type == DType::f64 ? 1022 : 126;
  e.exponent = static_cast<int>(dice.one_of(
      {dice.between(18, 23), dice.between(18, 57), dice.between(57, 126), dice.between(57, most)}));
  e.largest = dice.chance(0.2);
  e.sign = dice.chance(0.6) ? -1 : 1;
  e.edge = keys > kChunk && dice.chance(0.5);
  if (e.edge) e.source = Source::bias, e.exponent = 20, e.largest = false;
  return e;
}

// The level of a key in its row: the pattern belongs to the row.
double level_of(Dice& dice, std::int64_t pattern, std::int64_t j, std::int64_t special) {
  switch (pattern) {
    case 0: return 1;                     // the whole row
    case 1: return j == special ? 1 : 0;  // one key
    case 2: return j == special ? -1 : 0;
    case 3: return j == special ? -1 : 1;
    case 4: return dice.chance(0.5) ? 1 : 0.5;  // two levels
    case 5: return dice.one_of({1.0, 1.0, 0.5, -1.0, 0.0});
    case 6: return dice.chance(0.3) ? -INFINITY : 1;  // beside hidden ones
    case 7: return dice.chance(0.3) ? -INFINITY : dice.one_of({1.0, 0.5});
    default: return 0;  // a row like any other
  }
}

// Scores of about 1 beside one of 2^exponent vanish in the truth, too, if it is large enough.
bool vanish_at(int exponent, DType type) { return exponent >= (type == DType::f64 ? 125 : 62); }

// Each chunk at one level, or each key: near kFar, to either side of it.
void set_edge(Trial& trial, Dice& dice, double sign) {
  const Extents extents = extents_of(trial.arguments());
  trial.bias = Tensor({extents.batch, extents.heads, extents.queries, extents.keys},
                      trial.q.dtype() == DType::f64 ? DType::f64 : DType::f32);
  fill(trial.q, 0);
  bool by_chunk = true;
  double level = 0;
  cases::for_each_index(trial.bias.shape(), [&](const Shape& index) {
    if (index[3] == 0) by_chunk = dice.chance(0.7);
    if (!by_chunk || index[3] % kChunk == 0)
      level = sign * kFar + dice.one_of({-0.5, 0.0, 0.5, -0.5, 0.5, -30.0, 30.0});
    set_value(trial.bias, index, dice.chance(0.1) ? -INFINITY : level);
  });
}

void set_bias(Trial& trial, Dice& dice, const Extreme& e) {
  const Extents extents = extents_of(trial.arguments());
  const DType type = trial.q.dtype() == DType::f16 ? DType::f32 : trial.q.dtype();
  trial.bias = Tensor({extents.batch, extents.heads, extents.queries, extents.keys}, type);
  const double level = e.sign * (e.largest ? largest_finite(type) : std::ldexp(1, e.exponent));
  std::int64_t pattern = 0, special = 0;
  cases::for_each_index(trial.bias.shape(), [&](const Shape& index) {
    if (index[3] == 0) {
      pattern = dice.between(0, 8);
      special = dice.between(0, extents.keys - 1);
    }
    const double of_key = level_of(dice, pattern, index[3], special);
    set_value(trial.bias, index, of_key == -INFINITY ? of_key : of_key * level);
  });
  if (!e.largest && !vanish_at(e.exponent, trial.q.dtype())) fill(trial.q, 0);
}

// s = 2^exponent by one feature, and perhaps a scale that f32 has not.
void set_product(Trial& trial, Dice& dice, const Extreme& e) {
  const int most = trial.q.dtype() == DType::f16 ? 14 : 40;
  const int of_q = static_cast<int>(dice.between(-most, most)),
            of_k = static_cast<int>(dice.between(-most, std::min(most, e.exponent - of_q)));
  fill(trial.q, 0);
  fill(trial.k, 0);
  const auto first_feature = [&](Tensor& t, int exponent, std::initializer_list<double> factors) {
    Shape of_rows = t.shape();
    of_rows[3] = of_rows[3] > 0 ? 1 : 0;
    cases::for_each_index(of_rows, [&](const Shape& index) {
      set_value(t, index, std::ldexp(dice.one_of(factors), exponent));
    });
  };
  first_feature(trial.q, of_q, {1.0, 1.0, -1.0, 0.5, 0.0});
  if (dice.chance(0.3)) first_feature(trial.k, of_k, {1.0});
  else first_feature(trial.k, of_k, {1.0, 1.0, -1.0, 0.5, 0.0});
  trial.plain.scale = std::ldexp(e.sign, std::min(e.exponent - of_q - of_k, 900));
}

// Products that are whole numbers, and exact.
void set_whole(Trial& trial, Dice& dice) {
  for (Tensor* t : {&trial.q, &trial.k})
    cases::for_each_index(t->shape(), [&](const Shape& index) {
      set_value(*t, index, dice.one_of({-1.0, 0.0, 1.0}));
    });
}

void set_scale(Trial& trial, Dice& dice, const Extreme& e) {
  set_whole(trial, dice);
  trial.plain.scale = std::ldexp(e.sign, e.exponent - 10);
}

void set_per_head(Trial& trial, Tensor Trial::*tensor, Dice& dice, double level, bool all) {
  const DType type = trial.q.dtype() == DType::f64 ? DType::f64 : DType::f32;
  trial.*tensor = Tensor({trial.q.size(1)}, type);
  for (std::int64_t h = 0; h < trial.q.size(1); ++h)
    set_value(trial.*tensor, {h}, all ? level : level * dice.one_of({1.0, -1.0, 0.5, 0.0}));
}

Trial extreme_trial(const SweepCase& c) {
  Dice dice(c.variant, 181);
  Trial trial = make_trial(c.problem);
  const DType type = trial.q.dtype();
  Extreme e = draw_extreme(dice, type, extents_of(trial.arguments()).keys);
  const double level = e.sign * std::ldexp(1, e.exponent);
  switch (e.source) {
    case Source::bias:
      e.edge ? set_edge(trial, dice, e.sign) : set_bias(trial, dice, e);
      if (dice.chance(0.3)) set_per_head(trial, &Trial::sinks, dice, level, true);
      break;
    case Source::product: set_product(trial, dice, e); break;
    case Source::scale: set_scale(trial, dice, e); break;
    case Source::alibi:  // 2^11 keys away lies the level, and 1 beside a step must vanish, too
      if (!vanish_at(e.exponent - 18, type)) fill(trial.q, 0);
      set_per_head(trial, &Trial::alibi, dice, std::ldexp(e.sign, e.exponent - 11), false);
      break;
    case Source::sinks:
      set_per_head(
          trial, &Trial::sinks, dice,
          e.largest ? e.sign * largest_finite(type == DType::f64 ? type : DType::f32) : level,
          false);
      break;
    case Source::softcap:
      trial.plain.softcap = std::ldexp(
          1, dice.one_of({e.exponent, std::min(e.exponent + 20, 1023), -20, -e.exponent}));
      // 0 or far beyond the cap: between, 1 - tanh^2 has few digits left in f32.
      if (trial.plain.softcap < 1) set_whole(trial, dice);
      break;
    case Source::dropout: break;
  }
  if (e.source != Source::softcap && trial.plain.softcap != 0 && dice.chance(0.7))
    trial.plain.softcap = 0;
  if (e.source == Source::dropout || dice.chance(0.2))
    trial.plain.dropout.p = dice.one_of({0.0, 1.0 / 65536, 0.5, 65535.0 / 65536, 1.0, 1.0});
  return trial;
}

// ---- judging -----------------------------------------------------------------------------------

double smallest(DType type) {
  switch (type) {
    case DType::f16: return 0x1p-24;
    case DType::bf16: return 0x1p-133;
    case DType::f32: return 0x1p-149;
    default: return 0x1p-1074;
  }
}

// What is allowed, with u for the sums and as if every score were exact.
double allowed_error(const Element& x, double truth, const Bounds& bounds, double u, DType type) {
  const double u_out = unit_roundoff(x.of.tensor.dtype()), tiny_out = smallest(x.of.tensor.dtype());
  if (x.member == &Results<double>::lse)
    return 8 * std::max(u_out, unit_roundoff(type == DType::f64 ? type : DType::f32)) *
               std::abs(truth) +
           u;
  // Weights below the accumulator's smallest normal number are 0.
  const double least = std::max(smallest(type), type == DType::f64 ? 0x1p-1022 : 0x1p-126);
  return u * (bounds.stored.*x.member)[x.n] +
         4 * unit_roundoff(type) * (bounds.stored.*x.member)[x.n] +
         2 * least * (bounds.vanished.*x.member)[x.n] + u_out * std::abs(truth) + tiny_out;
}

std::vector<std::string> judge(const SweepCase& c, Tally& tally) {
  const Trial trial = extreme_trial(c);
  const DType type = trial.q.dtype();
  const Reader reader(trial.arguments());
  const Truth truth =
      type == DType::f64 ? split_truth<Float128>(reader) : split_truth<double>(reader);
  Bounds bounds = oracle::bounds(reader);
  for (std::size_t n = 0; n < bounds.stored.lse.size(); ++n)
    bounds.stored.lse[n] = 1 + std::abs(truth.first.lse[n]);
  double near = 64;  // gradients are made with lse, small weights by large powers: both are rounded
  for (const double lse : truth.first.lse)
    if (std::abs(lse) < kFar + 64) near = std::max(near, std::abs(lse) + 64);
  const Extents& e = reader.extents();
  const double terms = static_cast<double>(std::max({e.queries, e.keys, e.d, e.dv}));
  // Weights are powers of two, of products with log2(e) that are rounded; the smallest have the
  // largest, ln of the smallest number.
  const double power = type == DType::f64 ? 745 : 104;
  const double u_of_out =
      (power + 64 + 16 * std::sqrt(terms)) * (type == DType::f64 ? 0x1p-53 : 0x1p-24);
  const double u = u_of_out + 4 * near * 0x1p-53;
  const auto wrong = [&](const Element& x) -> std::string {
    const double exact = (truth.first.*x.member)[x.n];
    if (x.value == exact) return "";
    const double allowed =
        allowed_error(x, exact, bounds, x.member == &Results<double>::out ? u_of_out : u, type);
    const double error = std::abs(x.value - exact - (truth.second.*x.member)[x.n]);
    if (error <= allowed) return "";
    if (std::isinf(x.value) && std::abs(exact) + allowed > largest_finite(x.of.tensor.dtype()))
      return "";
    return "truth " + text_of(exact) + ", allowed error " + text_of(allowed);
  };
  const int threads = 1 + static_cast<int>(c.variant % 3);
  const Asked asked = asked_of(trial, c.variant);
  std::vector<std::string> all;
  for (const char* operation : {"forward", "backward"})
    for (const KernelInfo& kernel : tally.kernels(operation)) {
      if (kernel.only_if_forced) continue;  // the yardstick rounds its scores
      const auto written = written_by(kernel, asked, context_of(threads));
      if (!written) {
        tally.declined(kernel.name);
        continue;
      }
      tally.ran(kernel.name);
      for (const std::string& found : first_wrong(*written, wrong))
        all.push_back(std::string(operation) + " by " + kernel.name + ": " + found);
    }
  for (const KernelInfo& kernel : tally.kernels("inspect")) {
    const oracle::Inspection asked_for(reader);
    try {
      const Plan plan = Plan::inspect(trial.q, trial.k, asked.arguments.options, asked_for.options,
                                      {kernel.name}, context_of(threads));
      oracle::StatisticsExamination examination(reader, truth.first, bounds.stored, u);
      examination.examine(
          plan.run_inspect(trial.q, trial.k, asked.arguments.options, asked_for.options),
          asked_for.options);
      tally.ran(kernel.name);
      if (!examination.wrong().empty())
        all.push_back("inspect by " + kernel.name + ": " + examination.wrong());
    } catch (const Unsupported&) {
      tally.declined(kernel.name);
    }
  }
  Dice dice(c.variant, 185);
  for (std::string& found : judge_parts(trial, dice, tally)) all.push_back(std::move(found));
  return all;
}

SweepCase draw(std::uint64_t seed) {
  Case c = random_problem(seed);
  c.values = cases::Values::gaussian;
  c.layout = cases::Layout::contiguous;
  Dice dice(seed, 186);
  if (dice.chance(0.15)) {  // several chunks
    c.addressing = cases::Addressing::dense;
    c.batch = 1, c.heads = c.kv_heads = 1;
    c.q_length = dice.between(1, 8), c.k_length = dice.between(257, 900);
    c.d = dice.between(1, 9), c.dv = dice.between(1, 9);
    c.mask = cases::Mask::none;
  }
  if (c.alibi) c.alibi = false;  // one source alone, so that sums of scores are exact
  c.sinks = false;
  c.scale = std::nullopt;
  c.bias = cases::Bias::none;
  c.k_type = c.v_type = std::nullopt;  // the level of scores is that of q and k
  c.k_scales = c.v_scales = false;
  return {c, seed};
}

}  // namespace
}  // namespace attend::test

int main(int argc, char** argv) {
  return attend::test::sweep_main(argc, argv,
                                  {"sweep_extremes", attend::test::draw, attend::test::judge});
}
