#include "distributed/collective.h"

#include <algorithm>

namespace attend::distributed {
namespace {

std::size_t index(std::int64_t n) noexcept { return static_cast<std::size_t>(n); }

}  // namespace

std::int64_t longest(const WholeProblem& whole, bool queries) {
  std::int64_t most = 0;
  for (const Sequence& s : whole.sequences)
    most = std::max(most, queries ? s.q_length : s.k_stored);
  return most;
}

void record_whole(Record& record, bool backward, const WholeProblem& whole,
                  const AttentionOptions& options, const DistributedOptions& distributed) {
  const Problem& p = whole.problem;
  const auto fail = [&](const auto&... parts) {
    throw InvalidArgument(text(backward ? "attention_backward: " : "attention: ", parts...));
  };
  if (distributed.scheme > Scheme::gather)
    fail("scheme is ", static_cast<int>(distributed.scheme),
         "; it must be automatic, heads or gather");
  if (distributed.bits > Bits::fast)
    fail("bits is ", static_cast<int>(distributed.bits), "; it must be one_process or fast");
  if (distributed.timeout.count() <= 0)
    fail("timeout is ", distributed.timeout.count(), " ms; it must be above 0");
  record.integer("operation (0 forward, 1 backward)", backward ? 1 : 0);
  for (const auto& [name, size] : {std::pair{"batch", p.batch},
                                   {"heads", p.heads},
                                   {"key heads", p.kv_heads},
                                   {"queries", whole.layouts->queries.total()},
                                   {"keys", whole.layouts->keys.total()},
                                   {"d", p.d},
                                   {"dv", p.dv}})
    record.integer(name, size);
  record.type("the type of q", p.type);
  record.type("the type of k", type_of_k(p));
  record.type("the type of v", type_of_v(p));
  record.layout("layouts.queries", whole.layouts->queries);
  record.layout("layouts.keys", whole.layouts->keys);
  record.options(options);
  record.integer("scheme", static_cast<int>(distributed.scheme));
  record.integer("bits", static_cast<int>(distributed.bits));
}

void refuse_call(Group& group, const std::string& what_is_wrong,
                 const DistributedOptions& distributed, Context& context) {
  constexpr const char* kFunction = "refuse_call";
  reporting(kFunction, [&] {
    Wire wire(kFunction, group, distributed.timeout, context);
    collective(
        kFunction, group, wire, [&](Record&) { throw InvalidArgument(what_is_wrong); }, [] {});
  });
  throw InvalidArgument(what_is_wrong);  // not reached: agree() throws
}

// ---- Keys of one key head
// ------------------------------------------------------------------------

KeyRows::KeyRows(const Context& context, const WholeProblem& whole, const Call& local,
                 std::int64_t rows) {
  const Problem& p = whole.problem;
  k = WholeRows(context, 1, rows, p.d, local.k.type);
  v = WholeRows(context, 1, rows, p.dv, local.v.type);
  if (p.k_scales) k_scales = WholeRows(context, 1, rows, 1, DType::f32);
  if (p.v_scales) v_scales = WholeRows(context, 1, rows, 1, DType::f32);
}

std::vector<MovedTensor> moved_keys(const WholeProblem& whole, const Call& local,
                                    std::int64_t kv_head, const KeyRows& to, std::int64_t b) {
  const Problem& p = whole.problem;
  std::vector<MovedTensor> tensors;
  const auto add = [&](const Strided& from, const WholeRows& rows, std::int64_t features) {
    tensors.push_back({.local = from,
                       .whole = rows.tensor(),
                       .features = features,
                       .local_head = kv_head,
                       .heads = 1,
                       .first_row = b < 0 ? 0 : whole.k_starts[index(b)],
                       .memory = rows.memory()});
  };
  add(local.k, to.k, p.d);
  add(local.v, to.v, p.dv);
  if (p.k_scales) add(local.k_scales, to.k_scales, 1);
  if (p.v_scales) add(local.v_scales, to.v_scales, 1);
  return tensors;
}

void read_keys(const WholeProblem& whole, const KeyRows& keys, std::int64_t row, Call& call) {
  const Problem& p = whole.problem;
  call.k = moved_to(keys.k.tensor(), 0, 0, row);
  call.v = moved_to(keys.v.tensor(), 0, 0, row);
  if (p.k_scales) call.k_scales = moved_to(keys.k_scales.tensor(), 0, 0, row);
  if (p.v_scales) call.v_scales = moved_to(keys.v_scales.tensor(), 0, 0, row);
}

// ---- Rounds
// --------------------------------------------------------------------------------------

namespace {

// Block by block of every tensor and head, as many of each for every rank.
std::vector<MemoryBlocks> blocks_of(const WholeProblem& whole, const Wire& wire,
                                    const RankRows& rows, const Needs* needs) {
  std::vector<MemoryBlocks> all(index(wire.size()));
  for (int r = 0; r < wire.size(); ++r) {
    if (r == wire.rank()) continue;
    MemoryBlocks& mine = all[index(r)];
    std::size_t end = 0;
    for (const MovedTensor& t : rows.tensors(r))
      for (std::int64_t h = 0; h < t.heads; ++h) {
        const auto some = memory_of(whole, t, h, rows.blocks(r), rows.place);
        mine.insert(mine.end(), some.begin(), some.end());
        mine.resize(end += most_blocks(whole, t.queries, needs));
      }
  }
  return all;
}

std::vector<std::int64_t> sizes_of(const WholeProblem& whole, const Wire& wire,
                                   const RankRows& rows) {
  std::vector<std::int64_t> bytes;
  bytes.reserve(index(wire.size()));
  for (int r = 0; r < wire.size(); ++r)
    bytes.push_back(r == wire.rank() ? 0 : bytes_of(whole, rows.tensors(r), rows.blocks(r)));
  return bytes;
}

RankRows gathered(const std::vector<MovedTensor>& tensors, std::function<Blocks(int)> blocks) {
  return {
      .tensors = [&](int) { return tensors; }, .blocks = std::move(blocks), .place = Place::whole};
}
RankRows gathered_from_others(const Wire& wire, const std::vector<MovedTensor>& tensors,
                              const Needs* needs) {
  return gathered(tensors, [&wire, needs](int r) {
    return Blocks{.owner = r, .reader = wire.rank(), .needs = needs};
  });
}

}  // namespace

void start_rows(const WholeProblem& whole, Wire& wire, const RankRows& send,
                const RankRows& receive, const Needs* needs, Exchange& exchange) {
  const std::size_t transfers = transfers_of(whole, send.tensors(wire.rank()), needs);
  if (transfers <= kMostTransfers) {
    std::vector<std::shared_ptr<const void>> memory;
    for (const RankRows* rows : {&send, &receive})
      for (const MovedTensor& t : rows->tensors(wire.rank())) memory.push_back(t.memory);
    exchange.start(wire.size() == 1 ? 0 : transfers, blocks_of(whole, wire, send, needs),
                   blocks_of(whole, wire, receive, needs), std::move(memory));
    return;
  }
  exchange.resize(sizes_of(whole, wire, send), sizes_of(whole, wire, receive));
  for (int r = 0; r < wire.size(); ++r)
    if (r != wire.rank()) pack(whole, send.tensors(r), send.blocks(r), send.place, exchange.to(r));
  exchange.start();
}

void finish_rows(const WholeProblem& whole, Wire& wire, const RankRows& receive,
                 Exchange& exchange) {
  const bool in_place = exchange.in_place();
  exchange.wait();
  for (int r = 0; !in_place && r < wire.size(); ++r)
    if (r != wire.rank())
      unpack(whole, receive.tensors(r), receive.blocks(r), receive.place, exchange.from(r));
}

void start_gather(const WholeProblem& whole, Wire& wire, const std::vector<MovedTensor>& tensors,
                  const Needs* needs, Exchange& exchange) {
  for (const MovedTensor& t : tensors) place_rows(whole, t, wire.rank());
  const RankRows send = gathered(tensors, [&wire, needs](int r) {
    return Blocks{.owner = wire.rank(), .reader = r, .needs = needs};
  });
  start_rows(whole, wire, send, gathered_from_others(wire, tensors, needs), needs, exchange);
}

void finish_gather(const WholeProblem& whole, Wire& wire, const std::vector<MovedTensor>& tensors,
                   const Needs* needs, Exchange& exchange) {
  finish_rows(whole, wire, gathered_from_others(wire, tensors, needs), exchange);
}

namespace {

// One round of the scheme `heads` in both directions.
class Round {
 public:
  Round(const WholeProblem& whole, Wire& wire, const HeadsRounds& rounds,
        const std::vector<std::vector<Item>>& items)
      : whole_(whole), wire_(wire), rounds_(rounds), items_(items), inputs_(wire), outputs_(wire) {}

