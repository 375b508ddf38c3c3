// Sweep 2 of the statistics: what belongs to keys, tiles and heads, once the softmax of every row
// is known. Key-major: a task owns some keys of one head and goes through all queries, so that
// every sum has one owner and one order, whoever runs it. The scores are computed again.
//
//                 queries, tile by tile of lanes ->
//            +------+------+------+
//     keys   |  p   |  p   |  p   |   mass of a key: lanes are added up tile by tile in a vector,
//     of the +------+------+------+   every kFlush tiles the vector's lanes, in f64
//     task   |  p   |  p   |  p   |   map, metrics: keys are added up in the lanes of a tile, then
//            +------+------+------+   the lanes, in f64
//
// A task has a chunk of 256 keys, or as many as a column of the map if that is wider.
#pragma once

#include "cpu/inspect_rows.h"

namespace attend {
namespace {

template <class V>
class InspectKeys {
  using T = typename V::T;
  static constexpr int kMost = Tile<V>::kMost;
  static constexpr int kFlush = 8;

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

  struct Memory {
    Tile<V>* tile;
    Runs* runs;
    Chunk<T> chunk;
    T* s;             // [256][lanes], scores and then weights
    T* lanes;         // [256][V::kLanes]: mass since the last flush
    double* mass;     // [256]
    T *token, *left;  // [256]: the token of a key, and of the key before it
    T* cells;         // [2][columns of the task][lanes]: of the tile at hand
    double* map;      // [sum, maximum, visible][map rows][columns of the task, padded]
    Memory(const Problem& p, Scratch& scratch) {
      tile = scratch.take<Tile<V>>(1);
      runs = scratch.take<Runs>(1);
      s = scratch.take<T>(kChunk * kMost);
      lanes = scratch.take<T>(kChunk * V::kLanes);
      mass = scratch.take<double>(kChunk);
      token = scratch.take<T>(kChunk);
      left = scratch.take<T>(kChunk);
      chunk.packed_k = scratch.take<T>(kChunk * p.d);
      cells = scratch.take<T>(2 * columns(p) * kMost);
      map = scratch.take<double>(saturating_count(3, map_size(p)));
      T* q = scratch.take<T>(p.d * kMost);
      if (tile != nullptr) tile->q = q;
    }
  };

 public:
  static bool needed(const Problem& p) { return p.key_mass || p.metrics || p.tile_keys > 0; }
  static std::int64_t keys_of_task(const Problem& p) {
    return p.tile_keys > kChunk ? p.tile_keys : kChunk;
  }
  static std::int64_t tasks_of_head(const Problem& p) {
    return needed(p) ? (p.k_length + keys_of_task(p) - 1) / keys_of_task(p) : 0;
  }

  static std::size_t scratch_bytes(const Problem& p) {
    Scratch scratch(nullptr);
    const Call none;
    Scores<V> scores(p, none, scratch);
    Memory memory(p, scratch);
    return scratch.used();
  }

  // The keys of task `index` of a head; gives what they add to the head's sums.
  static HeadSums run(const Problem& p, const Call& call, std::int64_t b, std::int64_t h,
                      std::int64_t index, std::byte* memory, const RowRecord<T>* records) noexcept {
    Scratch scratch(memory);
    Scores<V> scores(p, call, scratch);
    Memory own(p, scratch);
    scores.sequence = sequence_of(p, call, b);
    scores.head = h;
    scores.kv_head = h / p.group();
    InspectKeys f(p, call, scores, own, records + (b * p.heads + h) * p.q_length);
    f.task(index * keys_of_task(p));
    return f.sums_;
  }

 private:
  InspectKeys(const Problem& problem, const Call& call, Scores<V>& scores, Memory& memory,
              const RowRecord<T>* records)
      : p(problem), call_(call), scores_(scores), sequence_(scores.sequence), memory_(memory),
        records_(records) {}

  static std::int64_t columns(const Problem& p) {
    return p.tile_keys == 0 ? 0 : p.tile_keys >= kChunk ? 1 : kChunk / p.tile_keys;
  }

