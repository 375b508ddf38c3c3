// Attention, row by row: the truth that every other kernel is held against. The plainest form of
// the four steps, without options, is examples/four_steps.cpp; this is the next to read.
//
// Forward goes through four steps for each query row, backward through the same steps in reverse;
// the numbers are those of docs/algorithm.md, and every kernel marks them. All tensors are read as
// f64, all arithmetic is f64, and a result is rounded once, when it is stored. Memory is O(length):
// no step ever holds more than a row. There are no speed tricks.
//
//   1 scores    s = scale * q . k^T
//   2 mask      softcap, bias, ALiBi; what is hidden never enters
//   3 softmax   p = exp(s - lse), over the visible keys (and the sink)
//   4 values    o = p . v
#include "core/partial_state.h"
#include "core/philox.h"
#include "core/row_sums.h"
#include "reference/row.h"

#include <atomic>

namespace attend {
namespace {

constexpr std::int64_t kRowsPerTask = 16;

// ---- Steps 1 to 4 of a row ---------------------------------------------------------------------

// A key that everybody sees, without value.
template <class Operation>
void add_sink(const Row<Operation>& row, SoftmaxState& total) noexcept {
  if (!row.problem.sinks) return;
  const double sink = load(row.call.sinks, row.call.sinks.offset(0, row.h, 0));
  if (sink != kMinusInfinity) total.add(sink);
}

// Adds the row's keys to o[dv] and the softmax's state. They are summed in chunks of 256: `part`
// and `part_o` hold the chunk at hand. A key that weighs nothing, since q . k is -inf, shows the
// NaN of its value in forward's o; gradients take nothing from it. Returns how many blocks were
// entered.
template <class Operation>
std::int64_t add_keys(Row<Operation>& row, SoftmaxState& total, double* o,
                      double* part_o) noexcept {
  const Problem& p = row.problem;
  SoftmaxState part;
  row.sees = false;
  std::fill_n(part_o, p.dv, 0.0);
  const auto close_chunk = [&] {
    if (part.l != 0) {  // else nothing of it counts
      const auto [mine, other] = total.join(part);
      for (std::int64_t x = 0; x < p.dv; ++x) o[x] = o[x] * mine + part_o[x] * other;
    }
    part = {};
    std::fill_n(part_o, p.dv, 0.0);
  };
  std::int64_t chunk = 0;
  const std::int64_t entered = for_visible_keys(row, [&](std::int64_t j) {
    if (j / kChunk != chunk) close_chunk();
    chunk = j / kChunk;
    row.load_key(j);
    const double s = score(row, j).masked;  // 1 scores, 2 mask
    row.load_value(j);
    if (s == kMinusInfinity) {
      const bool hidden = added(p, row.call, row.sequence, row.h, row.i, j) == s;
      for (std::int64_t x = 0; std::is_same_v<Operation, Forward> && !hidden && x < p.dv; ++x)
        part_o[x] += 0 * row.v[x];
      return;
    }
    row.sees = true;
    const auto [rescale, p_j] = part.add(s);  // 3 softmax
    const double kept = p_j * dropout_factor(p, row.call, row.sequence.b, row.h, row.i, j);
    for (std::int64_t x = 0; x < p.dv; ++x)  // 4 values
      part_o[x] = part_o[x] * rescale + kept * row.v[x];
  });
  close_chunk();
  return entered;
}

void divide(double* o, std::int64_t dv, const SoftmaxState& total) noexcept {
  for (std::int64_t x = 0; x < dv; ++x) o[x] = total.l == 0 ? 0 : o[x] / total.l;
}

// ---- Forward -----------------------------------------------------------------------------------

// What the partial states hold for the row, if there are any, joined in their order. Returns
// whether the sink has been counted there.
bool resume(const Row<Forward>& row, SoftmaxState& total, double* o, double* part_o) noexcept {
  const ForwardProblem& p = row.problem;
  bool sink = false;
  for (std::int64_t n = 0; n < p.parts; ++n) {
    const Strided& from = row.call.parts[n].o;
    const std::int64_t at = query_row(p, from, row.sequence, row.h, row.i);
    const StateRow state = load_state(from, at, p.dv);
    sink = sink || state.sink;
    if (state.kind == StateKind::empty) continue;
    load_row(from, at, p.dv, part_o);
    const auto [mine, other] = total.join({state.top, state.l * state.scale});
    for (std::int64_t x = 0; x < p.dv; ++x) o[x] = o[x] * mine + part_o[x] * state.scale * other;
  }
  return sink;
}

void write_state(const Row<Forward>& row, const SoftmaxState& total, const double* o,
                 bool sink) noexcept {
  const Strided& to = row.call.state;
  const std::int64_t dv = row.problem.dv,
                     at = query_row(row.problem, to, row.sequence, row.h, row.i);
  store_row(to, at, dv, o);
  const StateKind kind = total.l == 0 ? StateKind::empty : StateKind::joined;
  store_state(to, at, dv, {total.top, total.l, 1, kind, sink});
}

// o[dv] and the softmax's state for one row. A partial state is not divided.
SoftmaxState forward_row(Row<Forward>& row, double* o, double* part_o) noexcept {
  const ForwardProblem& p = row.problem;
  SoftmaxState total;
  std::fill_n(o, p.dv, 0.0);
  const bool sink_counted = resume(row, total, o, part_o);
  if (!sink_counted) add_sink(row, total);
  const std::int64_t entered = add_keys(row, total, o, part_o);
  if (p.state) {
    write_state(row, total, o, p.sinks || sink_counted);
    return total;
  }
  divide(o, p.dv, total);
  if (p.visited_blocks)
    std::atomic_ref(*row.call.visited_blocks).fetch_add(entered, std::memory_order_relaxed);
  return total;
}

// The row of weights, on request: p = weight(s, top) / l, hidden = 0. Its head's place among those
// that are written may be another than in q.
void write_weights(Row<Forward>& row, const SoftmaxState& state, std::int64_t place) noexcept {
  const Strided& weights = row.call.weights;
  for_visible_keys(row, [&](std::int64_t j) {
    row.load_key(j);
    const double s = score(row, j).masked;
    if (s == kMinusInfinity) return;
    store(weights, weights.offset(row.sequence.b, place, row.i, j), weight(s, state.top) / state.l);
  });
}

// The row of scores, on request. Before the mask every stored key has one, the hidden ones too.
void write_scores(Row<Forward>& row) noexcept {
  const Strided& scores = row.call.scores;
  const auto write = [&](std::int64_t j) {
    row.load_key(j);
    const Score s = score(row, j);
    const ScoreStage stage = row.problem.stage;
    store(scores, scores.offset(row.sequence.b, row.h, row.i, j),
          stage == ScoreStage::raw          ? s.raw
          : stage == ScoreStage::softcapped ? s.capped
                                            : s.masked);
  };
  if (row.problem.stage == ScoreStage::masked) {
    for_visible_keys(row, write);
  } else {
    for (std::int64_t j = 0; j < row.sequence.k_stored; ++j) write(j);
  }
}

void fill_keys(const Strided& t, const Row<Forward>& row, std::int64_t h, std::int64_t i,
               double value) noexcept {
  for (std::int64_t j = 0; j < row.problem.k_length; ++j)
    store(t, t.offset(row.sequence.b, h, i, j), value);
}

// A task is kRowsPerTask rows of one head.
void forward(const ForwardProblem& p, const Tiles& tiles, const ForwardCall& call,
             const Task& task) noexcept {
  Scratch scratch(task.scratch);
  Row<Forward> row(p, call, scratch);
  double* o = scratch.take<double>(p.dv);
  double* part_o = scratch.take<double>(p.dv);

  const std::int64_t blocks = (p.q_length + tiles.queries - 1) / tiles.queries;
  const std::int64_t head = task.index / blocks, begin = task.index % blocks * tiles.queries;
  row.sequence = sequence_of(p, call, head / p.heads);
  row.h = head % p.heads;
  const std::int64_t shown = place_in_weights(p, call, row.h);
  for (std::int64_t i = begin; i < std::min(begin + tiles.queries, p.q_length); ++i) {
    if (must_stop(task.interrupt)) return;
    if (shown >= 0) fill_keys(call.weights, row, shown, i, 0);
    if (p.scores) fill_keys(call.scores, row, row.h, i, kMinusInfinity);
    const std::int64_t query = enter_run(p, call, row.sequence, i);
    if (query >= row.sequence.q_length) continue;  // a packed sequence shorter than the longest
    row.move_to(row.h, query);
    const SoftmaxState state = forward_row(row, o, part_o);
    if (p.state) continue;
    store_row(call.out, query_row(p, call.out, row.sequence, row.h, query), p.dv, o);
    if (p.lse) store(call.lse, query_row(p, call.lse, row.sequence, row.h, query), state.lse());
    if (shown >= 0) write_weights(row, state, shown);
    if (p.scores) write_scores(row);
  }
}

// ---- Backward ----------------------------------------------------------------------------------

// What one pair (i, j) contributes.
struct PairGradient {
  double p;       // the weight after dropout: dv_j += p * dout_i
  double dadded;  // at the sum of bias and ALiBi
  double ds;      // at q . k: dq_i += ds * k_j and dk_j += ds * q_i
};

struct BackwardRow : Row<Backward> {
  double* dout;    // [dv]
  double* o;       // [dv]  the row's output
  double* part_o;  // [dv]
  SoftmaxState state;
  double shift = 0;            // sum_j p_j dp_j - dlse
  double alibi = 0, bias = 0;  // summed over the keys, if they were elsewhere
  Interrupt* interrupt;

