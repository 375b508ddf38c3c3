// Attention forward over ranks. Both schemes give the bits of the undivided call: a row meets all
// its keys in one call, cut into chunks as there.
#include "distributed/collective.h"

#include <optional>

namespace attend::distributed {
namespace {

constexpr const char* kFunction = "attention";

class ForwardRanks {
 public:
  ForwardRanks(WholeForward whole, Scheme scheme, Wire& wire)
      : whole_(std::move(whole)), local_(whole_.local), wire_(wire),
        heads_(scheme == Scheme::heads),
        keys_(wire.context(), whole_, local_.call,
              heads_ ? longest(whole_, false) : whole_.k_starts.back()) {
    if (!heads_) return;
    const std::int64_t rows = longest(whole_, true), group = whole_.group();
    const Problem& p = whole_.problem;
    q_ = WholeRows(wire.context(), group, rows, p.d, p.type);
    out_ = WholeRows(wire.context(), group, rows, p.dv, local_.problem.out_type);
    if (local_.problem.lse)
      lse_ = WholeRows(wire.context(), group, rows, 1, local_.problem.lse_type);
  }

  void run() {
    if (heads_) run_whole_heads();
    else gather();
  }

 private:
  void gather() {
    Exchange exchanges[2] = {Exchange(wire_), Exchange(wire_)};
    const Needs needs = Needs::of(whole_, false);
    const std::int64_t heads = whole_.problem.kv_heads;
    const auto moved = [&](std::int64_t h) { return moved_keys(whole_, local_.call, h, keys_); };
    for (const MovedTensor& t : moved(0)) clear_neighbours(whole_, needs, wire_.rank(), t);
    if (heads > 0) start_gather(whole_, wire_, moved(0), &needs, exchanges[0]);
    for (std::int64_t h = 0; h < heads; ++h) {
      if (h + 1 < heads) start_gather(whole_, wire_, moved(h + 1), &needs, exchanges[(h + 1) % 2]);
      finish_gather(whole_, wire_, moved(h), &needs, exchanges[h % 2]);
      for_blocks(whole_, true, {.owner = wire_.rank()},
                 [&](std::int64_t b, const Layout::Run& run) { compute_own_rows(h, b, run); });
    }
  }

  // The rank's own queries, against all keys.
  void compute_own_rows(std::int64_t kv_head, std::int64_t b, const Layout::Run& run) {
    const Call& from = local_.call;
    const std::int64_t head = kv_head * whole_.group(), at = whole_.local_batch(b);
    ForwardCall to;
    to.q = moved_to(from.q, at, head, run.local);
    to.out = moved_to(local_.call.out, at, head, run.local);
    to.lse = moved_to(local_.call.lse, at, head, run.local);
    compute({.b = b,
             .head = head,
             .heads = whole_.group(),
             .i_begin = run.begin,
             .i_end = run.end,
             .j_begin = 0,
             .j_end = whole_.sequences[static_cast<std::size_t>(b)].k_stored},
            whole_.k_starts[static_cast<std::size_t>(b)], to);
  }

  void run_whole_heads() {
    const ForwardCall& local = local_.call;
    const Problem& p = whole_.problem;
    const auto rows = [&](const Strided& from, const WholeRows& to, std::int64_t features,
                          const Item& item) {
      return MovedTensor{.local = from,
                         .whole = to.tensor(),
                         .features = features,
                         .local_head = item.kv_head * whole_.group(),
                         .heads = whole_.group(),
                         .first_row = whole_.q_starts[static_cast<std::size_t>(item.b)],
                         .queries = true};
    };
    HeadsRounds rounds;
    rounds.inputs = [&](const Item& item) {
      auto tensors = moved_keys(whole_, local, item.kv_head, keys_, item.b);
      tensors.push_back(rows(local.q, q_, p.d, item));
      return tensors;
    };
    rounds.outputs = [&](const Item& item) {
      std::vector<MovedTensor> tensors{rows(local.out, out_, p.dv, item)};
      if (local_.problem.lse) tensors.push_back(rows(local.lse, lse_, 1, item));
      return tensors;
    };
    rounds.compute = [&](const Item& item) {
      const Sequence& s = whole_.sequences[static_cast<std::size_t>(item.b)];
      ForwardCall to;
      to.q = q_.tensor();
      to.out = out_.tensor();
      to.lse = lse_.tensor();
      compute({.b = item.b,
               .head = item.kv_head * whole_.group(),
               .heads = whole_.group(),
               .i_begin = 0,
               .i_end = s.q_length,
               .j_begin = 0,
               .j_end = s.k_stored},
              0, to);
    };
    run_heads(whole_, wire_, rounds);
  }

  // `to`: q, out and lse of the piece. Its keys begin with row `key_row` of those at hand.
  void compute(const Piece& piece, std::int64_t key_row, const ForwardCall& to) {
    ForwardProblem problem;
    ForwardCall call;
    PieceMemory memory;
    cut(whole_, piece, problem, call, memory);
    problem.out_type = local_.problem.out_type;
    problem.lse = local_.problem.lse;
    problem.lse_type = local_.problem.lse_type;
    read_keys(whole_, keys_, key_row, call);
    call.q = to.q;
    call.out = to.out;
    call.lse = to.lse;
    run_piece<Forward>(kFunction, wire_.context(), problem, call);
  }

  const WholeForward whole_;
  const Request<Forward>& local_;
  Wire& wire_;
  const bool heads_;
  KeyRows keys_;
  WholeRows q_, out_, lse_;  // of the scheme `heads`: one item's
};

}  // namespace

void attention(Group& group, const Layouts& layouts, const ConstTensorView& q,
               const ConstTensorView& k, const ConstTensorView& v, const Required<TensorView>& out,
               const AttentionOptions& options, const AttentionOutputs& outputs,
               const DistributedOptions& distributed, Context& context) {
  reporting(kFunction, [&] {
    Wire wire(kFunction, group, distributed.timeout, context);
    std::optional<ForwardRanks> ranks;
    collective(
        kFunction, group, wire,
        [&](Record& record) {
          WholeForward whole =
              check_forward(group.rank(), group.size(), layouts, {q, k, v, out, options, outputs});
          const Scheme scheme = chosen_scheme(whole, distributed.scheme, group.size());
          record_whole(record, false, whole, options, distributed);
          record.type("the type of out", out.dtype());
          record.integer("lse", outputs.lse ? 1 : 0);
          if (outputs.lse) record.type("the type of lse", outputs.lse.dtype());
          ranks.emplace(std::move(whole), scheme, wire);
        },
        [&] { ranks->run(); });
  });
}

}  // namespace attend::distributed