  static std::int64_t padded_columns(const Problem& p) { return Scores<V>::width(columns(p)); }
  static std::int64_t map_size(const Problem& p) {
    return saturating_count(p.map_rows(), padded_columns(p));
  }

  void task(std::int64_t from) noexcept {
    for (std::int64_t n = 0; n < 3 * map_size(p); ++n) memory_.map[n] = 0;
    if (p.tile_keys > 0) {
      first_column_ = from / p.tile_keys;
      query_bits_ = __builtin_ctzll(static_cast<std::uint64_t>(p.tile_queries));
      key_bits_ = __builtin_ctzll(static_cast<std::uint64_t>(p.tile_keys));
    }
    const std::int64_t listed = listed_keys(p, sequence_);
    for (std::int64_t at = from; at < from + keys_of_task(p) && at < listed; at += kChunk) {
      for (int j = 0; j < kChunk; ++j) memory_.mass[j] = 0;
      if (at < sequence_.k_length) chunk(at);
      if (p.key_mass)
        store_row(call_.key_mass, mass_row(p, call_, sequence_, scores_.head) + at,
                  listed - at < kChunk ? listed - at : kChunk, memory_.mass);
    }
    if (p.tile_keys > 0) write_map();
  }

  // The keys from `at` on against all queries that may see them.
  void chunk(std::int64_t at) noexcept {
    const std::int64_t end = at + kChunk < sequence_.k_length ? at + kChunk : sequence_.k_length;
    scores_.bring(memory_.chunk, at, end, false);
    if (p.tokens) load_tokens(at, end);
    for (std::int64_t x = 0; x < kChunk * V::kLanes; ++x) memory_.lanes[x] = 0;
    int since = 0;
    for (std::int64_t first = 0; first < sequence_.q_length; first += kMost) {
      const std::int64_t next =
          first + kMost < sequence_.q_length ? first + kMost : sequence_.q_length;
      // Ranges move forward with the rows: the first and the last say what the tile may see.
      if (positions(p, sequence_, first).begin >= end ||
          positions(p, sequence_, next - 1).end <= at)
        continue;
      scores_.open(*memory_.tile, first);
      take(at);
      if (++since == kFlush) flush(), since = 0;
    }
    flush();
  }

  // One tile: steps 1 to 3, and everything that is made of the weights.
  void take(std::int64_t at) noexcept {
    const Tile<V>& tile = *memory_.tile;
    Runs& runs = *memory_.runs;
    scores_.find_runs(tile, memory_.chunk, runs);
    if (runs.count == 0) return;
    T top[kMost];
    bool partial = scores_.compute(tile, memory_.chunk, runs, memory_.s, top);
    if (tile.rows < tile.lanes) partial = true, hide_padding(tile, runs.count);
    if (p.tile_keys > 0) count_cells(tile, runs, partial);
    weigh(tile, runs.count);
    if (p.key_mass) add_mass(tile, runs, at);
    if (p.tile_keys > 0) add_cells(tile, runs);
    if (p.metrics) measure(tile, runs, at);
  }

  // Lanes without a row hold what q = 0 gives, NaN for a key with NaN.
  void hide_padding(const Tile<V>& tile, int keys) const noexcept {
    for (int j = 0; j < keys; ++j)
      for (int n = tile.rows; n < tile.lanes; ++n)
        memory_.s[j * tile.lanes + n] = Scores<V>::kHidden;
  }

  // s becomes p = e^(s - base) * scale, 0 where hidden, whatever the row's base and scale are.
  void weigh(const Tile<V>& tile, int keys) const noexcept {
    T base[kMost], scale[kMost];
    for (int n = 0; n < tile.lanes; ++n) {
      base[n] = n < tile.rows ? records_[tile.i[n]].base : T{0};
      scale[n] = n < tile.rows ? records_[tile.i[n]].scale : T{0};
    }
    const V log2e = V::set(Exp2<T>::kLog2E), lowest = V::set(std::numeric_limits<T>::lowest());
    for (int n = 0; n < tile.lanes; n += V::kLanes) {
      const V from = V::load(base + n), factor = V::load(scale + n);
      for (int j = 0; j < keys; ++j) {
        T* at = memory_.s + j * tile.lanes + n;
        const V u = V::load(at);
        const V w = exp2_of((u - from) * log2e) * factor;
        select(less(u, lowest), V::set(0), w).store(at);
      }
    }
  }

