// What a call will cost: the bytes of the very messages that it would send, its buffers, its work.
#include "core/partial_state.h"
#include "core/row_sums.h"
#include "core/text.h"
#include "distributed/balance.h"
#include "distributed/rows.h"
#include "distributed/scheme.h"

#include <algorithm>
#include <iomanip>

namespace attend::distributed {
namespace {

std::size_t nth(std::int64_t n) noexcept { return static_cast<std::size_t>(n); }

// Tensors as messages see them: a type and a row.
struct Tensors {
  std::vector<MovedTensor> list;
  void add(DType type, std::int64_t features, std::int64_t heads, bool queries) {
    MovedTensor t{.features = features, .heads = heads, .queries = queries};
    t.local.type = type;
    list.push_back(t);
  }
  std::int64_t row_bytes() const {
    std::int64_t bytes = 0;
    for (const MovedTensor& t : list) bytes += t.heads * t.features * size_of(t.local.type);
    return bytes;
  }
};

class Costs {
 public:
  Costs(const WholeProblem& whole, const Layouts& layouts, DistributedPlan& plan)
      : whole_(whole), ranks_(layouts.queries.ranks()), plan_(plan), p_(whole.problem) {
    plan.forward.resize(nth(ranks_));
    plan.backward.resize(nth(ranks_));
  }

  void gather() {
    const bool one_process = plan_.bits == Bits::one_process;
    const Tensors keys = keys_of(p_.kv_heads), gradients = key_gradients(p_.kv_heads);
    const Needs forward = Needs::of(whole_, false), backward = Needs::of(whole_, one_process);
    if (ships_states(whole_)) states();
    else send(plan_.forward, keys, &forward);
    send(plan_.backward, keys, &backward);
    if (one_process) {
      Tensors rows = tensors({{p_.d, true}, {p_.dv, true}}, p_.heads);
      rows.add(DType::f64, kSumsOfKeys, p_.heads, true);
      send(plan_.backward, rows, &backward);
      if (whole_.layouts->keys.granule() % kGranule != 0)
        each_pair([&](int from, int to) {
          move(plan_.backward, from, to,
               bytes_of(whole_, gradients.list, {.owner = to, .worker = from}));
        });
    } else {
      Tensors sums;
      sums.add(statistic_type(p_.type), p_.d, p_.kv_heads, false);
      sums.add(statistic_type(p_.type), p_.dv, p_.kv_heads, false);
      each_pair([&](int from, int to) {
        move(plan_.backward, from, to,
             bytes_of(whole_, sums.list, {.owner = to, .reader = from, .needs = &backward}));
      });
    }
    const std::vector<double> rows = own_pairs(true), chunks = own_pairs(false);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      plan_.forward[r].products = 2 * (ships_states(whole_) ? chunks[r] : rows[r]);
      plan_.backward[r].products = one_process ? 3 * rows[r] + 4 * chunks[r] : 5 * rows[r];
    }
    // Two heads are at hand or on their way to where they are read; in one_process three.
    const std::int64_t of_keys = whole_.k_starts.back(),
                       of_rows = whole_.q_starts.back() * p_.group();
    const std::int64_t key_bytes = of_keys * keys_of(1).row_bytes();
    const std::int64_t gradient_bytes = of_keys * key_gradients(1).row_bytes();
    const std::int64_t sum_bytes = of_keys * (p_.d + p_.dv) * size_of(statistic_type(p_.type));
    const std::int64_t row_bytes = of_rows * ((p_.d + p_.dv) * size_of(p_.type) + kSumsOfKeys * 8);
    const auto messages = [&](const RankCost& cost, const Needs& needs) {
      const Tensors of_head = keys_of(1);
      const bool many = transfers_of(whole_, of_head.list, &needs) > kMostTransfers;
      return many ? under_way(cost, p_.kv_heads) : 0;
    };
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const auto owned = [&](bool queries) {
        return (whole_.packed() ? 1 : whole_.batch()) *
               whole_.layout(queries).owned(static_cast<int>(r));
      };
      plan_.forward[r].memory = ships_states(whole_)
                                    ? under_way(plan_.forward[r], p_.kv_heads) + state_bytes(r)
                                    : 2 * key_bytes + messages(plan_.forward[r], forward);
      const std::int64_t own_sums = owned(true) * p_.heads * kRowSums * size_of(DType::f64);
      const std::int64_t own_keys = owned(false) * key_gradients(1).row_bytes();
      const std::int64_t joined = owned(false) * std::max(p_.d, p_.dv) * size_of(DType::f64);
      RankCost& cost = plan_.backward[r];
      cost.memory =
          messages(cost, backward) +
          (one_process ? 2 * (key_bytes + gradient_bytes) + 2 * row_bytes + own_sums + own_keys
                       : 2 * key_bytes + 3 * sum_bytes + joined);
    }
  }

