// The scheme `gather` backward: keys and values of all ranks come head by head, one ahead of the
// work; in one_process then q, dout and the rows' sums, while the next head's rows are computed.
#include "distributed/backward.h"

#include <algorithm>

namespace attend::distributed {
namespace {

KeyRows all_keys(const BackwardRanks& ranks, bool wanted) {
  return {ranks.wire.context(), ranks.whole, ranks.local.call,
          wanted ? ranks.whole.k_starts.back() : 0};
}

}  // namespace

GatherBackward::GatherBackward(BackwardRanks& ranks)
    : r_(ranks), keys_apart_(ranks.to_keys && ranks.bits == Bits::one_process),
      fast_keys_(ranks.to_keys && !keys_apart_),
      needs_(Needs::of(ranks.whole, keys_apart_)), keys_{all_keys(ranks, true),
                                                         all_keys(ranks, true),
                                                         all_keys(ranks, keys_apart_)},
      returned_(ranks.wire) {
  for (std::int64_t b = 0; b < r_.whole.batch(); ++b)
    own_.push_back(own_rows(r_.whole, r_.wire.rank(), b));
  const Context& context = r_.wire.context();
  const BackwardProblem& p = r_.local.problem;
  const std::int64_t rows = r_.whole.q_starts.back(), keys = r_.whole.k_starts.back();
  for (const bool of_k : {true, false}) {
    if (!(of_k ? p.dk : p.dv_gradient)) continue;
    const std::int64_t features = of_k ? p.d : p.dv;
    const DType type = of_k ? r_.local.call.k.type : r_.local.call.v.type;
    if (keys_apart_) (of_k ? dk_ : dv_) = WholeRows(context, 1, keys, features, type);
    if (!fast_keys_) continue;
    KeySums& sums = of_k ? dk_sums_ : dv_sums_;
    const DType of_sums = statistic_type(p.type);
    for (WholeRows& mine : sums.mine) mine = WholeRows(context, 1, keys, features, of_sums);
    sums.parts = WholeRows(context, r_.wire.size() * p.batch, p.k_length, features, of_sums);
    sums.features = features;
  }
  if (fast_keys_)
    joined_ = WholeRows(context, p.batch, p.k_length,
                        std::max(dk_sums_.features, dv_sums_.features), DType::f64);
  for (std::size_t n = 0; keys_apart_ && n < 2; ++n) {
    q_[n] = WholeRows(context, r_.group(), rows, p.d, p.type);
    dout_[n] = WholeRows(context, r_.group(), rows, p.dv, p.dout_type);
    sums_[n] = WholeRows(context, r_.group(), rows, kSumsOfKeys, DType::f64);
  }
}

const KeyRows& GatherBackward::keys_of(std::int64_t kv_head) const noexcept {
  return keys_[kv_head % (keys_apart_ ? 3 : 2)];
}

std::vector<MovedTensor> GatherBackward::moved_keys_of(std::int64_t kv_head) const {
  return moved_keys(r_.whole, r_.local.call, kv_head, keys_of(kv_head));
}

std::vector<MovedTensor> GatherBackward::moved_queries(std::int64_t kv_head) const {
  const BackwardProblem& p = r_.local.problem;
  const std::int64_t n = kv_head % 2;
  return {r_.moved_rows(r_.local.call.q, q_[n], p.d, kv_head),
          r_.moved_rows(r_.local.call.dout, dout_[n], p.dv, kv_head),
          r_.moved_rows(r_.sums_view, sums_[n], kSumsOfKeys, kv_head)};
}

void GatherBackward::run() {
  const WholeProblem& whole = r_.whole;
  Wire& wire = r_.wire;
  const std::int64_t heads = whole.problem.kv_heads;
  Exchange keys[2] = {Exchange(wire), Exchange(wire)}, rows[2] = {Exchange(wire), Exchange(wire)};
  const auto finish_keys = [&](std::int64_t h) {
    finish_gather(whole, wire, moved_queries(h), &needs_, rows[h % 2]);
    compute_keys(h);
    return_keys(h);
  };
  for (std::int64_t h = 0; h < std::min<std::int64_t>(heads, 3); ++h) {
    for (const MovedTensor& t : moved_keys_of(h)) clear_neighbours(whole, needs_, wire.rank(), t);
    if (!keys_apart_) continue;
    for (const MovedTensor& t : moved_queries(h)) clear_neighbours(whole, needs_, wire.rank(), t);
  }
  if (heads > 0) start_gather(whole, wire, moved_keys_of(0), &needs_, keys[0]);
  for (std::int64_t h = 0; h < heads; ++h) {
    if (h + 1 < heads) start_gather(whole, wire, moved_keys_of(h + 1), &needs_, keys[(h + 1) % 2]);
    finish_gather(whole, wire, moved_keys_of(h), &needs_, keys[h % 2]);
    for (std::int64_t b = 0; b < whole.batch(); ++b) compute_own_rows(h, b);
    if (fast_keys_ && h > 0) finish_sums(h - 1);
    if (fast_keys_) start_sums(h);
    if (keys_apart_) start_gather(whole, wire, moved_queries(h), &needs_, rows[h % 2]);
    if (keys_apart_ && h > 0) finish_keys(h - 1);
  }
  if (keys_apart_ && heads > 0) finish_keys(heads - 1);
  if (fast_keys_ && heads > 0) finish_sums(heads - 1);
}

// dq of the rank's own rows of a sequence, and their sums; in `fast` also what they add to dk and
// dv.
void GatherBackward::compute_own_rows(std::int64_t kv_head, std::int64_t b) {
  const BackwardProblem& local = r_.local.problem;
  const BackwardCall& from = r_.local.call;
  const OwnRows& own = own_[static_cast<std::size_t>(b)];
  const std::int64_t start = r_.whole.k_starts[static_cast<std::size_t>(b)];
  Piece piece = piece_of(r_.whole, b, kv_head);
  if (fast_keys_) {
    const KeyRange seen = own.count == 0 ? KeyRange{} : seen_keys(b);
    for (KeySums* sums : {&dk_sums_, &dv_sums_}) {
      sums->mine[kv_head % 2].clear(start, start + seen.begin);
      sums->mine[kv_head % 2].clear(start + seen.end, start + piece.j_end);
    }
    piece.j_begin = seen.begin;
    piece.j_end = seen.end;
  }
  if (own.count == 0 || (!local.dq && !r_.wants_sums() && !fast_keys_)) return;
  BackwardProblem problem;
  BackwardCall call;
  PieceMemory memory;
  cut_own_rows(r_.whole, own, piece, problem, call, memory);
  r_.take_types(problem);
  problem.undivided.heads = r_.whole.sizes.heads;
  read_keys(r_.whole, keys_of(kv_head), start + piece.j_begin, call);
  const auto mine = [&](const Strided& t) {
    return moved_to(t, r_.whole.local_batch(b), piece.head, own.first);
  };
  call.q = mine(from.q);
  call.dout = mine(from.dout);
  call.dlse = mine(from.dlse);
  problem.dlse = local.dlse;
  problem.dlse_type = local.dlse_type;
  call.dq = mine(from.dq);
  problem.dq = local.dq;
  if (fast_keys_) {
    const auto sums = [&](const KeySums& of) {
      return moved_to(of.mine[kv_head % 2].tensor(), 0, 0, start + piece.j_begin);
    };
    if ((problem.dk = local.dk)) call.dk = sums(dk_sums_);
    if ((problem.dv_gradient = local.dv_gradient)) call.dv = sums(dv_sums_);
  }
  if (r_.wants_sums()) r_.ask_for_sums(problem, call, mine(r_.sums_view));
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
  const std::int64_t n = kv_head % 2;
  BackwardProblem problem;
  BackwardCall call;
  PieceMemory memory;
  Piece piece = piece_of(r_.whole, b, kv_head);
  piece.j_begin = begin;
  piece.j_end = end;
  r_.cut_piece(piece, problem, call, memory);
  read_keys(r_.whole, keys_of(kv_head), key, call);
  problem.sums_read = true;
  call.sums = moved_to(sums_[n].tensor(), 0, 0, row);
  call.q = moved_to(q_[n].tensor(), 0, 0, row);
  call.dout = moved_to(dout_[n].tensor(), 0, 0, row);
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
  if (p.dk) tensors.push_back(r_.moved_gradient(local.dk, dk_, p.d, kv_head));
  if (p.dv_gradient) tensors.push_back(r_.moved_gradient(local.dv, dv_, p.dv, kv_head));
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

// From the first to the last that the rank's own rows may see, from a whole chunk on.
KeyRange GatherBackward::seen_keys(std::int64_t b) const {
  const Needs::Ranges& ranges =
      needs_.keys[static_cast<std::size_t>(r_.wire.rank())][static_cast<std::size_t>(b)];
  if (ranges.empty()) return {};
  return {ranges.front().begin / kGranule * kGranule, ranges.back().end};
}

// What a rank has summed goes to the owners of the keys, as far as its rows may see them.
RankRows GatherBackward::sent_sums(std::int64_t kv_head) const {
  return {
      .tensors =
          [this, kv_head](int) {
            std::vector<MovedTensor> tensors;
            for (const KeySums* sums : {&dk_sums_, &dv_sums_})
              if (sums->features != 0)
                tensors.push_back(r_.moved_gradient(sums->mine[kv_head % 2].tensor(),
                                                    sums->mine[kv_head % 2], sums->features, 0));
            return tensors;
          },
      .blocks =
          [this](int r) { return Blocks{.owner = r, .reader = r_.wire.rank(), .needs = &needs_}; },
      .place = Place::whole};
}

Strided GatherBackward::part_of(const KeySums& sums) const {
  const BackwardProblem& p = r_.local.problem;
  Strided t = sums.parts.tensor();
  t.stride[0] = p.k_length * sums.features;
  t.stride[1] = p.batch * t.stride[0];
  return t;
}

RankRows GatherBackward::received_sums() const {
  return {
      .tensors =
          [this](int r) {
            std::vector<MovedTensor> tensors;
            for (const KeySums* sums : {&dk_sums_, &dv_sums_})
              if (sums->features != 0)
                tensors.push_back(
                    r_.moved_gradient(part_of(*sums), sums->parts, sums->features, r));
            return tensors;
          },
      .blocks =
          [this](int r) { return Blocks{.owner = r_.wire.rank(), .reader = r, .needs = &needs_}; },
      .place = Place::local};
}

void GatherBackward::start_sums(std::int64_t kv_head) {
  start_rows(r_.whole, r_.wire, sent_sums(kv_head), received_sums(), &needs_, returned_);
}

void GatherBackward::finish_sums(std::int64_t kv_head) {
  finish_rows(r_.whole, r_.wire, received_sums(), returned_);
  const bool wide = statistic_type(r_.local.problem.type) == DType::f64;
  const auto join_one = [&](const KeySums& sums, const Strided& to) {
    if (sums.features == 0) return;
    if (wide) join<double>(sums, kv_head, to);
    else join<float>(sums, kv_head, to);
  };
  join_one(dk_sums_, r_.local.call.dk);
  join_one(dv_sums_, r_.local.call.dv);
}

// The sums of all ranks for the rank's own keys, in their order, rounded once.
template <class T>
void GatherBackward::join(const KeySums& sums, std::int64_t kv_head, const Strided& to) {
  const BackwardProblem& p = r_.local.problem;
  const std::int64_t features = sums.features;
  auto* const total = reinterpret_cast<double*>(joined_.tensor().data);
  std::fill_n(total, p.batch * p.k_length * features, 0.0);
  for (int r = 0; r < r_.wire.size(); ++r)
    for_blocks(r_.whole, false, {.owner = r_.wire.rank(), .reader = r, .needs = &needs_},
               [&](std::int64_t b, const Layout::Run& run) {
                 const std::int64_t at = r_.whole.local_batch(b);
                 const Strided part =
                     r == r_.wire.rank()
                         ? moved_to(sums.mine[kv_head % 2].tensor(), 0, 0,
                                    r_.whole.k_starts[static_cast<std::size_t>(b)] + run.begin)
                         : moved_to(part_of(sums), at, r, run.local);
                 const T* const more = reinterpret_cast<const T*>(part.data);
                 double* const sum = total + (at * p.k_length + run.local) * features;
                 for (std::int64_t x = 0; x < (run.end - run.begin) * features; ++x)
                   sum[x] += static_cast<double>(more[x]);
               });
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t j = 0; j < p.k_length; ++j)
      store_row(to, to.offset(b, kv_head, j), features, total + (b * p.k_length + j) * features);
}

}  // namespace attend::distributed