  void start_inputs(std::size_t n) {
    number_ = n;
    resize(inputs_, rounds_.inputs, true);
    each_item([&](int r, const Item& item) {
      pack(whole_, rounds_.inputs(item), {.owner = wire_.rank(), .b = item.b}, Place::local,
           inputs_.to(r));
    });
    inputs_.start();
  }
  void compute() {
    inputs_.wait();
    const Item* mine = item_of(wire_.rank());
    for (int r = 0; mine != nullptr && r < wire_.size(); ++r)
      unpack(whole_, rounds_.inputs(*mine), {.owner = r, .b = mine->b}, Place::whole,
             inputs_.from(r));
    if (mine != nullptr) rounds_.compute(*mine);
    resize(outputs_, rounds_.outputs, false);
    for (int r = 0; mine != nullptr && r < wire_.size(); ++r)
      pack(whole_, rounds_.outputs(*mine), {.owner = r, .b = mine->b}, Place::whole,
           outputs_.to(r));
    outputs_.start();
  }
  void finish() {
    if (!outputs_.started()) return;
    outputs_.wait();
    each_item([&](int r, const Item& item) {
      unpack(whole_, rounds_.outputs(item), {.owner = wire_.rank(), .b = item.b}, Place::local,
             outputs_.from(r));
    });
  }

