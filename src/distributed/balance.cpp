#include "distributed/balance.h"

#include "core/mask.h"

#include <algorithm>
#include <numeric>

namespace attend::distributed {
namespace {

std::size_t at(std::int64_t n) noexcept { return static_cast<std::size_t>(n); }

double sum_of(const std::vector<double>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), 0.0);
}

// From the largest to the smallest; of equal ones the first comes first.
std::vector<std::size_t> descending(const std::vector<double>& weights) {
  std::vector<std::size_t> order(weights.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return weights[a] > weights[b]; });
  return order;
}

// The pairs of every granule of a layout's sequences; of a batch all elements' together.
std::vector<std::vector<double>> weights_of(const WholeProblem& whole, bool queries) {
  std::vector<std::vector<double>> weights(whole.packed() ? at(whole.batch()) : 1);
  for (std::int64_t b = 0; b < whole.batch(); ++b) {
    std::vector<double>& to = weights[at(whole.layout_sequence(b))];
    const std::vector<double> more = pairs_by_granule(whole, b, queries, kGranule);
    to.resize(more.size());
    for (std::size_t g = 0; g < more.size(); ++g) to[g] += more[g];
  }
  return weights;
}

// Each granule, the heaviest first, to the rank that stays lightest, of those that have not their
// share of positions yet. A granule has one weight or two; both are balanced.
std::vector<std::vector<int>> deal(const std::vector<std::vector<std::vector<double>>>& weights,
                                   int ranks) {
  struct Granule {
    std::size_t sequence, g;
  };
  std::vector<Granule> granules;
  std::vector<std::vector<double>> parts(weights.size());  // of each kind's sum
  for (std::size_t s = 0; s < weights[0].size(); ++s)
    for (std::size_t g = 0; g < weights[0][s].size(); ++g) granules.push_back({s, g});
  for (std::size_t kind = 0; kind < weights.size(); ++kind) {
    double sum = 0;
    for (const auto& sequence : weights[kind]) sum += sum_of(sequence);
    for (const auto& [s, g] : granules)
      parts[kind].push_back(sum == 0 ? 0 : weights[kind][s][g] / sum);
  }
  std::vector<double> heaviest(granules.size());
  for (const auto& part : parts)
    for (std::size_t n = 0; n < part.size(); ++n) heaviest[n] = std::max(heaviest[n], part[n]);

  std::vector<std::vector<int>> owners(weights[0].size());
  for (std::size_t s = 0; s < owners.size(); ++s) owners[s].resize(weights[0][s].size());
  const std::size_t most = (granules.size() + at(ranks) - 1) / at(ranks);
  std::vector<std::size_t> owned(at(ranks));
  std::vector<std::vector<double>> load(parts.size(), std::vector<double>(at(ranks)));
  for (const std::size_t n : descending(heaviest)) {
    std::size_t best = at(ranks);
    double least = 0;
    for (std::size_t r = 0; r < at(ranks); ++r) {
      if (owned[r] == most) continue;
      double after = 0;
      for (std::size_t kind = 0; kind < parts.size(); ++kind)
        after = std::max(after, load[kind][r] + parts[kind][n]);
      if (best < at(ranks) && (after > least || (after == least && owned[r] >= owned[best])))
        continue;
      best = r;
      least = after;
    }
    owners[granules[n].sequence][granules[n].g] = static_cast<int>(best);
    ++owned[best];
    for (std::size_t kind = 0; kind < parts.size(); ++kind) load[kind][best] += parts[kind][n];
  }
  return owners;
}

// Granules of all sequences, in order, and to whom they go.
class Neighbours {
 public:
  Neighbours(const std::vector<std::vector<double>>& weights, int ranks)
      : weights_(weights), ranks_(ranks), owned_(at(ranks)) {
    for (const auto& sequence : weights) {
      owners_.emplace_back(sequence.size(), 0);
      for (const double weight : sequence) {
        left_ += weight;
        ++(weight > 0 ? seen_ : unseen_);
      }
    }
    share_ = (seen_ + unseen_ + ranks - 1) / ranks;
  }

  // Those that are seen: a rank takes neighbours until it has its share of what is left of the
  // weights, but not more than twice its share of granules, nor so few that the others would have
  // more than that.
  void deal_seen() {
    const std::int64_t most = 2 * share_;
    double mine = 0;
    int rank = 0;
    each(true, [&](int& owner, double weight) {
      const auto can_go_on = [&] {
        return rank + 1 < ranks_ && seen_ <= most * (ranks_ - rank - 1);
      };
      const bool has_share = mine + weight / 2 > (left_ + mine) / (ranks_ - rank);
      if (can_go_on() && (owned_[at(rank)] == most || (owned_[at(rank)] > 0 && has_share))) {
        ++rank;
        mine = 0;
      }
      owner = rank;
      ++owned_[at(rank)];
      --seen_;
      mine += weight;
      left_ -= weight;
    });
  }

  // The others cost memory alone: they fill all ranks up to as many granules.
  void deal_unseen() {
    int rank = 0;
    each(false, [&](int& owner, double) {
      while (owned_[at(rank)] >= share_) ++rank;
      owner = rank;
      ++owned_[at(rank)];
    });
  }

  std::vector<std::vector<int>> owners() && { return std::move(owners_); }