  // ---- mass -------------------------------------------------------------------------------------

  void add_mass(const Tile<V>& tile, const Runs& runs, std::int64_t from) const noexcept {
    for (int r = 0; r < runs.runs; ++r) {
      const Run& run = runs.run[r];
      T* sum = memory_.lanes + (run.key - from) * V::kLanes;
      const T* w = memory_.s + run.at * tile.lanes;
      for (int x = 0; x < run.count; ++x, sum += V::kLanes, w += tile.lanes) {
        V lanes = V::load(w);
        for (int n = V::kLanes; n < tile.lanes; n += V::kLanes) lanes = lanes + V::load(w + n);
        (V::load(sum) + lanes).store(sum);
      }
    }
  }

  // The lanes of every key's vector, added to its mass: V::kLanes keys at a time, transposed.
  void flush() const noexcept {
    if (!p.key_mass) return;
    using D = typename V::Double;
    for (int j = 0; j < kChunk; j += V::kLanes) {
      V square[V::kLanes];
      T* lanes = memory_.lanes + j * V::kLanes;
      unrolled<V::kLanes>(ATTEND_EACH(n) {
        square[n] = V::load(lanes + n * V::kLanes);
        V::set(0).store(lanes + n * V::kLanes);
      });
      transpose(square);
      V sum = square[0];
      unrolled<V::kLanes - 1>(ATTEND_EACH(n) { sum = sum + square[n + 1]; });
      unrolled<V::kDoubles>(ATTEND_EACH(k) {
        double* mass = memory_.mass + j + k * D::kLanes;
        (D::load(mass) + wide<k>(sum)).store(mass);
      });
    }
  }

  // ---- map --------------------------------------------------------------------------------------

  // Calls use(column, where the keys begin in s, how many) for the keys of each column in the runs.
  template <class Use>
  void for_columns(const Runs& runs, Use use) const noexcept {
    for (int r = 0; r < runs.runs; ++r) {
      const Run& run = runs.run[r];
      for (int x = 0; x < run.count;) {
        const std::int64_t j = run.key + x, left = p.tile_keys - (j & (p.tile_keys - 1));
        const int count = left < run.count - x ? static_cast<int>(left) : run.count - x;
        use((j >> key_bits_) - first_column_, run.at + x, count);
        x += count;
      }
    }
  }

  // While s still holds scores: how many pairs of each cell are visible.
  void count_cells(const Tile<V>& tile, const Runs& runs, bool partial) noexcept {
    const Run& last = runs.run[runs.runs - 1];
    from_ = (runs.run[0].key >> key_bits_) - first_column_;
    to_ = ((last.key + last.count - 1) >> key_bits_) - first_column_ + 1;
    if (partial) count_visible(tile, runs);
    else
      for_columns(runs, [&](std::int64_t column, int, int count) {
        for (int n = 0; n < tile.rows;) {
          const std::int64_t row = tile.i[n] >> query_bits_, left = p.tile_queries * (row + 1);
          const int next =
              left - tile.i[0] < tile.rows ? static_cast<int>(left - tile.i[0]) : tile.rows;
          visible()[row * padded_columns(p) + column] += count * (next - n);
          n = next;
        }
      });
  }

  void count_visible(const Tile<V>& tile, const Runs& runs) noexcept {
    const V lowest = V::set(std::numeric_limits<T>::lowest());
    T* const seen = memory_.cells;
    for (std::int64_t x = from_ * kMost; x < to_ * kMost; ++x) seen[x] = 0;
    for_columns(runs, [&](std::int64_t column, int at, int count) {
      for (int n = 0; n < tile.lanes; n += V::kLanes) {
        T* const to = seen + column * kMost + n;
        V sum = V::load(to);
        for (int j = 0; j < count; ++j) {
          const V u = V::load(memory_.s + (at + j) * tile.lanes + n);
          sum = sum + select(less(u, lowest), V::set(0), V::set(1));
        }
        sum.store(to);
      }
    });
    join_lanes(tile, seen, visible(), Add{});
  }

