#include "distributed/backward.h"

#include <algorithm>

namespace attend::distributed {

BackwardRanks::BackwardRanks(WholeBackward given, const DistributedOptions& distributed, Wire& over)
    : whole(std::move(given)), local(whole.local), wire(over),
      scheme(chosen_scheme(whole, distributed, over.size(), true)), bits(distributed.bits),
      joins(whole.dbias || whole.dsinks || whole.dalibi),
      to_keys(local.problem.dk || local.problem.dv_gradient),
      unused_dalibi(static_cast<std::size_t>(whole.group())) {
  if (!wants_sums()) return;
  const std::int64_t batch = local.problem.batch, heads = whole.problem.heads,
                     rows = local.problem.q_length;
  sums = wire.context().make_tensor({batch, heads, rows, kRowSums}, DType::f64);
  sums_view = {.data = static_cast<std::byte*>(sums.view().data()),
               .type = DType::f64,
               .given = true,
               .stride = {heads * rows * kRowSums, rows * kRowSums, kRowSums, 1}};
}

// Of the two parts of `gather` in one_process, or of the one there is else.
void BackwardRanks::record_kernels(Record& record) {
  if (whole.batch() == 0 || whole.problem.kv_heads == 0) return;
  const bool keys_apart = scheme == Scheme::gather && bits == Bits::one_process;
  const auto record_part = [&](bool rows, bool keys) {
    BackwardProblem problem;
    BackwardCall call;
    PieceMemory memory;
    cut_piece(piece_of(whole, 0, 0), problem, call, memory);
    problem.dq = rows && local.problem.dq;
    problem.dk = keys && local.problem.dk;
    problem.dv_gradient = keys && local.problem.dv_gradient;
    problem.dlse = rows && local.problem.dlse;
    problem.dlse_type = local.problem.dlse_type;
    problem.sums_written = rows && wants_sums();
    problem.dalibi = problem.sums_written && whole.dalibi;
    problem.sums_read = !rows;
    const RunsOfRanks runs = runs_of_ranks(whole);
    const bool in_runs = rows && scheme == Scheme::gather && runs.several;
    if (!in_runs || runs.one) record_kernel<Backward>(record, wire.context(), problem);
    if (!in_runs) return;
    problem.packed_queries = problem.query_runs = true;
    record_kernel<Backward>(record, wire.context(), problem);
  };
  record_part(true, !keys_apart);
  if (keys_apart && to_keys) record_part(false, true);
}

void BackwardRanks::cut_piece(const Piece& piece, BackwardProblem& problem, BackwardCall& call,
                              PieceMemory& memory) {
  cut(whole, piece, problem, call, memory);
  take_types(problem);
  problem.undivided = whole.sizes;
}

void BackwardRanks::take_types(BackwardProblem& problem) const {
  problem.out_type = local.problem.out_type;
  problem.lse_type = local.problem.lse_type;
  problem.dout_type = local.problem.dout_type;
}

void BackwardRanks::ask_for_sums(BackwardProblem& problem, BackwardCall& call, const Strided& to) {
  problem.sums_written = true;
  call.sums = to;
  problem.dalibi = whole.dalibi;
  if (!whole.dalibi) return;
  call.dalibi = {.data = reinterpret_cast<std::byte*>(unused_dalibi.data()),
                 .type = DType::f64,
                 .given = true,
                 .stride = {0, 1, 0, 0}};
}

MovedTensor BackwardRanks::moved_rows(const Strided& from, const WholeRows& to,
                                      std::int64_t features, std::int64_t kv_head,
                                      std::int64_t b) const {
  return {.local = from,
          .whole = to.tensor(),
          .features = features,
          .local_head = kv_head * group(),
          .heads = group(),
          .first_row = b < 0 ? 0 : whole.q_starts[static_cast<std::size_t>(b)],
          .queries = true,
          .memory = to.memory()};
}

MovedTensor BackwardRanks::moved_gradient(const Strided& to, const WholeRows& from,
                                          std::int64_t features, std::int64_t kv_head,
                                          std::int64_t b) const {
  return {.local = to,
          .whole = from.tensor(),
          .features = features,
          .local_head = kv_head,
          .heads = 1,
          .first_row = b < 0 ? 0 : whole.k_starts[static_cast<std::size_t>(b)],
          .memory = from.memory()};
}

// ---- The scheme `heads`
// --------------------------------------------------------------------------

HeadsBackward::HeadsBackward(BackwardRanks& ranks)
    : r_(ranks),
      keys_(ranks.wire.context(), ranks.whole, ranks.local.call, longest(ranks.whole, false)) {
  const Context& context = r_.wire.context();
  const BackwardProblem& p = r_.local.problem;
  const BackwardCall& local = r_.local.call;
  const std::int64_t rows = longest(r_.whole, true), keys = longest(r_.whole, false);
  q_ = WholeRows(context, r_.group(), rows, p.d, p.type);
  dout_ = WholeRows(context, r_.group(), rows, p.dv, p.dout_type);
  if (p.dlse) dlse_ = WholeRows(context, r_.group(), rows, 1, p.dlse_type);
  if (p.dq) dq_ = WholeRows(context, r_.group(), rows, p.d, p.type);
  if (p.dk) dk_ = WholeRows(context, 1, keys, p.d, local.k.type);
  if (p.dv_gradient) dv_ = WholeRows(context, 1, keys, p.dv, local.v.type);
  if (r_.wants_sums()) sums_ = WholeRows(context, r_.group(), rows, kRowSums, DType::f64);
}

void HeadsBackward::run() {
  const BackwardProblem& p = r_.local.problem;
  const BackwardCall& local = r_.local.call;
  HeadsRounds rounds;
  rounds.inputs = [&](const Item& item) {
    auto tensors = moved_keys(r_.whole, local, item.kv_head, keys_, item.b);
    tensors.push_back(r_.moved_rows(local.q, q_, p.d, item.kv_head, item.b));
    tensors.push_back(r_.moved_rows(local.dout, dout_, p.dv, item.kv_head, item.b));
    if (p.dlse) tensors.push_back(r_.moved_rows(local.dlse, dlse_, 1, item.kv_head, item.b));
    return tensors;
  };
  rounds.outputs = [&](const Item& item) {
    std::vector<MovedTensor> tensors;
    if (p.dq) tensors.push_back(r_.moved_rows(local.dq, dq_, p.d, item.kv_head, item.b));
    if (p.dk) tensors.push_back(r_.moved_gradient(local.dk, dk_, p.d, item.kv_head, item.b));
    if (p.dv_gradient)
      tensors.push_back(r_.moved_gradient(local.dv, dv_, p.dv, item.kv_head, item.b));
    if (r_.wants_sums())
      tensors.push_back(r_.moved_rows(r_.sums_view, sums_, kRowSums, item.kv_head, item.b));
    return tensors;
  };
  rounds.compute = [&](const Item& item) { compute(item); };
  run_heads(r_.whole, r_.wire, rounds);
}

void HeadsBackward::compute(const Item& item) {
  const BackwardProblem& local = r_.local.problem;
  BackwardProblem problem;
  BackwardCall call;
  PieceMemory memory;
  r_.cut_piece(piece_of(r_.whole, item.b, item.kv_head), problem, call, memory);
  read_keys(r_.whole, keys_, 0, call);
  call.q = q_.tensor();
  call.dout = dout_.tensor();
  if ((problem.dlse = local.dlse)) call.dlse = dlse_.tensor(), problem.dlse_type = local.dlse_type;
  if ((problem.dq = local.dq)) call.dq = dq_.tensor();
  if ((problem.dk = local.dk)) call.dk = dk_.tensor();
  if ((problem.dv_gradient = local.dv_gradient)) call.dv = dv_.tensor();
  if (r_.wants_sums()) r_.ask_for_sums(problem, call, sums_.tensor());
  run_piece<Backward>(kBackward, r_.wire.context(), problem, call);
}

// ---- The call
// ------------------------------------------------------------------------------------

void attention_backward(Group& group, const Layouts& layouts, const BackwardInputs& inputs,
                        const AttentionOptions& options, const AttentionGradients& gradients,
                        const DistributedOptions& distributed, Context& context) {
  reporting(kBackward, [&] {
    Wire wire(kBackward, group, distributed.timeout, context);
    std::optional<BackwardRanks> ranks;
    std::optional<GatherBackward> gather;
    std::optional<HeadsBackward> heads;
    std::optional<JoinBackward> joins;
    collective(
        kBackward, group, wire,
        [&](Record& record) {
          WholeBackward whole =
              check_backward(group.rank(), group.size(), layouts, {inputs, options, gradients});
          record_whole(record, true, whole, options, distributed);
          record.type("the type of out", inputs.out.dtype());
          record.type("the type of lse", inputs.lse.dtype());
          record.type("the type of dout", inputs.dout.dtype());
          record.integer("dlse", inputs.dlse ? 1 : 0);
          if (inputs.dlse) record.type("the type of dlse", inputs.dlse.dtype());
          for (const auto& [name, wanted] : {std::pair{"dq", bool(gradients.dq)},
                                             {"dk", bool(gradients.dk)},
                                             {"dv", bool(gradients.dv)},
                                             {"dbias", bool(gradients.dbias)},
                                             {"dsinks", bool(gradients.dsinks)},
                                             {"dalibi", bool(gradients.dalibi)}})
            record.integer(name, wanted ? 1 : 0);
          ranks.emplace(std::move(whole), distributed, wire);
          ranks->record_kernels(record);
          if (ranks->scheme == Scheme::heads) heads.emplace(*ranks);
          else gather.emplace(*ranks);
          if (ranks->joins) joins.emplace(*ranks);
        },
        [&] {
          if (heads) heads->run();
          if (gather) gather->run();
          if (joins) joins->run();
        });
  });
}

}  // namespace attend::distributed
