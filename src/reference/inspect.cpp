// Statistics of the weights, row by row in f64: the truth that every other inspect kernel is held
// against. A row is walked twice, once for its softmax, once for its weights; of the matrix no more
// than one weight is ever there. A task is one head. And the weights of a window, from lse.
//
//   p_j = exp(s_j - lse)      entropy = - sum_j p_j log p_j      mass_j = sum_i p_ij
#include "reference/row.h"

namespace attend {
namespace {

constexpr std::int64_t kRowsPerTask = 16;

// ---- Statistics --------------------------------------------------------------------------------

struct Best {
  double score;
  std::int64_t key;
};

// What is summed over the rows of a head.
struct InspectedHead {
  double* mass;                                    // [keys]
  double *tile_sum, *tile_maximum, *tile_visible;  // [map rows][map columns]
  Best* best;                                      // [top_k], of the row at hand
  HeadSums sums;

  InspectedHead(const InspectProblem& p, Scratch& scratch)
      : mass(scratch.take<double>(p.key_mass ? p.k_length : 0)),
        tile_sum(scratch.take<double>(p.map_rows() * p.map_columns())),
        tile_maximum(scratch.take<double>(p.map_rows() * p.map_columns())),
        tile_visible(scratch.take<double>(p.map_rows() * p.map_columns())),
        best(scratch.take<Best>(p.top_k)) {}
};

// Calls use(j, s) for every key that the row sees, with its score.
template <class Operation, class Use>
void for_scores(Row<Operation>& row, Use use) noexcept {
  for_visible_keys(row, [&](std::int64_t j) {
    row.load_key(j);
    const double s = score(row, j).masked;  // 1 scores, 2 mask
    if (s != kMinusInfinity) use(j, s);
  });
}

// Step 3: maximum and sum of a row, in chunks of 256 keys as attention has them.
template <class Operation>
SoftmaxState softmax_of(Row<Operation>& row) noexcept {
  SoftmaxState total, part;
  if (row.problem.sinks) {
    const double sink = load(row.call.sinks, row.call.sinks.offset(0, row.h, 0));
    if (sink != kMinusInfinity) total.add(sink);
  }
  std::int64_t chunk = 0;
  for_scores(row, [&](std::int64_t j, double s) {
    if (j / kChunk != chunk) {
      total.join(part);
      part = {};
    }
    chunk = j / kChunk;
    part.add(s);
  });
  total.join(part);
  return total;
}

// Takes key j into the list, if its score is among the largest; equal scores stay in key order.
void enter(Best* best, std::int64_t top_k, double s, std::int64_t j) noexcept {
  std::int64_t at = top_k;
  while (at > 0 && (best[at - 1].key < 0 || s > best[at - 1].score)) --at;
  if (at == top_k) return;
  std::copy_backward(best + at, best + top_k - 1, best + top_k);
  best[at] = {s, j};
}

// The metrics of one weight: query at `position`, key j.
void measure(const Row<Inspect>& row, std::int64_t position, std::int64_t j, double w,
             HeadSums& sums) noexcept {
  const InspectProblem& p = row.problem;
  const std::int64_t distance = std::abs(position - j);
  sums.distance += w * static_cast<double>(distance);
  if (distance <= p.local_width) sums.local += w;
  if (j == position - 1) sums.previous += w;
  if (j == 0) sums.first += w;
  if (j == position) sums.diagonal += w;
  if (!p.tokens || j > position || position >= row.sequence.k_stored) return;
  const auto token = [&](std::int64_t at) { return token_of(p, row.call, row.sequence, at); };
  if (j < position && token(j) == token(position)) sums.duplicate += w;
  if (j > 0 && token(j - 1) == token(position)) sums.induction += w;
}

void inspect_row(Row<Inspect>& row, InspectedHead& head) noexcept {
  const InspectProblem& p = row.problem;
  const SoftmaxState state = softmax_of(row);
  const std::int64_t position = row.i + row.sequence.offset;
  double entropy = 0, maximum = 0, visible = 0;
  std::fill_n(head.best, p.top_k, Best{0, -1});
  for_scores(row, [&](std::int64_t j, double s) {
    const double w = weight(s, state.top) / state.l;  // 3 softmax
    ++visible;
    if (w != 0) entropy += w * -std::log(w);
    if (w > maximum || std::isnan(w)) maximum = w;  // NaN stays
    enter(head.best, p.top_k, s, j);
    if (p.key_mass) head.mass[j] += w;
    if (p.metrics) measure(row, position, j, w, head.sums);
    if (p.tile_keys == 0) return;
    const std::int64_t tile = row.i / p.tile_queries * p.map_columns() + j / p.tile_keys;
    head.tile_sum[tile] += w;
    head.tile_visible[tile] += 1;
    if (w > head.tile_maximum[tile] || std::isnan(w)) head.tile_maximum[tile] = w;
  });
  const double lse = state.lse();
  head.sums.rows += visible > 0 ? 1 : 0;
  head.sums.lse += visible > 0 ? lse : 0;
  head.sums.entropy += entropy;
  head.sums.maximum += maximum;
  if (visible > 1) {
    head.sums.even_rows += 1;
    head.sums.evenness += entropy / std::log(visible);
  }

  const auto at = [&](const Strided& t) { return query_row(p, t, row.sequence, row.h, row.i); };
  store(row.call.lse, at(row.call.lse), lse);
  store(row.call.maximum, at(row.call.maximum), maximum);
  store(row.call.entropy, at(row.call.entropy), entropy);
  for (std::int64_t n = 0; n < p.top_k; ++n) {
    const auto [s, j] = head.best[n];
    const double w = std::isnan(lse) ? lse : j < 0 ? 0 : weight(s, state.top) / state.l;
    store_integer(row.call.top_keys, at(row.call.top_keys) + n, std::isnan(lse) ? -1 : j);
    store(row.call.top_weights, at(row.call.top_weights) + n, w);
  }
}

void inspect(const InspectProblem& p, const Tiles&, const InspectCall& call,
             const Task& task) noexcept {
  Scratch scratch(task.scratch);
  Row<Inspect> row(p, call, scratch);
  InspectedHead head(p, scratch);
  const std::int64_t tiles = p.map_rows() * p.map_columns();
  row.sequence = sequence_of(p, call, task.index / p.heads);
  row.h = task.index % p.heads;
  if (p.key_mass) std::fill_n(head.mass, p.k_length, 0.0);
  std::fill_n(head.tile_sum, tiles, 0.0);
  std::fill_n(head.tile_maximum, tiles, 0.0);
  std::fill_n(head.tile_visible, tiles, 0.0);
  for (std::int64_t i = 0; i < row.sequence.q_length; ++i) {
    if (must_stop(task.interrupt)) return;
    row.move_to(row.h, i);
    inspect_row(row, head);
  }
  call.heads[task.index] = head.sums;
  for (std::int64_t j = 0; p.key_mass && j < listed_keys(p, row.sequence); ++j)
    store(call.key_mass, mass_row(p, call, row.sequence, row.h) + j, head.mass[j]);
  for (std::int64_t n = 0; n < tiles; ++n) {
    const std::int64_t to = task.index * tiles + n;
    const bool seen = head.tile_visible[n] > 0;
    store(call.tile_mean, to, seen ? head.tile_sum[n] / head.tile_visible[n] : -1);
    store(call.tile_maximum, to, seen ? head.tile_maximum[n] : -1);
  }
}

template <class Problem>
std::string declines(const Problem&, const Machine&) {
  return {};
}

Tiles inspect_tiles(const InspectProblem& p, const Machine&) { return {p.q_length, 1}; }

std::int64_t inspect_tasks(const InspectProblem& p, const Tiles&, int) { return p.batch * p.heads; }

Workspace inspect_workspace(const InspectProblem& p, const Tiles&) {
  const InspectCall none;
  Scratch scratch(nullptr);
  Row<Inspect> row(p, none, scratch);
  InspectedHead head(p, scratch);
  return {.shared = 0, .per_strand = scratch.used()};
}

// ---- A window of weights -----------------------------------------------------------------------

void weights(const WeightsProblem& p, const Tiles& tiles, const WeightsCall& call,
             const Task& task) noexcept {
  Scratch scratch(task.scratch);
  Row<Weights> row(p, call, scratch);
  const WindowOrigin& from = call.window;
  row.sequence = sequence_of(p, call, from.b);
  const std::int64_t begin = task.index * tiles.queries;
  for (std::int64_t n = begin; n < std::min(begin + tiles.queries, p.window_queries); ++n) {
    if (must_stop(task.interrupt)) return;
    row.move_to(from.h, from.i + n);
    const double lse = load(call.lse, query_row(p, call.lse, row.sequence, row.h, row.i));
    const bool coarse = is_coarse(p.lse_type, lse);
    const SoftmaxState state = coarse ? softmax_of(row) : SoftmaxState{};
    const KeyRange keys = positions(p, row.sequence, row.i);
    for (std::int64_t x = 0; x < p.window_keys; ++x) {
      const std::int64_t j = from.j + x;
      double w = 0;
      if (j >= keys.begin && j < keys.end && block_visible(p, call, from.b, row.h, row.i, j) &&
          !masked_out(p, call, from.b, row.h, row.i, j)) {
        row.load_key(j);
        const double s = score(row, j).masked;
        if (s != kMinusInfinity) w = coarse ? weight(s, state.top) / state.l : std::exp(s - lse);
      }
      store(call.weights, n * p.window_keys + x, w);
    }
  }
}

Tiles weights_tiles(const WeightsProblem&, const Machine&) {
  return {.queries = kRowsPerTask, .keys = 1};
}

std::int64_t weights_tasks(const WeightsProblem& p, const Tiles& tiles, int) {
  return (p.window_queries + tiles.queries - 1) / tiles.queries;
}

Workspace weights_workspace(const WeightsProblem& p, const Tiles&) {
  const WeightsCall none;
  Scratch scratch(nullptr);
  Row<Weights> row(p, none, scratch);
  return {.shared = 0, .per_strand = scratch.used()};
}

}  // namespace

extern constinit const Kernel<Inspect> kReferenceInspect{
    .name = "reference.inspect",
    .only_if_forced = false,
    .takes = kTakenByRows | Features{Feature::top_keys, Feature::key_mass, Feature::metrics,
                                     Feature::tokens, Feature::map},
    .stages = 1,
    .declines = declines,
    .tiles = inspect_tiles,
    .tasks = inspect_tasks,
    .workspace = inspect_workspace,
    .run = inspect,
};

extern constinit const Kernel<Weights> kReferenceWeights{
    .name = "reference.weights",
    .only_if_forced = false,
    .takes = kTakenByRows,
    .stages = 1,
    .declines = declines,
    .tiles = weights_tiles,
    .tasks = weights_tasks,
    .workspace = weights_workspace,
    .run = weights,
};

}  // namespace attend
