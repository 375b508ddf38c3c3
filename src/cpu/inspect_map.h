// The map of a head: sum, maximum and number of the visible weights of each tile, for the columns
// that one task owns. A tile of scores has its queries in lanes; keys of a column are added up
// there, and then, columns turned into lanes, the lanes that belong to one row of the map. The
// sides of a map's tile are powers of two, so that it never lies across two chunks.
#pragma once

#include "cpu/scores.h"

namespace attend {
namespace {

template <class V>
class InspectMap {
  using T = typename V::T;
  static constexpr int kMost = Tile<V>::kMost;

  struct Add {
    template <class U>
    ATTEND_INLINE U operator()(U a, U b) const {
      return a + b;
    }
  };
  struct Largest {
    template <class U>
    ATTEND_INLINE U operator()(U a, U b) const {
      return larger(a, b);
    }
  };

 public:
  InspectMap(const InspectProblem& problem, Scratch& scratch)
      : p(problem), columns_(columns(p)), padded_(InspectScores<V>::width(columns_)),
        size_(saturating_count(p.map_rows(), padded_)),
        cells_(scratch.take<T>(2 * columns_ * kMost)),
        map_(scratch.take<double>(saturating_count(3, size_))) {}

  // Nothing yet, of the columns from key `from` on.
  void begin(std::int64_t from) noexcept {
    if (p.tile_keys == 0) return;
    query_bits_ = __builtin_ctzll(static_cast<std::uint64_t>(p.tile_queries));
    key_bits_ = __builtin_ctzll(static_cast<std::uint64_t>(p.tile_keys));
    first_column_ = from >> key_bits_;
    for (std::int64_t n = 0; n < 3 * size_; ++n) map_[n] = 0;
  }

  // While s still holds scores: how many pairs of each cell are visible.
  void count(const Tile<V>& tile, const KeySpans& spans, const T* s, bool partial) noexcept {
    const KeySpan& last = spans.span[spans.size - 1];
    from_ = (spans.span[0].key >> key_bits_) - first_column_;
    to_ = ((last.key + last.count - 1) >> key_bits_) - first_column_ + 1;
    ATTEND_PATH_IF(partial, V, "map, some hidden");
    ATTEND_PATH_IF(!partial, V, "map, nothing hidden");
    if (partial) return count_visible(tile, spans, s);
    double* const visible = map_ + 2 * size_;
    for_columns(spans, [&](std::int64_t column, int, int keys) {
      for (int n = 0; n < tile.rows;) {
        const std::int64_t row = tile.i[n] >> query_bits_;
        const std::int64_t left = p.tile_queries * (row + 1) - tile.i[0];
        const int next = left < tile.rows ? static_cast<int>(left) : tile.rows;
        visible[row * padded_ + column] += keys * (next - n);
        n = next;
      }
    });
  }

  // And once it holds weights, their sum and maximum.
  void add(const Tile<V>& tile, const KeySpans& spans, const T* s) noexcept {
    T* const sums = cells_;
    T* const maxima = cells_ + columns_ * kMost;
    const bool once = spans.size == 1;  // no column is met again
    for (std::int64_t x = from_ * kMost; !once && x < to_ * kMost; ++x) sums[x] = maxima[x] = 0;
    for_columns(spans, [&](std::int64_t column, int at, int count) {
      for (int n = 0; n < tile.lanes; n += V::kLanes) {
        const std::int64_t to = column * kMost + n;
        V total = once ? V::set(0) : V::load(sums + to), most = once ? total : V::load(maxima + to);
        for (int j = 0; j < count; ++j) {
          const V w = V::load(s + (at + j) * tile.lanes + n);
          total = total + w;
          most = larger(most, w);
        }
        total.store(sums + to);
        most.store(maxima + to);
      }
    });
    join_lanes(tile, sums, map_, Add{});
    join_lanes(tile, maxima, map_ + size_, Largest{});
  }

  // A sum that is NaN has a weight that is, and so has the maximum.
  void write(const InspectCall& call, std::int64_t head) noexcept {
    const std::int64_t left = p.map_columns() - first_column_;
    const std::int64_t count = left < columns_ ? left : columns_;
    for (std::int64_t r = 0; r < p.map_rows(); ++r) {
      double* sum = map_ + r * padded_;
      double* most = sum + size_;
      const double* seen = most + size_;
      for (std::int64_t c = 0; c < count; ++c) {
        most[c] = seen[c] == 0 ? -1 : sum[c] == sum[c] ? most[c] : sum[c];
        sum[c] = seen[c] == 0 ? -1 : sum[c] / seen[c];
      }
      const std::int64_t to = (head * p.map_rows() + r) * p.map_columns() + first_column_;
      store_row(call.tile_mean, to, count, sum);
      store_row(call.tile_maximum, to, count, most);
    }
  }