  // And once it holds weights, their sum and maximum.
  void add_cells(const Tile<V>& tile, const Runs& runs) const noexcept {
    T* const sums = memory_.cells;
    T* const maxima = memory_.cells + columns(p) * kMost;
    const bool once = runs.runs == 1;  // no column is met again
    for (std::int64_t x = from_ * kMost; !once && x < to_ * kMost; ++x) sums[x] = maxima[x] = 0;
    for_columns(runs, [&](std::int64_t column, int at, int count) {
      for (int n = 0; n < tile.lanes; n += V::kLanes) {
        const std::int64_t to = column * kMost + n;
        V total = once ? V::set(0) : V::load(sums + to), most = once ? total : V::load(maxima + to);
        for (int j = 0; j < count; ++j) {
          const V w = V::load(memory_.s + (at + j) * tile.lanes + n);
          total = total + w;
          most = larger(most, w);
        }
        total.store(sums + to);
        most.store(maxima + to);
      }
    });
    join_lanes(tile, sums, memory_.map, Add{});
    join_lanes(tile, maxima, memory_.map + map_size(p), Largest{});
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
      double* to = map + row * padded_columns(p) + c;
      unrolled<V::kDoubles>(ATTEND_EACH(k) {
        double* at = to + k * D::kLanes;
        const D all = D::load(at), part = wide<k>(joined);
        join(all, part).store(at);
      });
    }
  }

  double* visible() const noexcept { return memory_.map + 2 * map_size(p); }

  // A sum that is NaN has a weight that is, and so has the maximum.
  void write_map() const noexcept {
    const std::int64_t head = sequence_.b * p.heads + scores_.head;
    const std::int64_t left = p.map_columns() - first_column_;
    const std::int64_t count = left < columns(p) ? left : columns(p);
    for (std::int64_t r = 0; r < p.map_rows(); ++r) {
      double* sum = memory_.map + r * padded_columns(p);
      double* most = sum + map_size(p);
      const double* seen = most + map_size(p);
      for (std::int64_t c = 0; c < count; ++c) {
        most[c] = seen[c] == 0 ? -1 : sum[c] == sum[c] ? most[c] : sum[c];
        sum[c] = seen[c] == 0 ? -1 : sum[c] / seen[c];
      }
      const std::int64_t to = (head * p.map_rows() + r) * p.map_columns() + first_column_;
      store_row(call_.tile_mean, to, count, sum);
      store_row(call_.tile_maximum, to, count, most);
    }
  }

  // ---- metrics ----------------------------------------------------------------------------------

  void load_tokens(std::int64_t at, std::int64_t end) const noexcept {
    for (std::int64_t j = at; j < end; ++j) {
      memory_.token[j - at] = static_cast<T>(token_of(p, call_, sequence_, j));
      memory_.left[j - at] =
          static_cast<T>(j == 0 ? kNoToken - 1 : token_of(p, call_, sequence_, j - 1));
    }
  }

  void measure(const Tile<V>& tile, const Runs& runs, std::int64_t at) noexcept {
    T token[kMost];
    for (int n = 0; n < tile.lanes; ++n) {
      const std::int64_t position = tile.i[n < tile.rows ? n : 0] + sequence_.offset;
      const bool has = p.tokens && position >= 0 && position < sequence_.k_stored;
      token[n] = static_cast<T>(has ? token_of(p, call_, sequence_, position) : kNoToken);
    }
    for (int r = 0; r < runs.runs; ++r) {
      const Run& run = runs.run[r];
      const T* w = memory_.s + run.at * tile.lanes;
      single_keys(tile, run, w);
      T position[kMost];  // counted from the run's first key
      for (int n = 0; n < tile.lanes; ++n)
        position[n] = static_cast<T>(tile.i[n < tile.rows ? n : 0] + sequence_.offset - run.key);
      distances(tile, run, w, position);
      if (p.tokens) copies(tile, run, w, position, token, run.key - at);
    }
  }