  BackwardRow(const BackwardProblem& p, const BackwardCall& c, Interrupt* asked, Scratch& scratch)
      : Row<Backward>(p, c, scratch), dout(scratch.take<double>(p.dv)),
        o(scratch.take<double>(p.dv)), part_o(scratch.take<double>(p.dv)), interrupt(asked) {}

  // Goes forward through the row once more, in f64. `out` and lse, which the caller kept, say the
  // same, but rounded: a weight would be off by as much as |lse| is rounded by, and delta by out.
  void move_to(std::int64_t head, std::int64_t query) noexcept {
    Row<Backward>::move_to(head, query);
    const auto at = [&](const Strided& t) { return query_row(problem, t, sequence, h, i); };
    load_row(call.dout, at(call.dout), problem.dv, dout);
    if (problem.sums_read) {
      const bool all = problem.only_joins_rows();
      const RowSums sums = all ? load_row_sums(call.sums, at(call.sums))
                               : load_sums_of_keys(call.sums, at(call.sums));
      state = {sums.top, sums.l};
      shift = sums.shift, alibi = sums.alibi, bias = sums.bias;
      return;
    }
    state = {};  // 1 to 4 again
    std::fill_n(o, problem.dv, 0.0);
    add_sink(*this, state);
    add_keys(*this, state, o, part_o);
    divide(o, problem.dv, state);
    shift = sees ? dot(dout, o, problem.dv) : 0.0;  // = sum_j p_j dp_j
    if (problem.dlse) shift -= load(call.dlse, at(call.dlse));
  }
};

// Calls use(j, gradient) for every visible key of the row, with k and v of j at hand.
template <class Use>
void backward_row(BackwardRow& row, Use use) noexcept {
  const BackwardProblem& p = row.problem;
  for_visible_keys(row, [&](std::int64_t j) {
    row.load_key(j);
    const Score s = score(row, j);
    if (s.masked == kMinusInfinity) return;
    const double p_j = weight(s.masked, row.state.top) / row.state.l;
    const double keep = dropout_factor(p, row.call, row.sequence.b, row.h, row.i, j);
    row.load_value(j);
    const double dp = keep == 0 ? 0 : keep * dot(row.dout, row.v, p.dv);  // 4 reversed
    double ds = p_j * (dp - row.shift);                                   // 3 reversed
    const double after_cap = ds;                                          // 2 reversed
    if (p.softcap != 0) ds *= 1 - (s.capped / p.softcap) * (s.capped / p.softcap);
    use(j, PairGradient{p_j * keep, p.bias_before_softcap ? ds : after_cap, p.scale * ds});
  });
}

// What all keys of the row add to dalibi, and to a dbias that they share.
struct AddedSums {
  double alibi = 0, bias = 0;

