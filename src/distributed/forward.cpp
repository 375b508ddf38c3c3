// Attention forward over ranks. Both schemes give the bits of the undivided call: a row meets all
// its keys in one call, cut into chunks as there.
#include "core/partial_state.h"
#include "distributed/collective.h"

#include <algorithm>
#include <map>
#include <optional>

namespace attend::distributed {
namespace {

constexpr const char* kFunction = "attention";

class ForwardRanks {
 public:
  ForwardRanks(WholeForward whole, Scheme scheme, Wire& wire)
      : whole_(std::move(whole)), local_(whole_.local), wire_(wire),
        heads_(scheme == Scheme::heads),
        states_(!heads_ && ships_states(whole_)), keys_{KeyRows(wire.context(), whole_, local_.call,
                                                                states_  ? 0
                                                                : heads_ ? longest(whole_, false)
                                                                         : whole_.k_starts.back()),
                                                        KeyRows(wire.context(), whole_, local_.call,
                                                                states_ || heads_
                                                                    ? 0
                                                                    : whole_.k_starts.back())} {
    if (states_) make_states();
    for (std::int64_t b = 0; b < whole_.batch(); ++b)
      own_.push_back(own_rows(whole_, wire.rank(), b));
    if (!heads_) return;
    const std::int64_t rows = longest(whole_, true), group = whole_.group();
    const Problem& p = whole_.problem;
    q_ = WholeRows(wire.context(), group, rows, p.d, p.type);
    out_ = WholeRows(wire.context(), group, rows, p.dv, local_.problem.out_type);
    if (local_.problem.lse)
      lse_ = WholeRows(wire.context(), group, rows, 1, local_.problem.lse_type);
  }

  void record_kernels(Record& record) const {
    if (whole_.batch() == 0 || whole_.problem.kv_heads == 0) return;
    ForwardProblem problem;
    ForwardCall call;
    PieceMemory memory;
    cut(whole_, piece_of(whole_, 0, 0), problem, call, memory);
    if (states_) write_state(problem);
    else take_types(problem);
    const RunsOfRanks runs = runs_of_ranks(whole_);
    const bool in_runs = !heads_ && !states_ && runs.several;
    if (!in_runs || runs.one) record_kernel<Forward>(record, wire_.context(), problem);
    if (!in_runs) return;
    problem.packed_queries = problem.query_runs = true;
    record_kernel<Forward>(record, wire_.context(), problem);
  }

  void run() {
    if (heads_) run_whole_heads();
    else if (states_) join_states();
    else gather();
  }

 private:
  void gather() {
    Exchange exchanges[2] = {Exchange(wire_), Exchange(wire_)};
    const Needs needs = Needs::of(whole_, false);
    const std::int64_t heads = whole_.problem.kv_heads;
    const auto moved = [&](std::int64_t h) {
      return moved_keys(whole_, local_.call, h, keys_[h % 2]);
    };
    for (const std::int64_t h : {0, 1})
      for (const MovedTensor& t : moved(h)) clear_neighbours(whole_, needs, wire_.rank(), t);
    if (heads > 0) start_gather(whole_, wire_, moved(0), &needs, exchanges[0]);
    for (std::int64_t h = 0; h < heads; ++h) {
      if (h + 1 < heads) start_gather(whole_, wire_, moved(h + 1), &needs, exchanges[(h + 1) % 2]);
      finish_gather(whole_, wire_, moved(h), &needs, exchanges[h % 2]);
      for (std::int64_t b = 0; b < whole_.batch(); ++b) compute_own_rows(h, b);
    }
  }

  // The rank's own queries of a sequence, against all its keys.
  void compute_own_rows(std::int64_t kv_head, std::int64_t b) {
    const OwnRows& own = own_[static_cast<std::size_t>(b)];
    if (own.count == 0) return;
    ForwardProblem problem;
    ForwardCall call;
    PieceMemory memory;
    cut_own_rows(whole_, own, piece_of(whole_, b, kv_head), problem, call, memory);
    read_keys(whole_, keys_[kv_head % 2], whole_.k_starts[static_cast<std::size_t>(b)], call);
    const auto mine = [&](const Strided& t) {
      return moved_to(t, whole_.local_batch(b), kv_head * whole_.group(), own.first);
    };
    call.q = mine(local_.call.q);
    call.out = mine(local_.call.out);
    call.lse = mine(local_.call.lse);
    compute(problem, call);
  }

  // ---- Few queries: they go to the keys, and states of chunks of 256 come back ------------------

  void make_states() {
    for (const KeyChunk& chunk : key_chunks(whole_)) chunks_[chunk.worker].push_back(chunk);
    const std::int64_t rows = whole_.q_starts.back(), group = whole_.group();
    const Problem& p = whole_.problem;
    const auto mine = static_cast<std::int64_t>(chunks_[wire_.rank()].size());
    q_ = WholeRows(wire_.context(), group, rows, p.d, p.type);
    state_rows_ = WholeRows(wire_.context(), mine * group, rows, p.dv + kStateColumns, DType::f64);
  }

