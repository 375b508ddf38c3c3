#include "parts.h"

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
  finish_partial({state}, found.out, found.lse, context);
  const auto same = same_bits(whole, found);
  return same ? "" : same.message();
}

// The largest finite magnitude of some tensors.
double largest_of(const std::vector<Tensor>& tensors) {
  double most = 0;
  for (const Tensor& tensor : tensors)
    for (const double x : widen(tensor))
      if (std::isfinite(x)) most = std::max(most, std::abs(x));
  return most;
}

// What attention.h promises of merge(): 16 u (L + 32 + n) times the largest |o|, or a refusal where
// u L is above 2^-8.
std::string by_merge(const Trial& trial, const std::vector<std::int64_t>& cuts,
                     const Written& whole, const KernelUnderTest& kernel) {
  std::vector<Tensor> o, lse;
  for (std::size_t n = 1; n < cuts.size(); ++n) {
    Trial part = keys_of(trial, cuts[n - 1], cuts[n]);
    if (n > 1) part.sinks = {};
    part.out_type = part.lse_type = DType::f64;
    auto written = part.run(kernel);
    if (!written) return "takes the whole and declines a part";
    o.push_back(std::move(written->out));
    lse.push_back(std::move(written->lse));
  }
  constexpr double u = 0x1p-53;
  const double farthest = largest_of(lse), parts = static_cast<double>(o.size());
  Written found = trial.empty_results(false);
  try {
    attend::merge({o.begin(), o.end()}, {lse.begin(), lse.end()}, found.out, found.lse);
  } catch (const InvalidArgument& error) {
    return u * farthest > 0x1p-8 ? "" : error.what();
  }
  const double error = 16 * u * (farthest + 32 + parts);
  const double of_type = 2 * unit_roundoff(trial.out_type);
  if (const auto near = close(whole.out, found.out, error + of_type, largest_of(o)); !near)
    return near.message();
  const auto near = close(whole.lse, found.lse, 4 * unit_roundoff(trial.lse_type) + error, 1);
  return near ? "" : std::string("lse: ") + near.message();
}

}  // namespace

std::vector<std::string> judge_parts(const Trial& trial, Dice& dice, Tally& tally) {
  std::vector<std::string> all;
  if (trial.cu_seqlens_q || trial.block_table || trial.k.size(2) == 0) return all;
  std::vector<std::int64_t> cuts = {0};
  for (std::int64_t at = 256; at < trial.k.size(2); at += 256)
    if (dice.chance(0.7)) cuts.push_back(at);
  cuts.push_back(trial.k.size(2));
  for (const KernelInfo& info : tally.kernels("forward")) {
    if (info.only_if_forced) continue;
    const KernelUnderTest kernel{info.name, false, false};
    const auto whole = trial.run(kernel);
    if (!whole) continue;
    tally.ran("parts by " + info.name);
    if (const auto wrong = by_states(trial, cuts, *whole, forcing(info.name)); !wrong.empty())
      all.push_back("partial states by " + info.name + ": " + wrong);
    if (const auto wrong = by_merge(trial, cuts, *whole, kernel); !wrong.empty())
      all.push_back("merge by " + info.name + ": " + wrong);
  }
  return all;
}

}  // namespace attend::test
