#include "parts.h"

#include "judged.h"
#include "support/property_compare.h"

#include <algorithm>
#include <cmath>
#include <memory>

namespace attend::test {
namespace {

Context& forcing(const std::string& kernel) {
  static std::map<std::string, std::unique_ptr<Context>> contexts;
  auto& context = contexts[kernel];
  if (!context) {
    ContextOptions options;
    options.threads = 2;
    options.kernels = "forward:" + kernel;
    context = std::make_unique<Context>(options);
  }
  return *context;
}

std::string by_states(const Trial& trial, const std::vector<std::int64_t>& cuts,
                      const Written& whole, Context& context) {
  Tensor state(partial_state_shape(trial.q, trial.v), DType::f64);
  for (std::size_t n = 1; n < cuts.size(); ++n) {
    const Trial part = keys_of(trial, cuts[n - 1], cuts[n]);
    attention_partial(part.q, part.k, part.v, state, part.options(), context);
  }
  Written found = trial.empty_results(false);
  try {
    finish_partial({state}, found.out, found.lse, context);
  } catch (const Unsupported&) {  // a row of 16-bit tensors alone: states are of its sums' type
    finish_partial({state}, found.out, found.lse);
  }
  for (const auto member : {&Written::out, &Written::lse})  // but for the sign of a zero
    if (const auto same = close(whole.*member, found.*member, 0, 0); !same) return same.message();
  return "";
}

// ---- merge() -----------------------------------------------------------------------------------

constexpr double u = 0x1p-53, kMostError = 0x1p-8, kNothing = 64;  // e^-64 of a row is nothing

struct Parts {
  std::vector<Tensor> o, lse;
  std::vector<std::vector<double>> o_values, lse_values;  // the same
};

// One row of the parts: how many of them count, the largest |lse| of these, and the largest |o|, of
// the others by what is left of it: they may hold the only o that is not 0.
struct MergedRow {
  int count = 0;
  double lse = 0, o = 0;
};

// A part counts if its lse is at most `nothing` below the largest.
MergedRow row_of(const Parts& parts, std::size_t row, double nothing = kNothing) {
  double most = -INFINITY;
  for (const auto& lse : parts.lse_values) most = std::max(most, lse[row]);
  MergedRow found;
  for (std::size_t n = 0; n < parts.o.size() && std::isfinite(most); ++n) {
    const double lse = parts.lse_values[n][row], below = most - lse;
    const bool counts = below <= nothing;
    found.count += counts ? 1 : 0;
    if (counts) found.lse = std::max(found.lse, std::abs(lse));
    const double left = counts ? 1 : lse == -INFINITY ? 0 : (1 + below) * std::exp(-below);
    const auto dv = static_cast<std::size_t>(parts.o[n].size(3));
    for (std::size_t x = row * dv; x < (row + 1) * dv; ++x)
      found.o = std::max(found.o, left * std::abs(parts.o_values[n][x]));
  }
  return found;
}

double largest_of(const Tensor& tensor) {
  if (tensor.dtype() == DType::i8) return 128;
  double most = 0;
  for (const double x : widen(tensor)) most = std::max(most, std::abs(x));
  return most;
}

// Results that may differ by so much.
struct Compared {
  const char* name;
  std::vector<double> whole, merged;

