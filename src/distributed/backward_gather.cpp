// The scheme `gather` backward: keys and values of all ranks come head by head, one ahead of the
// work; in one_process then q, dout and the rows' sums, while the next head's rows are computed.
#include "distributed/backward.h"

#include "core/mask.h"

#include <algorithm>

namespace attend::distributed {

GatherBackward::GatherBackward(BackwardRanks& ranks)
    : r_(ranks), keys_{KeyRows(ranks.wire.context(), ranks.whole, ranks.local.call,
                               ranks.whole.k_starts.back()),
                       KeyRows(ranks.wire.context(), ranks.whole, ranks.local.call,
                               ranks.to_keys && ranks.bits == Bits::one_process
                                   ? ranks.whole.k_starts.back()
                                   : 0)},
      returned_(ranks.wire) {
  if (!r_.to_keys) return;
  const Context& context = r_.wire.context();
  const BackwardProblem& p = r_.local.problem;
  const BackwardCall& local = r_.local.call;
  const std::int64_t rows = r_.whole.q_starts.back(), keys = r_.whole.k_starts.back();
  const bool fast = r_.bits == Bits::fast;
  if (p.dk) dk_ = WholeRows(context, 1, keys, p.d, fast ? DType::f64 : local.k.type);
  if (p.dv_gradient) dv_ = WholeRows(context, 1, keys, p.dv, fast ? DType::f64 : local.v.type);
  if (fast) {
    if (p.dk) part_dk_ = WholeRows(context, 1, longest(r_.whole, false), p.d, DType::f64);
    if (p.dv_gradient) part_dv_ = WholeRows(context, 1, longest(r_.whole, false), p.dv, DType::f64);
    return;
  }
  q_ = WholeRows(context, r_.group(), rows, p.d, p.type);
  dout_ = WholeRows(context, r_.group(), rows, p.dv, p.dout_type);
  sums_ = WholeRows(context, r_.group(), rows, kRowSums, DType::f64);
}

std::vector<MovedTensor> GatherBackward::moved_queries(std::int64_t kv_head) const {
  const BackwardProblem& p = r_.local.problem;
  return {r_.moved_rows(r_.local.call.q, q_.tensor(), p.d, kv_head),
          r_.moved_rows(r_.local.call.dout, dout_.tensor(), p.dv, kv_head),
          r_.moved_rows(r_.sums_view, sums_.tensor(), kSumsOfKeys, kv_head)};
}

void GatherBackward::run() {
  const WholeProblem& whole = r_.whole;
  Wire& wire = r_.wire;
  const std::int64_t heads = whole.problem.kv_heads;
  const bool keys_apart = r_.to_keys && r_.bits == Bits::one_process;
  const bool fast_keys = r_.to_keys && !keys_apart;
  const Needs needs = Needs::of(whole, keys_apart);
  Exchange keys[2] = {Exchange(wire), Exchange(wire)}, rows[2] = {Exchange(wire), Exchange(wire)};
  const auto moved = [&](std::int64_t h) {
    return moved_keys(whole, r_.local.call, h, keys_[keys_apart ? h % 2 : 0]);
  };
  const auto finish_keys = [&](std::int64_t h) {
    finish_gather(whole, wire, moved_queries(h), &needs, rows[h % 2]);
    compute_keys(h);
    return_keys(h);
  };
  for (std::int64_t h = 0; h < std::min<std::int64_t>(heads, 2); ++h) {
    for (const MovedTensor& t : moved(h)) clear_neighbours(whole, needs, wire.rank(), t);
    if (!keys_apart) continue;
    for (const MovedTensor& t : moved_queries(h)) clear_neighbours(whole, needs, wire.rank(), t);
  }
  if (heads > 0) start_gather(whole, wire, moved(0), &needs, keys[0]);
  for (std::int64_t h = 0; h < heads; ++h) {
    if (h + 1 < heads) start_gather(whole, wire, moved(h + 1), &needs, keys[(h + 1) % 2]);
    finish_gather(whole, wire, moved(h), &needs, keys[h % 2]);
    if (fast_keys && r_.local.problem.dk) dk_.clear();
    if (fast_keys && r_.local.problem.dv_gradient) dv_.clear();
    for_blocks(whole, true, {.owner = wire.rank()}, [&](std::int64_t b, const Layout::Run& run) {
      if (fast_keys) compute_rows_and_keys(h, b, run);
      else compute_rows(h, b, run);
    });
    if (fast_keys && h > 0) finish_sums(h - 1);
    if (fast_keys) start_sums(h);
    if (keys_apart) start_gather(whole, wire, moved_queries(h), &needs, rows[h % 2]);
    if (keys_apart && h > 0) finish_keys(h - 1);
  }
  if (keys_apart && heads > 0) finish_keys(heads - 1);
  if (fast_keys && heads > 0) finish_sums(heads - 1);
}

// dq of the rank's own rows, and their sums.
void GatherBackward::compute_rows(std::int64_t kv_head, std::int64_t b, const Layout::Run& run) {
  const BackwardProblem& local = r_.local.problem;
  const BackwardCall& from = r_.local.call;
  const std::int64_t head = kv_head * r_.group(), at = r_.whole.local_batch(b);
  if (!local.dq && !r_.wants_sums()) return;
  BackwardProblem problem;
  BackwardCall call;
  PieceMemory memory;
  r_.cut_piece({.b = b,
                .head = head,
                .heads = r_.group(),
                .i_begin = run.begin,
                .i_end = run.end,
                .j_begin = 0,
                .j_end = r_.sequence(b).k_stored},
               problem, call, memory);
  const bool two = r_.to_keys && r_.bits == Bits::one_process;
  read_keys(r_.whole, keys_[two ? kv_head % 2 : 0], r_.whole.k_starts[static_cast<std::size_t>(b)],
            call);
  call.q = moved_to(from.q, at, head, run.local);
  call.dout = moved_to(from.dout, at, head, run.local);
  call.dlse = moved_to(from.dlse, at, head, run.local);
  problem.dlse = local.dlse;
  problem.dlse_type = local.dlse_type;
  call.dq = moved_to(from.dq, at, head, run.local);
  problem.dq = local.dq;
  if (r_.wants_sums()) r_.ask_for_sums(problem, call, moved_to(r_.sums_view, at, head, run.local));
  run_piece<Backward>(kBackward, r_.wire.context(), problem, call);
}

// ---- one_process: dk and dv of whole chunks
// ------------------------------------------------------

void GatherBackward::compute_keys(std::int64_t kv_head) {
  for (std::int64_t b = 0; b < r_.whole.batch(); ++b) {
    const std::int64_t length = r_.sequence(b).k_stored;
    for (std::int64_t begin = 0, end; begin < length; begin = end) {
      const int worker = worker_of(r_.whole, b, begin);
      for (end = begin; end < length && worker_of(r_.whole, b, end) == worker;)
        end = std::min(length, end + kGranule);
      if (worker == r_.wire.rank()) compute_chunks(kv_head, b, begin, end);
    }
  }
}

void GatherBackward::compute_chunks(std::int64_t kv_head, std::int64_t b, std::int64_t begin,
                                    std::int64_t end) {
  const BackwardProblem& local = r_.local.problem;
  const std::int64_t row = r_.whole.q_starts[static_cast<std::size_t>(b)],
                     key = r_.whole.k_starts[static_cast<std::size_t>(b)] + begin;
  BackwardProblem problem;
  BackwardCall call;
  PieceMemory memory;
  r_.cut_piece({.b = b,
                .head = kv_head * r_.group(),
                .heads = r_.group(),
                .i_begin = 0,
                .i_end = r_.sequence(b).q_length,
                .j_begin = begin,
                .j_end = end},
               problem, call, memory);
  read_keys(r_.whole, keys_[kv_head % 2], key, call);
  problem.sums_read = true;
  call.sums = moved_to(sums_.tensor(), 0, 0, row);
  call.q = moved_to(q_.tensor(), 0, 0, row);
  call.dout = moved_to(dout_.tensor(), 0, 0, row);
  if ((problem.dk = local.dk)) call.dk = moved_to(dk_.tensor(), 0, 0, key);
  if ((problem.dv_gradient = local.dv_gradient)) call.dv = moved_to(dv_.tensor(), 0, 0, key);
  run_piece<Backward>(kBackward, r_.wire.context(), problem, call);
}

// From who computed a chunk to the owners of its keys, who are the same where granules are chunks.
void GatherBackward::return_keys(std::int64_t kv_head) {
  const BackwardProblem& p = r_.local.problem;
  const BackwardCall& local = r_.local.call;
  const int rank = r_.wire.rank(), ranks = r_.wire.size();
  std::vector<MovedTensor> tensors;
  if (p.dk) tensors.push_back(r_.moved_gradient(local.dk, dk_.tensor(), p.d, kv_head));
  if (p.dv_gradient) tensors.push_back(r_.moved_gradient(local.dv, dv_.tensor(), p.dv, kv_head));
  std::vector<std::int64_t> sent, received;
  for (int other = 0; other < ranks; ++other) {
    sent.push_back(bytes_of(r_.whole, tensors, {.owner = other, .worker = rank}));
    received.push_back(bytes_of(r_.whole, tensors, {.owner = rank, .worker = other}));
  }
  returned_.resize(sent, received);
  for (int other = 0; other < ranks; ++other)
    pack(r_.whole, tensors, {.owner = other, .worker = rank}, Place::whole, returned_.to(other));
  if (r_.whole.layouts->keys.granule() % kGranule != 0) {
    returned_.start();
    returned_.wait();
  }
  for (int other = 0; other < ranks; ++other)
    unpack(r_.whole, tensors, {.owner = rank, .worker = other}, Place::local,
           returned_.from(other));
}

// ---- fast: shares of dk and dv, joined in f64
// ----------------------------------------------------

void GatherBackward::compute_rows_and_keys(std::int64_t kv_head, std::int64_t b,
                                           const Layout::Run& run) {
  const BackwardProblem& local = r_.local.problem;
  const BackwardCall& from = r_.local.call;
  const Sequence& s = r_.sequence(b);
  const std::int64_t head = kv_head * r_.group(), at = r_.whole.local_batch(b);
  // The keys that some of these rows may see.
  std::int64_t begin = s.k_stored, end = 0;
  for (std::int64_t i = run.begin; i < run.end; ++i) {
    const KeyRange keys = positions(r_.whole.problem, s, i);
    if (keys.begin >= keys.end) continue;
    begin = std::min(begin, keys.begin / kGranule * kGranule);
    end = std::max(end, keys.end);
  }
  if (begin >= end) begin = end = 0;
  BackwardProblem problem;
  BackwardCall call;
  PieceMemory memory;
  r_.cut_piece({.b = b,
                .head = head,
                .heads = r_.group(),
                .i_begin = run.begin,
                .i_end = run.end,
                .j_begin = begin,
                .j_end = end},
               problem, call, memory);
  problem.undivided = {};
  const std::int64_t key = r_.whole.k_starts[static_cast<std::size_t>(b)] + begin;
  read_keys(r_.whole, keys_[0], key, call);
  call.q = moved_to(from.q, at, head, run.local);
  call.dout = moved_to(from.dout, at, head, run.local);
  call.dlse = moved_to(from.dlse, at, head, run.local);
  problem.dlse = local.dlse;
  problem.dlse_type = local.dlse_type;
  call.dq = moved_to(from.dq, at, head, run.local);
  problem.dq = local.dq;
  if ((problem.dk = local.dk)) call.dk = part_dk_.tensor();
  if ((problem.dv_gradient = local.dv_gradient)) call.dv = part_dv_.tensor();
  if (r_.wants_sums()) r_.ask_for_sums(problem, call, moved_to(r_.sums_view, at, head, run.local));
  run_piece<Backward>(kBackward, r_.wire.context(), problem, call);
  const auto add = [&](const WholeRows& part, const WholeRows& to, std::int64_t features) {
    const auto* more = reinterpret_cast<const double*>(part.tensor().data);
    auto* sum = reinterpret_cast<double*>(to.tensor().data) + key * features;
    for (std::int64_t x = 0; x < (end - begin) * features; ++x) sum[x] += more[x];
  };
  if (local.dk) add(part_dk_, dk_, local.d);
  if (local.dv_gradient) add(part_dv_, dv_, local.dv);
}

// The sums of this rank, to the owners of the keys.
void GatherBackward::start_sums(std::int64_t kv_head) {
  const BackwardProblem& p = r_.local.problem;
  std::vector<MovedTensor> tensors;
  if (p.dk) tensors.push_back(r_.moved_gradient(dk_.tensor(), dk_.tensor(), p.d, kv_head));
  if (p.dv_gradient)
    tensors.push_back(r_.moved_gradient(dv_.tensor(), dv_.tensor(), p.dv, kv_head));
  std::vector<std::int64_t> sent;
  for (int r = 0; r < r_.wire.size(); ++r)
    sent.push_back(bytes_of(r_.whole, tensors, {.owner = r}));
  returned_.resize(sent, std::vector<std::int64_t>(static_cast<std::size_t>(r_.wire.size()),
                                                   sent[static_cast<std::size_t>(r_.wire.rank())]));
  for (int r = 0; r < r_.wire.size(); ++r)
    pack(r_.whole, tensors, {.owner = r}, Place::whole, returned_.to(r));
  returned_.start();
}

// Those of all ranks, in their order, rounded once.
void GatherBackward::finish_sums(std::int64_t kv_head) {
  returned_.wait();
  const BackwardProblem& p = r_.local.problem;
  const BackwardCall& local = r_.local.call;
  const std::int64_t rows = p.batch * p.k_length;
  std::int64_t place = 0;  // in the messages
  const auto join = [&](const Strided& to, std::int64_t features) {
    std::vector<double> total(static_cast<std::size_t>(rows * features));
    for (int r = 0; r < r_.wire.size(); ++r) {
      const auto* part = reinterpret_cast<const double*>(returned_.from(r)) + place;
      for (std::size_t x = 0; x < total.size(); ++x) total[x] += part[x];
    }
    place += rows * features;
    for (std::int64_t b = 0; b < p.batch; ++b)
      for (std::int64_t j = 0; j < p.k_length; ++j)
        store_row(to, to.offset(b, kv_head, j), features,
                  total.data() + (b * p.k_length + j) * features);
  };
  if (p.dk) join(local.dk, p.d);
  if (p.dv_gradient) join(local.dv, p.dv);
}

}  // namespace attend::distributed