 private:
  // Of one task: a chunk of keys, or one column.
  static std::int64_t columns(const InspectProblem& p) noexcept {
    return p.tile_keys == 0 ? 0 : p.tile_keys >= kChunk ? 1 : kChunk / p.tile_keys;
  }

  // Calls use(column, where the keys begin in s, how many) for the keys of each column in the
  // spans.
  template <class Use>
  void for_columns(const KeySpans& spans, Use use) const noexcept {
    for (int r = 0; r < spans.size; ++r) {
      const KeySpan& span = spans.span[r];
      for (int x = 0; x < span.count;) {
        const std::int64_t j = span.key + x, left = p.tile_keys - (j & (p.tile_keys - 1));
        const int count = left < span.count - x ? static_cast<int>(left) : span.count - x;
        use((j >> key_bits_) - first_column_, span.at + x, count);
        x += count;
      }
    }
  }

  void count_visible(const Tile<V>& tile, const KeySpans& spans, const T* s) noexcept {
    const V lowest = V::set(std::numeric_limits<T>::lowest());
    T* const seen = cells_;
    for (std::int64_t x = from_ * kMost; x < to_ * kMost; ++x) seen[x] = 0;
    for_columns(spans, [&](std::int64_t column, int at, int count) {
      for (int n = 0; n < tile.lanes; n += V::kLanes) {
        T* const to = seen + column * kMost + n;
        V sum = V::load(to);
        for (int j = 0; j < count; ++j) {
          const V u = V::load(s + (at + j) * tile.lanes + n);
          sum = sum + select(less(u, lowest), V::set(0), V::set(1));
        }
        sum.store(to);
      }
    });
    join_lanes(tile, seen, map_ + 2 * size_, Add{});
  }

  // map[row][c ...] = join of itself and of the lanes that belong to the row.
  template <class Join>
  void join_lanes(const Tile<V>& tile, const T* cells, double* map, Join join) const noexcept {
    for (std::int64_t c = from_ / V::kLanes * V::kLanes; c < to_; c += V::kLanes)
      for (int n = 0; n < tile.rows; n += V::kLanes) join_square(tile, cells, c, n, map, join);
  }

  template <class Join>
  void join_square(const Tile<V>& tile, const T* cells, std::int64_t c, int n, double* map,
                   Join join) const noexcept {
    using D = typename V::Double;
    V square[V::kLanes];
    unrolled<V::kLanes>(ATTEND_EACH(x) {
      square[x] = c + x >= from_ && c + x < to_ ? V::load(cells + (c + x) * kMost + n) : V::set(0);
    });
    transpose(square);
    T lanes[V::kLanes * V::kLanes];
    unrolled<V::kLanes>(ATTEND_EACH(x) { square[x].store(lanes + x * V::kLanes); });
    const int rows = tile.rows - n < V::kLanes ? tile.rows - n : V::kLanes;
    for (int x = 0; x < rows;) {
      const std::int64_t row = tile.i[n + x] >> query_bits_;
      V joined = V::load(lanes + x * V::kLanes);
      for (++x; x < rows && tile.i[n + x] >> query_bits_ == row; ++x)
        joined = join(joined, V::load(lanes + x * V::kLanes));
      double* to = map + row * padded_ + c;
      unrolled<V::kDoubles>(ATTEND_EACH(k) {
        double* at = to + k * D::kLanes;
        const D all = D::load(at), tile_lanes = wide<k>(joined);
        join(all, tile_lanes).store(at);
      });
    }
  }

  const InspectProblem& p;
  const std::int64_t columns_, padded_, size_;
  T* cells_;     // [2][columns][lanes]: of the tile at hand
  double* map_;  // [sum, maximum, visible][map rows][columns, padded]
  std::int64_t first_column_ = 0;
  std::int64_t from_ = 0, to_ = 0;  // columns of the tile at hand
  int query_bits_ = 0, key_bits_ = 0;
};

}  // namespace
}  // namespace attend