 private:
  template <class Use>
  void each(bool seen, Use use) {
    for (std::size_t s = 0; s < owners_.size(); ++s)
      for (std::size_t g = 0; g < owners_[s].size(); ++g)
        if ((weights_[s][g] > 0) == seen) use(owners_[s][g], weights_[s][g]);
  }

  const std::vector<std::vector<double>>& weights_;
  const int ranks_;
  std::vector<std::int64_t> owned_;
  std::vector<std::vector<int>> owners_;
  std::int64_t seen_ = 0, unseen_ = 0;  // granules; of those that are seen, what is not dealt yet
  std::int64_t share_ = 0;              // of granules, of each rank
  double left_ = 0;                     // weight that is not dealt yet
};

std::vector<std::vector<int>> deal_neighbours(const std::vector<std::vector<double>>& weights,
                                              int ranks) {
  Neighbours neighbours(weights, ranks);
  neighbours.deal_seen();
  neighbours.deal_unseen();
  return std::move(neighbours).owners();
}

std::vector<std::vector<double>> added(std::vector<std::vector<double>> a,
                                       const std::vector<std::vector<double>>& b) {
  for (std::size_t s = 0; s < a.size(); ++s)
    for (std::size_t g = 0; g < a[s].size(); ++g) a[s][g] += b[s][g];
  return a;
}

// Whether a query sees little beside what its rank has, if neighbours are together.
bool is_narrow(const Problem& p, std::int64_t positions, int ranks) {
  const std::int64_t right = p.causal ? 0 : p.window_right;
  if (p.window_left == kUnlimited || right == kUnlimited) return false;
  const std::int64_t share = positions / ranks;
  return p.window_left < share && right < share - p.window_left;  // their sum may be none
}

std::vector<std::int64_t> lengths_of(const WholeProblem& whole, bool queries) {
  std::vector<std::int64_t> lengths;
  for (const Sequence& s : whole.sequences) lengths.push_back(queries ? s.q_length : s.k_stored);
  if (!whole.packed()) {
    const Problem& p = whole.problem;
    lengths.assign(1, queries ? p.q_length : p.k_length);
  }
  return lengths;
}

}  // namespace

std::vector<double> pairs_by_granule(const WholeProblem& whole, std::int64_t b, bool queries,
                                     std::int64_t granule) {
  const Sequence& s = whole.sequences[at(b)];
  const std::int64_t length = queries ? s.q_length : s.k_stored;
  std::vector<double> pairs(at((length + granule - 1) / granule));
  std::vector<double> steps(at(queries ? 0 : s.k_stored + 1));  // of the queries that see a key
  for (std::int64_t i = 0; i < s.q_length; ++i) {
    const KeyRange keys = positions(whole.problem, s, i);
    if (keys.begin >= keys.end) continue;
    if (queries) {
      pairs[at(i / granule)] += static_cast<double>(keys.end - keys.begin);
    } else {
      ++steps[at(keys.begin)];
      --steps[at(keys.end)];
    }
  }
  double seen = 0;
  for (std::int64_t j = 0; !queries && j < s.k_stored; ++j) {
    seen += steps[at(j)];
    pairs[at(j / granule)] += seen;
  }
  return pairs;
}

std::vector<std::vector<Item>> items_of(const WholeProblem& whole, int ranks) {
  std::vector<double> weights;
  std::vector<Item> items;
  for (std::int64_t b = 0; b < whole.batch(); ++b) {
    const double pairs = sum_of(pairs_by_granule(whole, b, true, kGranule));
    for (std::int64_t h = 0; h < whole.problem.kv_heads; ++h) {
      items.push_back({b, h});
      weights.push_back(pairs);
    }
  }
  std::vector<std::vector<Item>> of(at(ranks));
  std::vector<double> load(at(ranks));
  for (const std::size_t n : descending(weights)) {
    std::size_t best = 0;
    for (std::size_t r = 1; r < at(ranks); ++r)
      if (load[r] < load[best] || (load[r] == load[best] && of[r].size() < of[best].size()))
        best = r;
    of[best].push_back(items[n]);
    load[best] += weights[n];
  }
  return of;
}

Layouts balanced_layouts(const WholeSizes& sizes, const AttentionOptions& options, int ranks) {
  const WholeProblem whole = whole_of_sizes("balanced_layouts", sizes, options);
  const Problem& p = whole.problem;
  const std::vector<std::int64_t> queries = lengths_of(whole, true),
                                  keys = lengths_of(whole, false);
  const bool uneven = whole.packed() || p.key_lengths || p.window_left != kUnlimited ||
                      p.window_right != kUnlimited;
  if (!uneven || ranks < 1 || (!whole.packed() && p.batch == 0))  // there are no pairs to weigh
    return {Layout::serpentine(queries, ranks), Layout::serpentine(keys, ranks)};
  const auto q_weights = weights_of(whole, true), k_weights = weights_of(whole, false);
  const bool narrow = is_narrow(p, std::max(sizes.queries, sizes.keys), ranks);
  if (queries == keys) {
    const Layout both(queries,
                      narrow ? deal_neighbours(added(q_weights, k_weights), ranks)
                             : deal({q_weights, k_weights}, ranks),
                      ranks);
    return {both, both};
  }
  if (narrow)
    return {Layout(queries, deal_neighbours(q_weights, ranks), ranks),
            Layout(keys, deal_neighbours(k_weights, ranks), ranks)};
  return {Layout(queries, deal({q_weights}, ranks), ranks),
          Layout(keys, deal({k_weights}, ranks), ranks)};
}

}  // namespace attend::distributed