 private:
  const Item* item_of(int rank) const {
    const auto& items = items_[index(rank)];
    return number_ < items.size() ? &items[number_] : nullptr;
  }
  template <class Use>
  void each_item(Use use) const {
    for (int r = 0; r < wire_.size(); ++r)
      if (const Item* item = item_of(r)) use(r, *item);
  }
  // To the ranks of items go this rank's rows of them, and back; from and to the owners of this
  // rank's item, theirs.
  void resize(Exchange& exchange, const std::function<std::vector<MovedTensor>(const Item&)>& moved,
              bool forth) {
    std::vector<std::int64_t> to_items(index(wire_.size())), to_owners(index(wire_.size()));
    each_item([&](int r, const Item& item) {
      to_items[index(r)] = bytes_of(whole_, moved(item), {.owner = wire_.rank(), .b = item.b});
    });
    if (const Item* mine = item_of(wire_.rank()))
      for (int r = 0; r < wire_.size(); ++r)
        to_owners[index(r)] = bytes_of(whole_, moved(*mine), {.owner = r, .b = mine->b});
    if (forth) exchange.resize(to_items, to_owners);
    else exchange.resize(to_owners, to_items);
  }

  const WholeProblem& whole_;
  Wire& wire_;
  const HeadsRounds& rounds_;
  const std::vector<std::vector<Item>>& items_;
  std::size_t number_ = 0;
  Exchange inputs_, outputs_;
};

}  // namespace

void run_heads(const WholeProblem& whole, Wire& wire, const HeadsRounds& rounds) {
  const auto items = items_of(whole, wire.size());
  std::size_t count = 0;
  for (const auto& of_rank : items) count = std::max(count, of_rank.size());
  if (count == 0) return;
  Round turns[2] = {{whole, wire, rounds, items}, {whole, wire, rounds, items}};
  turns[0].start_inputs(0);
  for (std::size_t n = 0; n < count; ++n) {
    Round &now = turns[n % 2], &next = turns[(n + 1) % 2];
    next.finish();  // what it sent in its last round
    if (n + 1 < count) next.start_inputs(n + 1);
    now.compute();
  }
  for (Round& turn : turns) turn.finish();
}

}  // namespace attend::distributed
