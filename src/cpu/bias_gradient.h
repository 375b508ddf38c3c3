// dbias: the sum of dS over every batch element, head and query that reads an element of the bias.
//
// Whatever is summed over, a task owns some rows of dbias and forms their sums in f64, in ascending
// order of batch, head and query: it computes P and dS of the rows that share them again (two
// products of the five). A task owns the heads of one key head, or the one that all heads share,
// and some queries, or the one that all queries share.
#pragma once

#include "cpu/score_gradients.h"

namespace attend {
namespace {

template <class V>
class BiasGradient {
  using T = typename V::T;
  using TileGroup = ScoreGradients<V>;

 public:
  static std::int64_t tasks(const BackwardProblem& p) noexcept {
    if (!p.dbias || p.dbias_keys == 0) return 0;
    return p.dbias_batch * heads(p) * query_tasks(p);
  }

  static double* take(const BackwardProblem& p, Scratch& scratch) noexcept {
    return scratch.take<double>(saturating_count(rows(p) + 1, p.dbias_keys));
  }

  BiasGradient(BackwardScores<V>& scores, TileGroup& group, Scratch& scratch)
      : p(scores.p), call_(scores.call), scores_(scores), group_(group), sum_(take(p, scratch)) {}

  void run(std::int64_t index) noexcept {
    const std::int64_t kv_head = index / query_tasks(p) % heads(p);
    const std::int64_t b = index / query_tasks(p) / heads(p);
    double* shared = sum_ + rows(p) * p.dbias_keys;  // by all heads
    for (std::int64_t x = 0; x < (rows(p) + 1) * p.dbias_keys; ++x) sum_[x] = 0;
    first_ = index % query_tasks(p) * task_queries(p);
    for (std::int64_t n = p.dbias_batch == 1 ? 0 : b; n < (p.dbias_batch == 1 ? p.batch : b + 1);
         ++n) {
      scores_.sequence = sequence_of(p, call_, n);
      const std::int64_t last = p.dbias_heads == 1 ? p.kv_heads : kv_head + 1;
      for (scores_.kv_head = p.dbias_heads == 1 ? 0 : kv_head; scores_.kv_head < last;
           ++scores_.kv_head) {
        add_rows();
        ATTEND_PATH_IF(by_head(p), V, "dbias of all heads and queries");
        if (by_head(p)) join_heads(shared);
      }
    }
    const std::int64_t first_head = p.dbias_heads == 1 ? 0 : kv_head * p.group();
    for (std::int64_t g = 0; g < (p.dbias_heads == 1 ? 1 : p.group()); ++g) {
      for (std::int64_t i = first_; i < p.dbias_queries && i < first_ + task_queries(p); ++i)
        store_scaled<V>(call_.dbias, call_.dbias.offset(b, first_head + g, i), p.dbias_keys,
                        by_head(p) ? shared : sum_ + place(first_head + g, i), 1);
    }
  }

 private:
  static std::int64_t heads(const BackwardProblem& p) noexcept {
    return p.dbias_heads == 1 ? 1 : p.kv_heads;
  }
  // Of one task: their rows begin a tile group.
  static std::int64_t task_queries(const BackwardProblem& p) noexcept {
    if (p.dbias_queries == 1 || p.heads == 0) return 1;
    const std::int64_t count = TileGroup::group_rows(p) / p.group();
    return count < 1 ? 1 : count;
  }
  static std::int64_t query_tasks(const BackwardProblem& p) noexcept {
    return (p.dbias_queries + task_queries(p) - 1) / task_queries(p);
  }
  // One row shared by all heads and queries: the sums of each head come first. (The rows of a group
  // of heads lie mixed, and the order of a sum should not depend on that.)
  static bool by_head(const BackwardProblem& p) noexcept {
    return p.dbias_heads == 1 && p.dbias_queries == 1;
  }
  static std::int64_t rows(const BackwardProblem& p) noexcept {
    return task_queries(p) * (p.dbias_heads == 1 && !by_head(p) ? 1 : p.group());
  }
  std::int64_t place(std::int64_t h, std::int64_t i) const noexcept {
    const std::int64_t g = p.dbias_heads == 1 && !by_head(p) ? 0 : h % p.group();
    return (g * task_queries(p) + (p.dbias_queries == 1 ? 0 : i - first_)) * p.dbias_keys;
  }

  // The rows of this sequence and key head that the task reads.
  void add_rows() noexcept {
    const bool all = p.dbias_queries == 1 && p.q_length != 1;
    std::int64_t from = all ? 0 : first_ * p.group();
    std::int64_t to = all ? scores_.rows() : from + task_queries(p) * p.group();
    to = to < scores_.rows() ? to : scores_.rows();
    while (from < to && !scores_.stops()) {
      group_.open(from, to - from);
      from += group_.rows;
      ATTEND_PATH(V, "dbias");
      group_.weigh();
      for (double& sum : row_) sum = 0;
      if (p.sums_read && p.dbias_keys == 1) take_row_sums();
      else
        group_.for_gradients([&] {
          group_.differentiate(false);
          if (p.softcap != 0 && p.bias_before_softcap) group_.through_softcap();
          add_chunk();
        });
      for (int n = 0; p.dbias_keys == 1 && n < group_.rows; ++n) {
        const GradientTile<V>& tile = group_.tiles[n / TileGroup::kMost];
        sum_[place(tile.h[n % TileGroup::kMost], tile.i[n % TileGroup::kMost])] += row_[n];
      }
    }
  }

  // Where all keys share an element, over more keys than are here.
  void take_row_sums() noexcept {
    for (int n = 0; n < group_.rows; ++n)
      row_[n] = load_row_sums(call_.sums, group_.row_sums_at(group_.tiles[n / TileGroup::kMost],
                                                             n % TileGroup::kMost))
                    .bias;
  }

  void join_heads(double* shared) noexcept {
    for (std::int64_t g = 0; g < p.group(); ++g) {
      double* head = sum_ + g * p.dbias_keys;
      for (std::int64_t x = 0; x < p.dbias_keys; ++x) {
        shared[x] += head[x];
        head[x] = 0;
      }
    }
  }

  void add_chunk() noexcept {
    for (int n = 0; n < group_.rows; ++n) {
      const GradientTile<V>& tile = group_.tiles[n / TileGroup::kMost];
      double* sum = sum_ + place(tile.h[n % TileGroup::kMost], tile.i[n % TileGroup::kMost]);
      for (int r = 0; r < group_.spans->size; ++r) {
        const KeySpan& span = group_.spans->span[r];
        const T* ds = group_.ds + span.at * group_.stride + group_.column(n);
        std::int64_t count = span.count;  // groups of keys may reach behind the last
        if (p.dbias_keys > 1 && count > p.dbias_keys - span.key) count = p.dbias_keys - span.key;
        for (std::int64_t y = 0; y < count; ++y) {
          const auto value = static_cast<double>(ds[y * group_.stride]);
          (p.dbias_keys == 1 ? row_[n] : sum[span.key + y]) += value;
        }
      }
    }
  }

  const BackwardProblem& p;
  const BackwardCall& call_;
  BackwardScores<V>& scores_;
  TileGroup& group_;
  double* sum_;                   // [heads][queries][keys], or one where all share
  double row_[TileGroup::kRows];  // where all keys share one
  std::int64_t first_ = 0;
};

}  // namespace
}  // namespace attend