  // Queries to all, states of their rows back.
  void states() {
    send(plan_.forward, tensors({{p_.d, true}}, p_.heads), nullptr);
    Tensors state;
    state.add(DType::f64, p_.dv + kStateColumns, p_.heads, true);
    for (const KeyChunk& chunk : key_chunks(whole_))
      for (int owner = 0; owner < ranks_; ++owner)
        if (owner != chunk.worker)
          move(plan_.forward, chunk.worker, owner,
               bytes_of(whole_, state.list, {.owner = owner, .b = chunk.b}));
  }

  // Of the chunks that a rank computes, and the queries, of one key head.
  std::int64_t state_bytes(std::size_t rank) const {
    std::int64_t bytes = whole_.q_starts.back() * p_.d * size_of(p_.type);
    for (const KeyChunk& chunk : key_chunks(whole_))
      if (nth(chunk.worker) == rank)
        bytes += whole_.q_starts.back() * (p_.dv + kStateColumns) * size_of(DType::f64);
    return bytes * p_.group();
  }

  void heads() {
    const auto items = items_of(whole_, ranks_);
    const Tensors in = keys_of(1), gradients = key_gradients(1),
                  q = tensors({{p_.d, true}}, p_.group()),
                  out = tensors({{p_.dv, true}}, p_.group());
    std::vector<RankCost> own_forward(nth(ranks_)), own_backward(nth(ranks_));  // in messages, too
    std::size_t rounds = 1;
    for (int r = 0; r < ranks_; ++r) {
      rounds = std::max(rounds, items[nth(r)].size());
      for (const Item& item : items[nth(r)]) {
        for (int owner = 0; owner < ranks_; ++owner) {
          const Blocks rows{.owner = owner, .b = item.b};
          const std::int64_t keys = bytes_of(whole_, in.list, rows),
                             key_gradients = bytes_of(whole_, gradients.list, rows),
                             queries = bytes_of(whole_, q.list, rows),
                             values = bytes_of(whole_, out.list, rows);
          if (owner == r) {
            own_forward[nth(r)].sent += keys + queries + values;
            own_backward[nth(r)].sent += keys + key_gradients + 2 * queries + values;
            continue;
          }
          move(plan_.forward, owner, r, keys + queries);
          move(plan_.forward, r, owner, values);
          move(plan_.backward, owner, r, keys + queries + values);
          move(plan_.backward, r, owner, key_gradients + queries);
        }
        double pairs = 0;
        for (const double more : pairs_by_granule(whole_, item.b, true, kGranule)) pairs += more;
        plan_.forward[nth(r)].products += 2 * static_cast<double>(p_.group()) * pairs;
        plan_.backward[nth(r)].products += 5 * static_cast<double>(p_.group()) * pairs;
      }
    }
    // One item's rows, and the messages of a round, or of two.
    const std::int64_t rows = p_.q_length * p_.group() * size_of(p_.type),
                       keys = p_.k_length * in.row_bytes(),
                       of_gradients = p_.k_length * gradients.row_bytes();
    const auto hold = [&](std::vector<RankCost>& costs, const std::vector<RankCost>& own,
                          std::int64_t at_hand) {
      for (std::size_t r = 0; r < costs.size(); ++r) {
        const std::int64_t messages = costs[r].sent + costs[r].received + own[r].sent;
        costs[r].memory =
            at_hand + messages * (rounds > 1 ? 2 : 1) / static_cast<std::int64_t>(rounds);
      }
    };
    hold(plan_.forward, own_forward, rows * (p_.d + p_.dv) + keys);
    hold(plan_.backward, own_backward, rows * (2 * p_.d + p_.dv) + keys + of_gradients);
  }

