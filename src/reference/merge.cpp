// Joining partial results, row by row. Part n saw some of the keys and gave (o_n, lse_n):
//
//   lse = log sum_n exp(lse_n)        o = sum_n exp(lse_n - lse) * o_n
//
// A part that saw no key has lse -inf and adds nothing, whatever its o holds; if no part saw a key
// the result is (0, -inf).
#include "core/kernel.h"
#include "core/mask.h"
#include "core/scratch.h"

#include <algorithm>
#include <cmath>

namespace attend {
namespace {

constexpr std::int64_t kRowsPerTask = 64;

void merge_row(const MergeProblem& p, const MergeCall& call, std::int64_t b, std::int64_t h,
               std::int64_t i, double* o) noexcept {
  const auto lse_of = [&](const Part& part) { return load(part.lse, part.lse.offset(b, h, i)); };
  double m = kMinusInfinity;
  for (std::int64_t n = 0; n < p.parts; ++n) m = std::max(m, lse_of(call.parts[n]));

  std::fill_n(o, p.dv, 0.0);
  double l = 0;
  for (std::int64_t n = 0; n < p.parts; ++n) {
    const Part& part = call.parts[n];
    const double lse = lse_of(part);
    if (lse == kMinusInfinity) continue;
    const double weight = std::exp(lse - m);
    l += weight;
    for (std::int64_t x = 0; x < p.dv; ++x)
      o[x] += weight * load(part.o, part.o.offset(b, h, i, x));
  }
  for (std::int64_t x = 0; x < p.dv; ++x)
    store(call.out, call.out.offset(b, h, i, x), l == 0 ? 0 : o[x] / l);
  if (p.lse) store(call.lse, call.lse.offset(b, h, i), l == 0 ? kMinusInfinity : m + std::log(l));
}

void run(const MergeProblem& p, const Tiles& tiles, const MergeCall& call,
         const Task& task) noexcept {
  double* o = Scratch(task.scratch).take<double>(p.dv);
  const std::int64_t rows = p.batch * p.heads * p.q_length;
  const std::int64_t begin = task.index * tiles.queries;
  for (std::int64_t row = begin; row < std::min(begin + tiles.queries, rows); ++row) {
    const std::int64_t head = row / p.q_length;
    merge_row(p, call, head / p.heads, head % p.heads, row % p.q_length, o);
  }
}

std::string declines(const MergeProblem&, const Machine&) { return {}; }

Tiles tiles(const MergeProblem&, const Machine&) { return {.queries = kRowsPerTask, .keys = 1}; }

std::int64_t tasks(const MergeProblem& p, const Tiles& tiles, int) {
  return (p.batch * p.heads * p.q_length + tiles.queries - 1) / tiles.queries;
}

Workspace workspace(const MergeProblem& p, const Tiles&) {
  Scratch scratch(nullptr);
  scratch.take<double>(p.dv);
  return {.shared = 0, .per_strand = scratch.used()};
}

}  // namespace

extern constinit const Kernel<Merge> kReferenceMerge{
    .name = "reference.merge",
    .only_if_forced = false,
    .takes = kHostTypes | Features{Feature::other_types, Feature::lse},
    .stages = 1,
    .declines = declines,
    .tiles = tiles,
    .tasks = tasks,
    .workspace = workspace,
    .run = run,
};

}  // namespace attend