  void join_states() {
    Exchange queries(wire_), states(wire_);
    for (std::int64_t h = 0; h < whole_.problem.kv_heads; ++h) {
      const std::vector<MovedTensor> q{{.local = local_.call.q,
                                        .whole = q_.tensor(),
                                        .features = whole_.problem.d,
                                        .local_head = h * whole_.group(),
                                        .heads = whole_.group(),
                                        .queries = true,
                                        .memory = q_.memory()}};
      start_gather(whole_, wire_, q, nullptr, queries);
      finish_gather(whole_, wire_, q, nullptr, queries);
      const auto& mine = chunks_[wire_.rank()];
      for (std::size_t n = 0; n < mine.size(); ++n) compute_state(h, n, mine[n]);
      exchange_states(states);
      for (std::int64_t b = 0; b < whole_.batch(); ++b) finish_rows(h, b, states);
    }
  }

  MovedTensor moved_state(std::size_t n) const {
    MovedTensor t{
        .features = whole_.problem.dv + kStateColumns, .heads = whole_.group(), .queries = true};
    t.whole = moved_to(state_rows_.tensor(), 0, static_cast<std::int64_t>(n) * whole_.group(), 0);
    t.local.type = DType::f64;
    return t;
  }
  // Bytes of a chunk's states for the rows of an owner.
  std::int64_t state_bytes(int owner, std::int64_t b) const {
    return bytes_of(whole_, {moved_state(0)}, {.owner = owner, .b = b});
  }

  // All queries of the chunk's sequence, against the rank's own keys. Sinks go with the first keys.
  void compute_state(std::int64_t kv_head, std::size_t n, const KeyChunk& chunk) {
    const std::int64_t at = whole_.local_batch(chunk.b), row = local_key(chunk);
    const std::int64_t q_start = whole_.q_starts[static_cast<std::size_t>(chunk.b)];
    ForwardProblem problem;
    ForwardCall call;
    PieceMemory memory;
    Piece piece = piece_of(whole_, chunk.b, kv_head);
    piece.j_begin = chunk.begin;
    piece.j_end = chunk.end;
    cut(whole_, piece, problem, call, memory);
    write_state(problem);
    problem.sinks = problem.sinks && chunk.begin == 0;
    call.q = moved_to(q_.tensor(), 0, 0, q_start);
    call.k = moved_to(local_.call.k, at, kv_head, row);
    call.v = moved_to(local_.call.v, at, kv_head, row);
    call.k_scales = moved_to(local_.call.k_scales, at, kv_head, row);
    call.v_scales = moved_to(local_.call.v_scales, at, kv_head, row);
    call.state = moved_to(moved_state(n).whole, 0, 0, q_start);
    run_piece<Forward>(kFunction, wire_.context(), problem, call);
  }
  static void write_state(ForwardProblem& problem) noexcept {
    problem.out_type = problem.type;
    problem.state = true;
  }
  // Where the rank has its first key.
  std::int64_t local_key(const KeyChunk& chunk) const {
    for (const Layout::Run& run : whole_.layouts->keys.runs(wire_.rank()))
      if (run.sequence == whole_.layout_sequence(chunk.b) && run.begin <= chunk.begin &&
          chunk.begin < run.end)
        return run.local + chunk.begin - run.begin;
    return 0;
  }

  // Each chunk's states to the owners of their rows.
  void exchange_states(Exchange& exchange) {
    std::vector<std::int64_t> sent, received;
    for (int r = 0; r < wire_.size(); ++r) {
      sent.push_back(0);
      for (const KeyChunk& chunk : chunks_[wire_.rank()]) sent.back() += state_bytes(r, chunk.b);
      received.push_back(0);
      for (const KeyChunk& chunk : chunks_[r])
        received.back() += state_bytes(wire_.rank(), chunk.b);
    }
    exchange.resize(sent, received);
    for (int r = 0; r < wire_.size(); ++r) {
      std::byte* message = exchange.to(r);
      const auto& mine = chunks_[wire_.rank()];
      for (std::size_t n = 0; n < mine.size(); ++n) {
        pack(whole_, {moved_state(n)}, {.owner = r, .b = mine[n].b}, Place::whole, message);
        message += state_bytes(r, mine[n].b);
      }
    }
    exchange.start();
    exchange.wait();
  }