  void single_keys(const Tile<V>& tile, const Run& run, const T* w) noexcept {
    const auto at = [&](std::int64_t key, int n) {
      const std::int64_t x = key - run.key;
      return x < 0 || x >= run.count ? 0.0 : static_cast<double>(w[x * tile.lanes + n]);
    };
    for (int n = 0; n < tile.rows; ++n) {
      const std::int64_t position = tile.i[n] + sequence_.offset;
      sums_.previous += at(position - 1, n);
      sums_.diagonal += at(position, n);
      sums_.first += at(0, n);
    }
  }

  // distance = sum of p |position - j|, local = sum of p where that is at most local_width.
  void distances(const Tile<V>& tile, const Run& run, const T* w, const T* position) noexcept {
    // The keys that are near to any row; by subtraction, as local_width may be 2^63 - 1.
    const std::int64_t front = tile.i[0] + sequence_.offset - run.key;
    const std::int64_t back = tile.i[tile.rows - 1] + sequence_.offset - run.key;
    const int from = front > p.local_width ? clamped(front - p.local_width, run.count) : 0;
    const int to =
        run.count - back > p.local_width ? clamped(back + p.local_width + 1, run.count) : run.count;
    const V width = V::set(static_cast<T>(p.local_width)), zero = V::set(0);
    for (int n = 0; n < tile.lanes; n += V::kLanes) {
      const V here = V::load(position + n);
      V distance = zero, local = zero;
      for (int x = 0; x < run.count; ++x) {
        const V ahead = here - V::set(static_cast<T>(x));
        const V away = larger(ahead, zero - ahead), u = V::load(w + x * tile.lanes + n);
        distance = fma(away, u, distance);
        if (x >= from && x < to) local = local + select(less(width, away), zero, u);
      }
      sums_.distance += total(distance, tile.rows - n);
      sums_.local += total(local, tile.rows - n);
    }
  }

  static int clamped(std::int64_t x, int most) noexcept {
    return x < 0 ? 0 : x > most ? most : static_cast<int>(x);
  }

  // duplicate: earlier keys with the row's token. induction: keys up to the row's position whose
  // left neighbour has it.
  void copies(const Tile<V>& tile, const Run& run, const T* w, const T* position, const T* token,
              std::int64_t at) noexcept {
    const V zero = V::set(0);
    for (int n = 0; n < tile.lanes; n += V::kLanes) {
      const V here = V::load(position + n), mine = V::load(token + n);
      const auto equal = [&](T other, V u) __attribute__((always_inline)) {
        const V theirs = V::set(other);
        return select(less(mine, theirs), zero, select(less(theirs, mine), zero, u));
      };
      V duplicate = zero, induction = zero;
      for (int x = 0; x < run.count; ++x) {
        const V key = V::set(static_cast<T>(x)), u = V::load(w + x * tile.lanes + n);
        duplicate = duplicate + select(less(key, here), equal(memory_.token[at + x], u), zero);
        induction = induction + select(less(here, key), zero, equal(memory_.left[at + x], u));
      }
      sums_.duplicate += total(duplicate, tile.rows - n);
      sums_.induction += total(induction, tile.rows - n);
    }
  }

  static double total(V v, int rows) noexcept {
    T lanes[V::kLanes];
    v.store(lanes);
    double sum = 0;
    for (int n = 0; n < V::kLanes && n < rows; ++n) sum += static_cast<double>(lanes[n]);
    return sum;
  }

  static constexpr std::int64_t kNoToken = -1;

  const Problem& p;
  const Call& call_;
  Scores<V>& scores_;
  const Sequence& sequence_;
  Memory& memory_;
  const RowRecord<T>* records_;
  HeadSums sums_;
  std::int64_t first_column_ = 0;
  std::int64_t from_ = 0, to_ = 0;     // columns of the tile at hand
  int query_bits_ = 0, key_bits_ = 0;  // the sides of a tile are powers of two
};

}  // namespace
}  // namespace attend