 private:
  // k and v, which may have types of their own, with their scales; and what has gradients of them.
  Tensors keys_of(std::int64_t heads) const { return key_rows(heads, false); }
  Tensors key_gradients(std::int64_t heads) const { return key_rows(heads, true); }
  Tensors key_rows(std::int64_t heads, bool gradients) const {
    Tensors result;
    const auto add = [&](DType type, std::int64_t features, bool scales) {
      if (gradients && !is_floating_point(type)) return;
      result.add(type, features, heads, false);
      if (scales && !gradients) result.add(DType::f32, 1, heads, false);
    };
    add(type_of_k(p_), p_.d, p_.k_scales);
    add(type_of_v(p_), p_.dv, p_.v_scales);
    return result;
  }
  Tensors tensors(std::initializer_list<std::pair<std::int64_t, bool>> rows, std::int64_t heads) {
    Tensors result;
    for (const auto& [features, queries] : rows) result.add(p_.type, features, heads, queries);
    return result;
  }
  template <class Use>
  void each_pair(Use use) {
    for (int from = 0; from < ranks_; ++from)
      for (int to = 0; to < ranks_; ++to)
        if (from != to) use(from, to);
  }
  void move(std::vector<RankCost>& costs, int from, int to, std::int64_t bytes) {
    costs[nth(from)].sent += bytes;
    costs[nth(to)].received += bytes;
  }
  void send(std::vector<RankCost>& costs, const Tensors& t, const Needs* needs) {
    each_pair([&](int from, int to) {
      move(costs, from, to,
           bytes_of(whole_, t.list, {.owner = from, .reader = to, .needs = needs}));
    });
  }
  static std::int64_t under_way(const RankCost& cost, std::int64_t rounds) {
    return rounds == 0 ? 0 : 2 * (cost.sent + cost.received) / rounds;
  }

  // Of each rank's queries, or of the keys whose gradients it computes, and all heads.
  std::vector<double> own_pairs(bool queries) {
    std::vector<double> sums(nth(ranks_));
    const std::int64_t granule = queries ? whole_.layouts->queries.granule() : kGranule;
    for (std::int64_t b = 0; b < whole_.batch(); ++b) {
      const std::vector<double> pairs = pairs_by_granule(whole_, b, queries, granule);
      for (std::size_t g = 0; g < pairs.size(); ++g) {
        const std::int64_t at = static_cast<std::int64_t>(g) * granule;
        const int owner = queries ? whole_.layouts->queries.owner(whole_.layout_sequence(b), at)
                                  : worker_of(whole_, b, at);
        sums[nth(owner)] += static_cast<double>(p_.heads) * pairs[g];
      }
    }
    return sums;
  }

  const WholeProblem& whole_;
  const int ranks_;
  DistributedPlan& plan_;
  const Problem& p_;
};

std::string line_of(const char* name, const std::vector<RankCost>& costs) {
  RankCost most;
  double all = 0;
  std::int64_t sent = 0;
  for (const RankCost& cost : costs) {
    most.sent = std::max(most.sent, cost.sent);
    most.received = std::max(most.received, cost.received);
    most.memory = std::max(most.memory, cost.memory);
    most.products = std::max(most.products, cost.products);
    all += cost.products;
    sent += cost.sent;
  }
  const auto mebibytes = [](std::int64_t bytes) {
    std::ostringstream os;
    os << std::fixed << std::setprecision(1) << static_cast<double>(bytes) / (1 << 20) << " MiB";
    return os.str();
  };
  std::ostringstream balance;
  const auto ranks = static_cast<double>(costs.size());
  balance << std::fixed << std::setprecision(3) << (all == 0 ? 1 : most.products * ranks / all);
  return text("  ", name, ": ", mebibytes(sent), " between ranks, a rank sends at most ",
              mebibytes(most.sent), " and receives ", mebibytes(most.received), ", holds ",
              mebibytes(most.memory), "; work max/mean ", balance.str(), "\n");
}

}  // namespace

DistributedPlan plan(const Layouts& layouts, const WholeSizes& sizes,
                     const AttentionOptions& options, const DistributedOptions& distributed) {
  const WholeProblem whole = whole_of_sizes("plan", sizes, options, &layouts);
  const auto plan_of = [&](bool backward) {
    DistributedPlan plan;
    plan.bits = distributed.bits;
    plan.scheme = chosen_scheme(whole, distributed, layouts.queries.ranks(), backward);
    Costs costs(whole, layouts, plan);
    if (plan.scheme == Scheme::heads) costs.heads();
    else costs.gather();
    return plan;
  };
  DistributedPlan plan = plan_of(false), backward = plan_of(true);
  plan.backward_scheme = backward.scheme;
  plan.backward = std::move(backward.backward);
  return plan;
}

std::string DistributedPlan::describe() const {
  const auto name = [](Scheme of) {
    return of == Scheme::heads ? ", whole heads" : ", keys gathered";
  };
  return text("attention over ", forward.size(), forward.size() == 1 ? " rank" : " ranks",
              name(scheme), backward_scheme == scheme ? "" : name(backward_scheme),
              backward_scheme == scheme ? ", " : " backward, ",
              bits == Bits::fast ? "fast" : "the bits of one process", "\n",
              line_of("forward", forward), line_of("backward", backward));
}

}  // namespace attend::distributed