  explicit AddedSums(const BackwardRow& row) noexcept {
    if (row.problem.sums_read) alibi = row.alibi, bias = row.bias;
  }
  void add(const BackwardRow& row, std::int64_t j, const PairGradient& gradient) noexcept {
    const auto distance = static_cast<double>(row.i + row.sequence.offset - j);
    alibi -= gradient.dadded * std::abs(distance);
    bias += gradient.dadded;
  }
};

// Calls use(row) for each of the queries [begin, end) of head h that the sequence has.
template <class Use>
void for_queries(BackwardRow& row, std::int64_t h, std::int64_t begin, std::int64_t end,
                 Use use) noexcept {
  if (!row.problem.query_runs) end = std::min(end, row.sequence.q_length);
  for (std::int64_t i = begin; i < end; ++i) {
    if (must_stop(row.interrupt)) return;
    row.move_to(h, enter_run(row.problem, row.call, row.sequence, i));
    use(row);
  }
}

// Backward has three kinds of tasks, none of which needs another. First, what belongs to one key
// head: dq of its queries, dk and dv of its keys. Keys on pages may be shared by several sequences,
// so there one task takes a key head of the whole batch.
std::int64_t key_tasks(const BackwardProblem& p) noexcept {
  if (!p.dq && !p.dk && !p.dv_gradient && !p.sums_written) return 0;
  return p.keys == KeyAddressing::paged ? p.kv_heads : p.batch * p.kv_heads;
}
std::int64_t key_rows(const BackwardProblem& p) noexcept {
  return p.keys == KeyAddressing::paged ? p.pages * p.page_size : p.k_length;
}

struct KeyGradients {
  double* dq;  // [d]          of the row at hand
  double* dk;  // [keys, d]    of the whole key head
  double* dv;  // [keys, dv]
  KeyGradients(const BackwardProblem& p, Scratch& scratch)
      : dq(scratch.take<double>(p.d)), dk(scratch.take<double>(p.dk ? key_rows(p) * p.d : 0)),
        dv(scratch.take<double>(p.dv_gradient ? key_rows(p) * p.dv : 0)) {}
};

void key_gradients_of_sequence(BackwardRow& row, KeyGradients& sum, std::int64_t kv_head) noexcept {
  const BackwardProblem& p = row.problem;
  for (std::int64_t h = kv_head * p.group(); h < (kv_head + 1) * p.group(); ++h) {
    for_queries(row, h, 0, p.q_length, [&](BackwardRow&) {
      std::fill_n(sum.dq, p.d, 0.0);
      AddedSums added_sums(row);
      backward_row(row, [&](std::int64_t j, const PairGradient& gradient) {
        const std::int64_t at =
            p.keys == KeyAddressing::paged
                ? page_of(p, row.call, row.sequence, j) * p.page_size + j % p.page_size
                : j;
        if (p.sums_written) added_sums.add(row, j, gradient);
        add_scaled(sum.dq, gradient.ds, row.k, p.d);  // 1 reversed
        if (p.dk) row.add_to_dk(sum.dk + at * p.d, gradient.ds, row.q);
        if (p.dv_gradient) row.add_to_dv(sum.dv + at * p.dv, gradient.p, row.dout);
      });
      if (p.dq)
        store_row(row.call.dq, query_row(p, row.call.dq, row.sequence, h, row.i), p.d, sum.dq);
      if (p.sums_written)
        store_row_sums(row.call.sums, query_row(p, row.call.sums, row.sequence, h, row.i),
                       {row.state.top, row.state.l, row.shift, added_sums.alibi, added_sums.bias});
    });
  }
}

void key_task(const BackwardProblem& p, const BackwardCall& call, std::int64_t index,
              Interrupt* interrupt, Scratch scratch) noexcept {
  BackwardRow row(p, call, interrupt, scratch);
  KeyGradients sum(p, scratch);
  if (p.dk) std::fill_n(sum.dk, key_rows(p) * p.d, 0.0);
  if (p.dv_gradient) std::fill_n(sum.dv, key_rows(p) * p.dv, 0.0);

  const bool paged = p.keys == KeyAddressing::paged;
  const std::int64_t kv_head = index % p.kv_heads;
  const std::int64_t first = paged ? 0 : index / p.kv_heads, last = paged ? p.batch : first + 1;
  for (std::int64_t b = first; b < last; ++b) {
    row.sequence = sequence_of(p, call, b);
    key_gradients_of_sequence(row, sum, kv_head);
  }
  const std::int64_t rows = paged ? key_rows(p) : row.sequence.k_stored;
  for (std::int64_t j = 0; j < rows; ++j) {
    const auto at = [&](const Strided& t) {
      return paged ? t.offset(j / p.page_size, kv_head, j % p.page_size)
                   : key_row(p, call, t, row.sequence, kv_head, j);
    };
    if (p.dk) store_row(call.dk, at(call.dk), p.d, sum.dk + j * p.d);
    if (p.dv_gradient) store_row(call.dv, at(call.dv), p.dv, sum.dv + j * p.dv);
  }
}

// Second, one row of dbias: the sum over every batch element, head and query that shares it.
std::int64_t bias_tasks(const BackwardProblem& p) noexcept {
  return p.dbias && p.dbias_keys > 0 ? p.dbias_batch * p.dbias_heads * p.dbias_queries : 0;
}

void bias_task(const BackwardProblem& p, const BackwardCall& call, std::int64_t index,
               Interrupt* interrupt, Scratch scratch) noexcept {
  BackwardRow row(p, call, interrupt, scratch);
  double* sum = scratch.take<double>(p.dbias_keys);
  std::fill_n(sum, p.dbias_keys, 0.0);

  const std::int64_t i = index % p.dbias_queries;
  const std::int64_t h = index / p.dbias_queries % p.dbias_heads;
  const std::int64_t b = index / p.dbias_queries / p.dbias_heads;
  const auto span = [](std::int64_t at, std::int64_t size, std::int64_t full) {
    return size == 1 ? KeyRange{0, full} : KeyRange{at, at + 1};
  };
  const auto batches = span(b, p.dbias_batch, p.batch), heads = span(h, p.dbias_heads, p.heads);
  const auto queries = span(i, p.dbias_queries, p.q_length);
  for (std::int64_t n = batches.begin; n < batches.end; ++n) {
    row.sequence = sequence_of(p, call, n);
    for (std::int64_t head = heads.begin; head < heads.end; ++head) {
      for_queries(row, head, queries.begin, queries.end, [&](BackwardRow&) {
        AddedSums added_sums(row);
        if (!(p.sums_read && p.dbias_keys == 1))
          backward_row(row, [&](std::int64_t j, const PairGradient& gradient) {
            if (p.dbias_keys == 1) added_sums.add(row, j, gradient);
            else sum[j] += gradient.dadded;
          });
        if (p.dbias_keys == 1) sum[0] += added_sums.bias;
      });
    }
  }
  store_row(call.dbias, call.dbias.offset(b, h, i), p.dbias_keys, sum);
}

// Third, dalibi and dsinks of one head.
std::int64_t head_tasks(const BackwardProblem& p) noexcept {
  return p.dalibi || p.dsinks ? p.heads : 0;
}

void head_task(const BackwardProblem& p, const BackwardCall& call, std::int64_t h,
               Interrupt* interrupt, Scratch scratch) noexcept {
  BackwardRow row(p, call, interrupt, scratch);
  double dalibi = 0, dsink = 0;
  const double sink = p.sinks ? load(call.sinks, call.sinks.offset(0, h, 0)) : kMinusInfinity;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    row.sequence = sequence_of(p, call, b);
    for_queries(row, h, 0, p.q_length, [&](BackwardRow&) {
      AddedSums added_sums(row);
      if (p.dalibi && !p.sums_read)
        backward_row(row, [&](std::int64_t j, const PairGradient& gradient) {
          added_sums.add(row, j, gradient);
        });
      dalibi += added_sums.alibi;
      if (sink != kMinusInfinity)  // a key whose dp is 0
        dsink -= weight(sink, row.state.top) / row.state.l * row.shift;
    });
  }
  if (p.dalibi) store(call.dalibi, call.dalibi.offset(0, h, 0), dalibi);
  if (p.dsinks) store(call.dsinks, call.dsinks.offset(0, h, 0), dsink);
}

void backward(const BackwardProblem& p, const Tiles&, const BackwardCall& call,
              const Task& task) noexcept {
  const Scratch scratch(task.scratch);
  std::int64_t index = task.index;
  if (index < key_tasks(p)) return key_task(p, call, index, task.interrupt, scratch);
  index -= key_tasks(p);
  if (index < bias_tasks(p)) return bias_task(p, call, index, task.interrupt, scratch);
  head_task(p, call, index - bias_tasks(p), task.interrupt, scratch);
}

// ---- The rows of the kernel table --------------------------------------------------------------

template <class Problem>
std::string declines(const Problem&, const Machine&) {
  return {};
}
template <class Problem>
Tiles tiles(const Problem&, const Machine&) {
  return {.queries = kRowsPerTask, .keys = 1};
}

std::int64_t forward_tasks(const ForwardProblem& p, const Tiles& tiles, int) {
  return p.batch * p.heads * ((p.q_length + tiles.queries - 1) / tiles.queries);
}

std::int64_t backward_tasks(const BackwardProblem& p, const Tiles&, int) {
  return key_tasks(p) + bias_tasks(p) + head_tasks(p);
}

Workspace forward_workspace(const ForwardProblem& p, const Tiles&) {
  const ForwardCall none;
  Scratch scratch(nullptr);
  Row<Forward> row(p, none, scratch);
  scratch.take<double>(p.dv);  // o
  scratch.take<double>(p.dv);  // part_o
  return {.shared = 0, .per_strand = scratch.used()};
}

Workspace backward_workspace(const BackwardProblem& p, const Tiles&) {
  const BackwardCall none;
  Scratch scratch(nullptr);
  BackwardRow row(p, none, nullptr, scratch);
  Scratch keys = scratch, bias = scratch;
  if (key_tasks(p) > 0) KeyGradients(p, keys);
  if (bias_tasks(p) > 0) bias.take<double>(p.dbias_keys);
  return {.shared = 0, .per_strand = std::max(keys.used(), bias.used())};
}

}  // namespace

extern constinit const Kernel<Forward> kReferenceForward{
    .name = "reference.forward",
    .only_if_forced = false,
    .takes =
        kTakenByRows | Features{Feature::dropout, Feature::lse, Feature::weights,
                                Feature::weight_heads, Feature::scores, Feature::visited_blocks,
                                Feature::partial_states, Feature::query_runs},
    .stages = 1,
    .declines = declines,
    .tiles = tiles,
    .tasks = forward_tasks,
    .workspace = forward_workspace,
    .run = forward,
};

extern constinit const Kernel<Backward> kReferenceBackward{
    .name = "reference.backward",
    .only_if_forced = false,
    .takes = kTakenByRows | Features{Feature::dropout, Feature::dlse, Feature::dq, Feature::dk,
                                     Feature::dv, Feature::dbias, Feature::dsinks, Feature::dalibi,
                                     Feature::row_sums, Feature::query_runs},
    .stages = 1,
    .declines = declines,
    .tiles = tiles,
    .tasks = backward_tasks,
    .workspace = backward_workspace,
    .run = backward,
};

}  // namespace attend
