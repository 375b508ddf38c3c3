#include "distributed/scheme.h"

#include "core/row_sums.h"
#include "distributed/balance.h"
#include "distributed/rows.h"

#include <algorithm>

namespace attend::distributed {
namespace {

constexpr double kUneven = 1.15;  // the most that a rank may have to do, of the mean
constexpr double kMoreBytes = 2;  // than `gather` moves

// Bytes of a row of what is moved of one key head and its heads.
struct RowBytes {
  double keys = 0, queries = 0;
};

// k and v, q and out; backward, in the scheme `heads`, k, v, q, dout and their gradients.
RowBytes bytes_of_item(const WholeProblem& whole, bool backward) {
  const Problem& p = whole.problem;
  const auto bytes = [](std::int64_t features, DType type) {
    return static_cast<double>(features * size_of(type));
  };
  const double scales = p.k_scales + p.v_scales;
  const double keys =
      bytes(p.d, type_of_k(p)) + bytes(p.dv, type_of_v(p)) + bytes(1, DType::f32) * scales;
  const double queries = bytes((backward ? 2 : 1) * p.d + p.dv, p.type);
  return {.keys = (backward ? 2 : 1) * keys,
          .queries = queries * static_cast<double>(whole.group())};
}

// Rows of one sequence that a rank does not own.
double rows_of_others(const WholeProblem& whole, bool queries, int rank, std::int64_t b) {
  const auto& starts = whole.starts(queries);
  std::int64_t rows = starts[static_cast<std::size_t>(b) + 1] - starts[static_cast<std::size_t>(b)];
  for_blocks(whole, queries, {.owner = rank, .b = b},
             [&](std::int64_t, const Layout::Run& run) { rows -= run.end - run.begin; });
  return static_cast<double>(rows);
}

// Rows that it needs of others.
double needed_rows(const WholeProblem& whole, bool queries, const Needs& needs, int rank) {
  std::int64_t rows = 0;
  for (const Needs::Ranges& ranges :
       (queries ? needs.queries : needs.keys)[static_cast<std::size_t>(rank)])
    for (const KeyRange& range : ranges) rows += range.end - range.begin;
  for_blocks(whole, queries, {.owner = rank, .reader = rank, .needs = &needs},
             [&](std::int64_t, const Layout::Run& run) { rows -= run.end - run.begin; });
  return static_cast<double>(rows);
}

double bytes_of_heads(const WholeProblem& whole, int ranks, bool backward) {
  const RowBytes row = bytes_of_item(whole, backward);
  const auto items = items_of(whole, ranks);
  double bytes = 0;
  for (int r = 0; r < ranks; ++r)
    for (const Item& item : items[static_cast<std::size_t>(r)])
      bytes += rows_of_others(whole, false, r, item.b) * row.keys +
               rows_of_others(whole, true, r, item.b) * row.queries;
  return bytes;
}

double bytes_of_gather(const WholeProblem& whole, int ranks, Bits bits, bool backward) {
  if (!backward && ships_states(whole)) return bytes_of_states(whole);
  const Problem& p = whole.problem;
  const bool chunks = backward && bits == Bits::one_process;
  const Needs needs = Needs::of(whole, chunks);
  const RowBytes row = bytes_of_item(whole, false);  // q and out, or as many: q and dout
  // In one_process q, dout and sums go to the keys; in fast sums of dk and dv to their owners.
  const double queries =
      row.queries + static_cast<double>(whole.group() * kSumsOfKeys * size_of(DType::f64));
  const double sums = static_cast<double>((p.d + p.dv) * size_of(statistic_type(p.type)));
  double bytes = 0;
  for (int r = 0; r < ranks; ++r) {
    bytes += needed_rows(whole, false, needs, r) * (row.keys + (backward && !chunks ? sums : 0));
    if (chunks) bytes += needed_rows(whole, true, needs, r) * queries;
  }
  return bytes * static_cast<double>(p.kv_heads);
}

bool is_uneven(const WholeProblem& whole, int ranks) {
  double most = 0, all = 0;
  std::vector<double> pairs;
  for (std::int64_t b = 0; b < whole.batch(); ++b) {
    pairs.push_back(0);
    for (const double more : pairs_by_granule(whole, b, true, kGranule)) pairs.back() += more;
  }
  for (const auto& items : items_of(whole, ranks)) {
    double mine = 0;
    for (const Item& item : items) mine += pairs[static_cast<std::size_t>(item.b)];
    most = std::max(most, mine);
    all += mine;
  }
  return most * ranks > kUneven * all;
}

}  // namespace

Scheme chosen_scheme(const WholeProblem& whole, const DistributedOptions& asked, int ranks,
                     bool backward) {
  if (asked.scheme != Scheme::automatic) return asked.scheme;
  if (is_uneven(whole, ranks)) return Scheme::gather;
  return bytes_of_heads(whole, ranks, backward) >
                 kMoreBytes * bytes_of_gather(whole, ranks, asked.bits, backward)
             ? Scheme::gather
             : Scheme::heads;
}

}  // namespace attend::distributed
