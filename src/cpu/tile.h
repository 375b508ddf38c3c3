// A tile of queries: some rows that are worked on together, in lanes.
//
// The lanes of a tile are rows r = i * group + g, i a query and g a head of the group that shares a
// key head: one query of many heads (decode) fills them like many of one. A tile has 1 or
// kTileVectors vectors of lanes; the last one of a task in forward as many as its rows need, up to
// kLastVectors.
#pragma once

#include "core/mask.h"
#include "cpu/tiles.h"

#include <limits>

namespace attend {
namespace {

// a * b for sizes; what is too much stays too much for any allocation.
inline std::int64_t saturating_count(std::int64_t a, std::int64_t b) noexcept {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<std::int64_t>::max() / 16
                                                : product;
}

// The key head of a sequence, and the query rows that attend to it.
template <class Operation>
struct KeyHead {
  using Problem = typename Operation::Problem;
  using Call = typename Operation::Call;
  KeyHead(const Problem& problem, const Call& c) : p(problem), call(c) {}

  const Problem& p;
  const Call& call;
  Sequence sequence;
  std::int64_t kv_head = 0;
  std::int64_t head = -1;  // this one alone; -1: the whole group of the key head

  std::int64_t group() const noexcept { return head < 0 ? p.group() : 1; }
  std::int64_t rows() const noexcept { return group() * sequence.q_length; }
  // Of all runs of queries, if there are several; `rows` are then those up to the end of one.
  std::int64_t all_rows() const noexcept { return p.query_runs ? group() * p.q_length : rows(); }
  // Which row of the sequence row `at` of all is. Turns to its run.
  std::int64_t enter(std::int64_t at) noexcept {
    if (!p.query_runs) return at;
    const std::int64_t query = at / group();
    return at + group() * (enter_run(p, call, sequence, query) - query);
  }
};

// Up to kMost rows of one key head, or kRoom.
template <class V>
struct Tile {
  static constexpr int kMost = kTileVectors<V> * V::kLanes;
  static constexpr int kRoom = kLastVectors<V> * V::kLanes;  // for the last one of a task
  int rows, lanes;
  std::int64_t stride;         // from key to key in S^T; the lanes, unless tiles lie side by side
  std::int64_t vector_stride;  // from one vector of lanes to the next
  // Where lane n of a key stands in S^T.
  std::int64_t column(int n) const noexcept {
    return kMatrix<V> ? n / V::kLanes * vector_stride + n % V::kLanes : n;
  }
  std::int64_t begin, end;  // keys that any row may see, by position
  KeyRange all;             // keys that every row may see, by position; perhaps none
  std::int64_t h[kRoom], i[kRoom];
  KeyRange keys[kRoom];  // by position
  OperandOf<V>* q;       // [d][lanes]
};

// The score of a pair that is hidden.
template <class V>
inline constexpr SumOf<V> kHiddenScore = -std::numeric_limits<SumOf<V>>::infinity();

// use(how many vectors the lanes of a tile are), a constant.
template <class V, int kVectors = 1, class Use>
void with_vectors(int lanes, Use use) noexcept {
  if constexpr (kVectors < kLastVectors<V>)
    if (lanes > kVectors * V::kLanes) return with_vectors<V, kVectors + 1>(lanes, use);
  use(At<kVectors>{});
}

}  // namespace
}  // namespace attend
