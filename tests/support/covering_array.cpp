#include "covering_array.h"

#include "cases/random.h"

#include <algorithm>
#include <numeric>

namespace attend::test {
namespace {

// Which pairs of (factor, level) and (factor, level) are still to be covered.
class OpenPairs {
 public:
  explicit OpenPairs(const std::vector<int>& levels) {
    for (const int count : levels) {
      first_.push_back(total_);
      total_ += count;
    }
    open_.assign(static_cast<std::size_t>(total_ * total_), false);
    for (int f = 0; f < static_cast<int>(levels.size()); ++f)
      for (int g = f + 1; g < static_cast<int>(levels.size()); ++g)
        for (int a = 0; a < levels[static_cast<std::size_t>(f)]; ++a)
          for (int b = 0; b < levels[static_cast<std::size_t>(g)]; ++b) {
            open_[index(f, a, g, b)] = true;
            pairs_.push_back({f, a, g, b});
          }
  }

  struct Pair {
    int f, a, g, b;
  };
  const Pair* first_open() {
    while (next_ < pairs_.size()) {
      const Pair& pair = pairs_[next_];
      if (open_[index(pair.f, pair.a, pair.g, pair.b)]) return &pair;
      ++next_;
    }
    return nullptr;
  }
  void close(const Pair& pair) { open_[index(pair.f, pair.a, pair.g, pair.b)] = false; }

  // How many open pairs level a of factor f makes with what a row holds; closes them on request.
  int meets(const CoveringRow& row, int f, int a, bool close) {
    int count = 0;
    for (int g = 0; g < static_cast<int>(row.size()); ++g) {
      const int b = row[static_cast<std::size_t>(g)];
      if (g == f || b < 0) continue;
      const std::size_t n = f < g ? index(f, a, g, b) : index(g, b, f, a);
      count += open_[n];
      if (close) open_[n] = false;
    }
    return count;
  }

 private:
  std::size_t index(int f, int a, int g, int b) const {
    const int from = first_[static_cast<std::size_t>(f)] + a;
    const int to = first_[static_cast<std::size_t>(g)] + b;
    return static_cast<std::size_t>(from * total_ + to);
  }

  int total_ = 0;
  std::vector<int> first_;
  std::vector<bool> open_;
  std::vector<Pair> pairs_;
  std::size_t next_ = 0;
};

class Generator {
 public:
  Generator(const std::vector<int>& levels, const std::function<bool(const CoveringRow&)>& allowed,
            std::uint64_t seed)
      : levels_(levels), allowed_(allowed), open_(levels), random_(seed, 0) {}

  std::vector<CoveringRow> rows() {
    std::vector<CoveringRow> rows;
    while (const OpenPairs::Pair* pair = open_.first_open()) {
      CoveringRow best;
      int most = 0;
      for (int candidate = 0; candidate < kCandidates; ++candidate) {
        CoveringRow row = complete(*pair);
        if (row.empty()) continue;
        int count = 0;
        for (int f = 0; f < factors(); ++f)
          count += open_.meets(row, f, row[static_cast<std::size_t>(f)], false);
        if (count > most) {
          most = count;
          best = row;
        }
      }
      if (best.empty()) {
        open_.close(*pair);  // infeasible
        continue;
      }
      for (int f = 0; f < factors(); ++f)
        open_.meets(best, f, best[static_cast<std::size_t>(f)], true);
      rows.push_back(best);
    }
    return rows;
  }

 private:
  static constexpr int kCandidates = 30;

  int factors() const { return static_cast<int>(levels_.size()); }

  // A row that holds the pair; the other factors in random order, each at the level that meets most
  // open pairs. Empty if a factor has no allowed level.
  CoveringRow complete(const OpenPairs::Pair& pair) {
    CoveringRow row(levels_.size(), -1);
    row[static_cast<std::size_t>(pair.f)] = pair.a;
    row[static_cast<std::size_t>(pair.g)] = pair.b;
    if (!allowed_(row)) return {};
    std::vector<int> order(levels_.size());
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t n = order.size() - 1; n > 0; --n)
      std::swap(order[n], order[static_cast<std::size_t>(below(static_cast<int>(n) + 1))]);
    for (const int f : order) {
      int& chosen = row[static_cast<std::size_t>(f)];
      if (chosen >= 0) continue;
      const int count = levels_[static_cast<std::size_t>(f)], start = below(count);
      int best = -1, most = -1;
      for (int n = 0; n < count; ++n) {
        const int level = (start + n) % count;
        chosen = level;
        const bool feasible = allowed_(row);
        chosen = -1;
        const int met = feasible ? open_.meets(row, f, level, false) : -1;
        if (met > most) {
          most = met;
          best = level;
        }
      }
      if (best < 0) return {};
      chosen = best;
    }
    return row;
  }

  int below(int n) { return static_cast<int>(random_.below(n, draws_++)); }

  std::vector<int> levels_;
  std::function<bool(const CoveringRow&)> allowed_;
  OpenPairs open_;
  cases::Random random_;
  std::uint64_t draws_ = 0;
};

}  // namespace

std::vector<CoveringRow> covering_array(const std::vector<int>& levels,
                                        const std::function<bool(const CoveringRow&)>& allowed,
                                        std::uint64_t seed) {
  return Generator(levels, allowed, seed).rows();
}

}  // namespace attend::test
