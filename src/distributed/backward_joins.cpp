// dsinks, dalibi and dbias over ranks: sums over rows that many ranks own. Every rank receives what
// all rows have summed and adds it up, in the order of the undivided call. A dbias that has keys is
// computed column by column, 256 keys at a time, by the ranks in turn; they need q, k, v and dout
// of the whole for it, which is less than the bias that each of them has.
#include "distributed/backward.h"

#include <algorithm>
#include <cstring>

namespace attend::distributed {
namespace {

// A tensor of rows of all sequences, as the undivided call would address it.
Strided as_undivided(const WholeProblem& whole, const WholeRows& rows, bool queries) {
  Strided t = rows.tensor();
  const Problem& p = whole.problem;
  t.stride[0] = whole.packed() ? 0 : (queries ? p.q_length : p.k_length) * t.stride[2];
  return t;
}

Strided integers(const std::vector<std::int64_t>& list) {
  return {.data = reinterpret_cast<std::byte*>(const_cast<std::int64_t*>(list.data())),
          .type = DType::i64,
          .given = true,
          .stride = {1, 0, 0, 0}};
}

}  // namespace

JoinBackward::JoinBackward(BackwardRanks& ranks)
    : r_(ranks),
      nothing_(Shape{std::max(ranks.whole.problem.d, ranks.whole.problem.dv)}, DType::f64) {
  const Context& context = r_.wire.context();
  const BackwardProblem& p = r_.local.problem;
  const BackwardCall& local = r_.local.call;
  const std::int64_t rows = r_.whole.q_starts.back(), keys = r_.whole.k_starts.back();
  sums_ = WholeRows(context, p.heads, rows, kRowSums, DType::f64);
  if (!bias_of_keys()) return;
  q_ = WholeRows(context, p.heads, rows, p.d, p.type);
  dout_ = WholeRows(context, p.heads, rows, p.dv, p.dout_type);
  k_ = WholeRows(context, p.kv_heads, keys, p.d, local.k.type);
  v_ = WholeRows(context, p.kv_heads, keys, p.dv, local.v.type);
  if (p.k_scales) k_scales_ = WholeRows(context, p.kv_heads, keys, 1, DType::f32);
  if (p.v_scales) v_scales_ = WholeRows(context, p.kv_heads, keys, 1, DType::f32);
}

bool JoinBackward::bias_of_keys() const noexcept {
  return r_.whole.dbias && r_.whole.problem.dbias_keys != 1;
}

std::vector<MovedTensor> JoinBackward::moved() const {
  const BackwardProblem& p = r_.local.problem;
  const BackwardCall& local = r_.local.call;
  std::vector<MovedTensor> tensors;
  const auto add = [&](const Strided& from, const WholeRows& to, std::int64_t features,
                       bool queries) {
    tensors.push_back({.local = from,
                       .whole = to.tensor(),
                       .features = features,
                       .heads = queries ? p.heads : p.kv_heads,
                       .queries = queries,
                       .memory = to.memory()});
  };
  add(r_.sums_view, sums_, kRowSums, true);
  if (!bias_of_keys()) return tensors;
  add(local.q, q_, p.d, true);
  add(local.dout, dout_, p.dv, true);
  add(local.k, k_, p.d, false);
  add(local.v, v_, p.dv, false);
  if (p.k_scales) add(local.k_scales, k_scales_, 1, false);
  if (p.v_scales) add(local.v_scales, v_scales_, 1, false);
  return tensors;
}

void JoinBackward::run() {
  Exchange exchange(r_.wire);
  start_gather(r_.whole, r_.wire, moved(), nullptr, exchange);
  finish_gather(r_.whole, r_.wire, moved(), nullptr, exchange);
  join_rows();
  if (!bias_of_keys()) return;
  for (const Columns& columns : columns_of(r_.wire.rank())) compute_columns(columns);
  share_columns();
}

// The undivided call, but for what its rows have summed already. Its q, k, v and dout are not read,
// or are a row of zeros.
BackwardCall JoinBackward::call_of_rows() const {
  BackwardCall call;
  static_cast<Call&>(call) = r_.whole.call;
  const auto zeros = [&](DType type) {
    return Strided{.data = static_cast<std::byte*>(const_cast<void*>(nothing_.view().data())),
                   .type = type,
                   .given = true,
                   .stride = {0, 0, 0, 1}};
  };
  call.q = zeros(r_.local.problem.type);
  call.dout = zeros(r_.local.problem.dout_type);
  call.sums = as_undivided(r_.whole, sums_, true);
  return call;
}

void JoinBackward::join_rows() {
  BackwardProblem problem;
  static_cast<Problem&>(problem) = r_.whole.problem;
  BackwardCall call = call_of_rows();
  problem.out_type = r_.local.problem.out_type;
  problem.lse_type = r_.local.problem.lse_type;
  problem.dout_type = r_.local.problem.dout_type;
  problem.sums_read = true;
  problem.dsinks = r_.whole.dsinks;
  problem.dalibi = r_.whole.dalibi;
  problem.dbias = r_.whole.dbias && !bias_of_keys();
  if (!problem.dsinks && !problem.dalibi && !problem.dbias) return;
  call.dsinks = r_.whole.gradients.dsinks;
  call.dalibi = r_.whole.gradients.dalibi;
  call.dbias = r_.whole.gradients.dbias;
  run_piece<Backward>(kBackward, r_.wire.context(), problem, call);
}

// A single column would read as one that all keys share: it goes with those before it.
std::vector<JoinBackward::Columns> JoinBackward::columns_of(int rank) const {
  std::vector<Columns> all;
  const std::int64_t keys = r_.whole.problem.dbias_keys;
  for (std::int64_t at = 0; at < keys; at += kGranule) {
    if (keys - at == 1 && at > 0) all.back().end = keys;
    else all.push_back({at, std::min(keys, at + kGranule)});
  }
  std::vector<Columns> mine;
  for (std::size_t n = 0; n < all.size(); ++n)
    if (static_cast<int>(n % static_cast<std::size_t>(r_.wire.size())) == rank)
      mine.push_back(all[n]);
  return mine;
}

void JoinBackward::compute_columns(const Columns& columns) {
  const WholeProblem& whole = r_.whole;
  BackwardProblem problem;
  BackwardCall call = call_of_rows();
  PieceMemory memory;
  cut_keys(whole, columns.begin, columns.end, problem, call, memory);
  std::vector<std::int64_t> lengths, offsets;
  for (const Sequence& s : whole.sequences) {
    lengths.push_back(std::clamp<std::int64_t>(s.k_length - columns.begin, 0, problem.k_length));
    offsets.push_back(s.offset - columns.begin);
  }
  problem.key_lengths = problem.offset_each = true;
  call.key_lengths = integers(lengths);
  call.query_offset = integers(offsets);
  problem.out_type = r_.local.problem.out_type;
  problem.lse_type = r_.local.problem.lse_type;
  problem.dout_type = r_.local.problem.dout_type;
  problem.undivided = whole.sizes;
  problem.sums_read = problem.dbias = true;
  problem.dbias_keys = columns.end - columns.begin;
  call.q = as_undivided(whole, q_, true);
  call.dout = as_undivided(whole, dout_, true);
  const auto keys = [&](const WholeRows& rows) {
    return moved_to(as_undivided(whole, rows, false), 0, 0, columns.begin);
  };
  call.k = keys(k_);
  call.v = keys(v_);
  if (problem.k_scales) call.k_scales = keys(k_scales_);
  if (problem.v_scales) call.v_scales = keys(v_scales_);
  call.dbias = moved_to(r_.whole.gradients.dbias, 0, 0, 0, columns.begin);
  run_piece<Backward>(kBackward, r_.wire.context(), problem, call);
}

// Everybody has all of dbias in the end.
void JoinBackward::share_columns() {
  const Problem& p = r_.whole.problem;
  const Strided& dbias = r_.whole.gradients.dbias;
  const std::int64_t size = size_of(dbias.type);
  const auto each_element = [&](int rank, auto use) {
    std::int64_t place = 0;
    for (const Columns& columns : columns_of(rank))
      for (std::int64_t b = 0; b < p.dbias_batch; ++b)
        for (std::int64_t h = 0; h < p.dbias_heads; ++h)
          for (std::int64_t i = 0; i < p.dbias_queries; ++i)
            for (std::int64_t j = columns.begin; j < columns.end; ++j, place += size)
              use(dbias.data + dbias.offset(b, h, i, j) * size, place);
  };
  std::vector<std::int64_t> received;
  for (int r = 0; r < r_.wire.size(); ++r) {
    received.push_back(0);
    for (const Columns& columns : columns_of(r)) received.back() += columns.end - columns.begin;
    received.back() *= p.dbias_batch * p.dbias_heads * p.dbias_queries * size;
  }
  Exchange exchange(r_.wire);
  exchange.resize(received[static_cast<std::size_t>(r_.wire.rank())], received);
  std::byte* const to = exchange.to(r_.wire.rank());
  const auto bytes = static_cast<std::size_t>(size);
  each_element(r_.wire.rank(), [&](const std::byte* element, std::int64_t place) {
    std::memcpy(to + place, element, bytes);
  });
  exchange.start();
  exchange.wait();
  for (int r = 0; r < r_.wire.size(); ++r) {
    if (r == r_.wire.rank()) continue;
    const std::byte* const from = exchange.from(r);
    each_element(r, [&](std::byte* element, std::int64_t place) {
      std::memcpy(element, from + place, bytes);
    });
  }
}

}  // namespace attend::distributed