  std::string difference(std::size_t n, double allowed) const {
    const double a = whole[n], b = merged[n];
    if (a == b || (std::isnan(a) && std::isnan(b)) || std::abs(a - b) <= allowed) return "";
    return std::string(name) + " " + std::to_string(n) + " of the whole is " + text_of(a) +
           ", merged " + text_of(b) + ", allowed error " + text_of(allowed);
  }
};

// What attention.h promises of merge(): off by 16 u (L + 32 + n) times the largest |o|, and its own
// rounding; or a refusal where u L is above 2^-8 and more than one part counts. `sums`: how much of
// the largest |v| the sums of the parts may differ by from those of the whole.
std::string by_merge(const Trial& trial, const std::vector<std::int64_t>& cuts,
                     const Written& whole, const KernelUnderTest& kernel, double sums) {
  Parts parts;
  for (std::size_t n = 1; n < cuts.size(); ++n) {
    Trial part = keys_of(trial, cuts[n - 1], cuts[n]);
    if (n > 1) part.sinks = {};
    part.out_type = part.lse_type = DType::f64;
    auto written = part.run(kernel);
    if (!written) return "takes the whole and declines a part";
    parts.o_values.push_back(widen(written->out));
    parts.lse_values.push_back(widen(written->lse));
    parts.o.push_back(std::move(written->out));
    parts.lse.push_back(std::move(written->lse));
  }
  const std::size_t rows = parts.lse_values[0].size();
  bool must_refuse = false, may_refuse = false;
  for (std::size_t row = 0; row < rows; ++row) {
    const MergedRow surely = row_of(parts, row);
    if (!(u * surely.lse > kMostError)) continue;
    must_refuse |= surely.count > 1;
    may_refuse |= row_of(parts, row, kNothing + 8 * u * surely.lse).count > 1;
  }
  Written merged = trial.empty_results(false);
  try {
    attend::merge({parts.o.begin(), parts.o.end()}, {parts.lse.begin(), parts.lse.end()},
                  merged.out, merged.lse);
  } catch (const InvalidArgument& error) {
    return may_refuse ? "" : error.what();
  }
  if (must_refuse) return "lse too large to compare the parts, and they are taken";

  const Compared out{"out", widen(whole.out), widen(merged.out)},
      lse{"lse", widen(whole.lse), widen(merged.lse)};
  const auto dv = static_cast<std::size_t>(trial.v.size(3));
  const double kept = trial.plain.dropout.p < 1 ? 1 / (1 - trial.plain.dropout.p) : 0;
  const double of_sums =
      sums * kept * largest_of(trial.v) * (trial.v_scales ? largest_of(trial.v_scales) : 1);
  for (std::size_t row = 0; row < rows; ++row) {
    const MergedRow of_parts = row_of(parts, row);
    const double compared = of_parts.count > 1 ? of_parts.lse : 0;
    const double error = 16 * u * (compared + 32 + static_cast<double>(parts.o.size()));
    const double of_out = (error + 2 * unit_roundoff(trial.out_type)) * of_parts.o + of_sums;
    std::string wrong =
        lse.difference(row, error + 4 * unit_roundoff(trial.lse_type) * (1 + of_parts.lse) + sums);
    for (std::size_t n = row * dv; n < (row + 1) * dv && wrong.empty(); ++n)
      wrong = out.difference(n, of_out);
    if (!wrong.empty()) return std::to_string(parts.o.size()) + " parts: " + wrong;
  }
  return "";
}

std::vector<std::int64_t> at_chunks(std::int64_t keys, Dice& dice) {
  std::vector<std::int64_t> cuts = {0};
  for (std::int64_t at = 256; at < keys; at += 256)
    if (dice.chance(0.7)) cuts.push_back(at);
  cuts.push_back(keys);
  return cuts;
}

// Parts of any size, many of 1 or 2 keys.
std::vector<std::int64_t> anywhere(std::int64_t keys, Dice& dice) {
  std::vector<std::int64_t> cuts = {0};
  while (cuts.back() < keys)
    cuts.push_back(
        std::min(keys, cuts.back() + dice.one_of({std::int64_t{1}, std::int64_t{2},
                                                  dice.between(1, keys), dice.between(1, keys)})));
  return cuts;
}

}  // namespace

std::vector<std::string> judge_parts(const Trial& trial, Dice& dice, Tally& tally) {
  std::vector<std::string> all;
  if (trial.cu_seqlens_q || trial.block_table || trial.k.size(2) == 0) return all;
  const std::vector<std::int64_t> chunks = at_chunks(trial.k.size(2), dice),
                                  any = anywhere(trial.k.size(2), dice);
  // Within a chunk, where the keys are cut changes the order of the call's own sums.
  const DType type = trial.q.dtype();
  const double of_vectors = 128 * (type == DType::f64 ? 0x1p-53 : 0x1p-24);
  for (const KernelInfo& info : tally.kernels("forward")) {
    if (info.only_if_forced) continue;
    const KernelUnderTest kernel{info.name, false, false};
    const auto whole = trial.run(kernel);
    if (!whole) continue;
    tally.ran("parts by " + info.name);
    // Matrix instructions take weights of the tensors' type, rounded beside the part's largest.
    const bool matrix = info.name.starts_with("cpu.amx") ||
                        info.name.starts_with("cpu.avx512_bf16") ||
                        info.name.starts_with("cpu.neon_bf16");
    const double sums = of_vectors + (matrix ? 4 * unit_roundoff(type) : 0);
    if (const auto wrong = by_states(trial, chunks, *whole, forcing(info.name)); !wrong.empty())
      all.push_back("partial states by " + info.name + ": " + wrong);
    if (const auto wrong = by_merge(trial, chunks, *whole, kernel, 0); !wrong.empty())
      all.push_back("merge by " + info.name + ": " + wrong);
    if (const auto wrong = by_merge(trial, any, *whole, kernel, sums); !wrong.empty())
      all.push_back("merge of any parts by " + info.name + ": " + wrong);
  }
  return all;
}

}  // namespace attend::test