  // Joins the states of the rank's rows of b, in the order of the keys. The rows lie side by side,
  // here and in the messages.
  void finish_rows(std::int64_t kv_head, std::int64_t b, const Exchange& exchange) {
    const std::int64_t first = own_[static_cast<std::size_t>(b)].first;
    const std::int64_t rows = own_[static_cast<std::size_t>(b)].count;
    if (rows == 0) return;
    const Problem& p = whole_.problem;
    const std::int64_t group = whole_.group(), columns = p.dv + kStateColumns;
    std::vector<std::pair<std::int64_t, ConstTensorView>> states;  // by the first key
    for (int r = 0; r < wire_.size(); ++r) {
      const std::byte* message = exchange.from(r);
      for (const KeyChunk& chunk : chunks_[r]) {
        if (chunk.b == b)
          states.emplace_back(chunk.begin,
                              ConstTensorView(message, DType::f64, {1, group, rows, columns}));
        message += state_bytes(wire_.rank(), chunk.b);
      }
    }
    std::sort(states.begin(), states.end(),
              [](const auto& x, const auto& y) { return x.first < y.first; });
    std::vector<ConstTensorView> in_order;
    in_order.reserve(states.size());
    for (const auto& state : states) in_order.push_back(state.second);
    const auto view = [&](const Strided& t, std::int64_t features) {
      const Strided at = moved_to(t, whole_.local_batch(b), kv_head * group, first);
      return features == 0 ? TensorView(at.data, at.type, {1, group, rows},
                                        {at.stride[0], at.stride[1], at.stride[2]})
                           : TensorView(at.data, at.type, {1, group, rows, features},
                                        {at.stride[0], at.stride[1], at.stride[2], at.stride[3]});
    };
    finish(in_order, view(local_.call.out, p.dv),
           local_.problem.lse ? view(local_.call.lse, 0) : TensorView());
  }

  // finish_partial(), which joins in f32 or f64. A kernel that is for 16 bits alone, and was
  // forced, declines that: then the best of the others joins, to the same bits.
  void finish(const std::vector<ConstTensorView>& states, const TensorView& out,
              const TensorView& lse) {
    ContextState& state = ContextState::of(wire_.context());
    std::vector<Part> parts;
    const Request<Forward> request = check(StatesArguments{kFunction, states, {}, out, lse}, parts);
    std::shared_ptr<const Decision<Forward>> plan;
    try {
      plan = state.plan_for<Forward>(request.problem);
    } catch (const Unsupported&) {
      plan = std::make_shared<const Decision<Forward>>(
          decide<Forward>(request.problem, state.machine, state.threads, {}));
    }
    state.execute(kFunction, *plan, request.call);
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
      auto tensors = moved_keys(whole_, local, item.kv_head, keys_[0], item.b);
      tensors.push_back(rows(local.q, q_, p.d, item));
      return tensors;
    };
    rounds.outputs = [&](const Item& item) {
      std::vector<MovedTensor> tensors{rows(local.out, out_, p.dv, item)};
      if (local_.problem.lse) tensors.push_back(rows(local.lse, lse_, 1, item));
      return tensors;
    };
    rounds.compute = [&](const Item& item) {
      ForwardProblem problem;
      ForwardCall call;
      PieceMemory memory;
      cut(whole_, piece_of(whole_, item.b, item.kv_head), problem, call, memory);
      read_keys(whole_, keys_[0], 0, call);
      call.q = q_.tensor();
      call.out = out_.tensor();
      call.lse = lse_.tensor();
      compute(problem, call);
    };
    run_heads(whole_, wire_, rounds);
  }

  void take_types(ForwardProblem& problem) const noexcept {
    problem.out_type = local_.problem.out_type;
    problem.lse = local_.problem.lse;
    problem.lse_type = local_.problem.lse_type;
  }
  // A piece whose tensors are known.
  void compute(ForwardProblem& problem, const ForwardCall& call) {
    take_types(problem);
    run_piece<Forward>(kFunction, wire_.context(), problem, call);
  }

  const WholeForward whole_;
  const Request<Forward>& local_;
  Wire& wire_;
  const bool heads_;
  const bool states_;                            // queries go to the keys
  std::map<int, std::vector<KeyChunk>> chunks_;  // of each rank
  WholeRows state_rows_;                         // [chunk and head][query][dv + 4]
  KeyRows keys_[2];                              // gathered: of this key head, and of the next
  std::vector<OwnRows> own_;                     // of each sequence
  WholeRows q_, out_, lse_;                      // of the scheme `heads`: one item's
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
          const Scheme scheme = chosen_scheme(whole, distributed, group.size(), false);
          record_whole(record, false, whole, options, distributed);
          record.type("the type of out", out.dtype());
          record.integer("lse", outputs.lse ? 1 : 0);
          if (outputs.lse) record.type("the type of lse", outputs.lse.dtype());
          ranks.emplace(std::move(whole), scheme, wire);
          ranks->record_kernels(record);
        },
        [&] { ranks->run(); });
  });
}

}  // namespace attend::distributed
