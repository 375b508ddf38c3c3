// Random problems on every kernel: forward, backward, statistics, windows of weights and merged
// parts against the truth of the oracle, in any layout and with any number of threads; and bit for
// bit what the contract says is the same: threads, layouts, a row alone, a row without the keys
// that come after those it sees.
#include "parts.h"
#include "support/property_compare.h"
#include "sweep.h"
#include "written.h"

#include "cases/instance.h"

#include <algorithm>

namespace attend::test {
namespace {

using cases::Case;

std::string by(const std::string& what, const KernelInfo& kernel, const std::string& found) {
  return what + " by " + kernel.name + ": " + found;
}

// ---- the truth ---------------------------------------------------------------------------------

std::vector<std::string> against_the_truth(const Case& problem, int threads, std::uint64_t variant,
                                           Tally& tally) {
  oracle::Examination examination(problem, {.truth_of_f64 = split_truth<Float128>,
                                            .program = "conformance_test",
                                            .context = &context_of(threads)});
  std::vector<std::string> all;
  const auto judge = [&](const std::string& what, const oracle::Outcome& outcome) {
    outcome.declined ? tally.declined(what) : tally.ran(what);
    if (!outcome.declined && !outcome.message.empty()) all.push_back(outcome.message);
  };
  for (const KernelInfo& kernel : tally.kernels("forward"))
    judge(kernel.name, examination.forward(kernel.name));
  for (const KernelInfo& kernel : tally.kernels("backward"))
    judge(kernel.name, examination.backward(kernel.name));
  for (const KernelInfo& kernel : tally.kernels("inspect"))
    judge(kernel.name, examination.inspect(kernel.name));
  for (const KernelInfo& kernel : tally.kernels("weights"))
    judge(kernel.name, examination.window(variant, kernel.name));
  return all;
}

// ---- the same bits -----------------------------------------------------------------------------

// The case as it lies in memory, the same values contiguous, and several threads.
std::string layouts_and_threads(const SweepCase& c, const Trial& trial, int threads, Tally& tally) {
  const cases::Instance laid_out = cases::make(c.problem);
  const Asked plain = asked_of(trial, c.variant);
  const Asked strided{
      {laid_out.q, laid_out.k, laid_out.v, laid_out.dout, laid_out.dlse, laid_out.options},
      trial.out_type,
      trial.lse_type,
      plain.stage};
  for (const char* operation : {"forward", "backward", "inspect"})
    for (const KernelInfo& kernel : tally.kernels(operation)) {
      const auto expected = written_by(kernel, plain, context_of(1));
      if (!expected) continue;
      tally.ran(kernel.name);
      const auto with_threads = written_by(kernel, plain, context_of(threads));
      if (!with_threads) return by("threads", kernel, "declined with more threads");
      if (const auto found = difference_of(*expected, *with_threads); !found.empty())
        return by("threads", kernel, std::to_string(threads) + " threads: " + found);
      const auto in_place = written_by(kernel, strided, context_of(threads));
      if (!in_place) return by("layout", kernel, "declined in another layout");
      if (const auto found = difference_of(*expected, *in_place); !found.empty())
        return by("layout", kernel, found);
    }
  return "";
}

// One row of one batch element: alone, and without the keys behind the last that it sees.
std::string row_alone(const Trial& trial, Dice& dice, Tally& tally) {
  const Extents extents = extents_of(trial.arguments());
  if (extents.batch == 0 || extents.heads == 0) return "";
  const std::int64_t b = dice.between(0, extents.batch - 1), h = dice.between(0, extents.heads - 1);
  const SequenceRows rows = rows_of(trial.arguments(), b);
  if (rows.queries.empty()) return "";
  const auto queries = static_cast<std::int64_t>(rows.queries.size());
  const std::int64_t i = dice.between(0, queries - 1), end = dice.between(i + 1, queries);
  const Trial element = element_of(trial, b);
  const Trial alone = queries_of(head_of(element, h), i, end);
  std::int64_t last = 0;
  const Reader reader(alone.arguments());
  const SequenceRows of_alone = rows_of(alone.arguments(), 0);
  for (std::int64_t n = 0; n < end - i; ++n)
    for (std::int64_t j = last; j < static_cast<std::int64_t>(of_alone.keys.size()); ++j)
      if (reader.pair_visible(of_alone, 0, 0, n, j)) last = std::max(last, j + 1);
  Trial decoded = keys_up_to(alone, last);
  decoded.key_lengths = {};
  for (const KernelInfo& info : tally.kernels("forward")) {
    const KernelUnderTest kernel{info.name, false, info.only_if_forced};
    const auto whole = trial.run(kernel);
    if (!whole) continue;
    tally.ran(info.name);
    const auto row = [&](const Tensor& t) { return take(gather_rows(t, rows.queries), 1, {h}); };
    for (const Trial* part : {&alone, static_cast<const Trial*>(&decoded)}) {
      const auto found = part->run(kernel);
      if (!found) return by("row alone", info, "accepted the whole, declines a part");
      for (const auto member : {&Written::out, &Written::lse})
        if (const auto same =
                same_bits(take(row(*whole.*member), 2, range(i, end)), *found.*member);
            !same)
          return by("row alone", info,
                    (part == &alone ? "rows " : "without later keys, rows ") + std::to_string(i) +
                        " to " + std::to_string(end) + " of head " + std::to_string(h) +
                        ", batch " + std::to_string(b) + ": " + same.message());
    }
  }
  return "";
}

std::vector<std::string> judge(const SweepCase& c, Tally& tally) {
  Dice dice(c.variant, 178);
  const int threads = static_cast<int>(dice.between(1, 5));
  std::vector<std::string> all = against_the_truth(c.problem, threads, c.variant, tally);
  const Trial trial = make_trial(c.problem);
  for (const std::string& wrong :
       {layouts_and_threads(c, trial, 1 + threads, tally), row_alone(trial, dice, tally)})
    if (!wrong.empty()) all.push_back(wrong);
  for (std::string& wrong : judge_parts(trial, dice, tally)) all.push_back(std::move(wrong));
  return all;
}

SweepCase draw(std::uint64_t seed) { return {random_problem(seed), seed}; }

}  // namespace
}  // namespace attend::test

int main(int argc, char** argv) {
  return attend::test::sweep_main(argc, argv,
                                  {"sweep_differential", attend::test::draw, attend::test::judge});
}
