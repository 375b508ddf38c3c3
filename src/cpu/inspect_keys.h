// Sweep 2 of the statistics: what belongs to keys, tiles and heads, once the softmax of every row
// is known. Key-major: a task owns some keys of one head and goes through all queries, so that
// every sum has one owner and one order, whoever does it. The scores are computed again.
//
//                 queries, tile by tile of lanes ->
//            +------+------+------+
//     keys   |  p   |  p   |  p   |   mass of a key: lanes are added up tile by tile in a vector,
//     of the +------+------+------+   every kFlush tiles the vector's lanes, in f64
//     task   |  p   |  p   |  p   |   map, metrics: keys are added up in the lanes of a tile, then
//            +------+------+------+   the lanes, in f64 (map: inspect_map.h)
//
// A task has a chunk of 256 keys, or as many as a column of the map if that is wider.
#pragma once

#include "cpu/inspect_map.h"
#include "cpu/inspect_rows.h"

namespace attend {
namespace {

template <class V>
class InspectKeys {
  using T = typename V::T;
  static constexpr int kMost = Tile<V>::kMost;
  static constexpr int kFlush = 8;

  struct Arrays {
    Tile<V>* tile;
    KeySpans* spans;
    Chunk<V> chunk;
    T* s;             // [256][lanes], scores and then weights
    T* lanes;         // [256][V::kLanes]: mass since the last flush
    double* mass;     // [256]
    T *token, *left;  // [256]: the token of a key, and of the key before it
    Arrays(const InspectProblem& p, Scratch& scratch) {
      tile = scratch.take<Tile<V>>(1);
      spans = scratch.take<KeySpans>(1);
      s = scratch.take<T>(kChunk * kMost);
      lanes = scratch.take<T>(kChunk * V::kLanes);
      mass = scratch.take<double>(kChunk);
      token = scratch.take<T>(kChunk);
      left = scratch.take<T>(kChunk);
      chunk.packed_k = scratch.take<OperandOf<V>>(kChunk * p.d);
      auto* q = scratch.take<OperandOf<V>>(whole_depth<V>(p.d) * kMost);
      if (tile != nullptr) tile->q = q;
    }
  };

 public:
  static bool needed(const InspectProblem& p) { return p.key_mass || p.metrics || p.tile_keys > 0; }
  static std::int64_t keys_of_task(const InspectProblem& p) {
    return p.tile_keys > kChunk ? p.tile_keys : kChunk;
  }
  static std::int64_t tasks_of_head(const InspectProblem& p) {
    return needed(p) ? (p.k_length + keys_of_task(p) - 1) / keys_of_task(p) : 0;
  }

  static std::size_t scratch_bytes(const InspectProblem& p) {
    Scratch scratch(nullptr);
    const InspectCall none;
    InspectScores<V> scores(p, none, scratch);
    Arrays arrays(p, scratch);
    InspectMap<V> map(p, scratch);
    return scratch.used();
  }

  // The keys of task `index` of a head; gives what they add to the head's sums.
  static HeadSums run(const InspectProblem& p, const InspectCall& call, std::int64_t b,
                      std::int64_t h, std::int64_t index, const Task& task,
                      const RowRecord<T>* records) noexcept {
    Scratch scratch(task.scratch);
    InspectScores<V> scores(p, call, scratch);
    scores.interrupt = task.interrupt;
    Arrays own(p, scratch);
    InspectMap<V> map(p, scratch);
    scores.sequence = sequence_of(p, call, b);
    scores.head = h;
    scores.kv_head = h / p.group();
    InspectKeys f(p, call, scores, own, map, records + (b * p.heads + h) * p.q_length);
    f.task(index * keys_of_task(p));
    return f.sums_;
  }

 private:
  InspectKeys(const InspectProblem& problem, const InspectCall& call, InspectScores<V>& scores,
              Arrays& arrays, InspectMap<V>& map, const RowRecord<T>* records)
      : p(problem), call_(call), scores_(scores), sequence_(scores.sequence), arrays_(arrays),
        map_(map), records_(records) {}

  void task(std::int64_t from) noexcept {
    map_.begin(from);
    const std::int64_t listed = listed_keys(p, sequence_);
    for (std::int64_t at = from; at < from + keys_of_task(p) && at < listed; at += kChunk) {
      for (int j = 0; j < kChunk; ++j) arrays_.mass[j] = 0;
      if (at < sequence_.k_length) chunk(at);
      if (p.key_mass)
        store_row(call_.key_mass, mass_row(p, call_, sequence_, scores_.head) + at,
                  listed - at < kChunk ? listed - at : kChunk, arrays_.mass);
    }
    if (p.tile_keys > 0) map_.write(call_, sequence_.b * p.heads + scores_.head);
  }

  // The keys from `at` on against all queries that may see them.
  void chunk(std::int64_t at) noexcept {
    const std::int64_t end = at + kChunk < sequence_.k_length ? at + kChunk : sequence_.k_length;
    scores_.bring(arrays_.chunk, at, end, false);
    if (p.tokens) load_tokens(at, end);
    for (std::int64_t x = 0; x < kChunk * V::kLanes; ++x) arrays_.lanes[x] = 0;
    int since = 0;
    for (std::int64_t first = 0; first < sequence_.q_length; first += kMost) {
      const std::int64_t next =
          first + kMost < sequence_.q_length ? first + kMost : sequence_.q_length;
      // Ranges move forward with the rows: the first and the last say what the tile may see.
      if (positions(p, sequence_, first).begin >= end ||
          positions(p, sequence_, next - 1).end <= at)
        continue;
      if (must_stop(scores_.interrupt)) return;
      scores_.open(*arrays_.tile, first);
      take(at);
      if (++since == kFlush) {
        ATTEND_PATH(V, "mass of many tiles");
        flush(), since = 0;
      }
    }
    flush();
  }

  // One tile: steps 1 to 3, and everything that is made of the weights.
  void take(std::int64_t at) noexcept {
    const Tile<V>& tile = *arrays_.tile;
    KeySpans& spans = *arrays_.spans;
    scores_.find_spans(tile, arrays_.chunk, spans);
    if (spans.keys == 0) return;
    T top[kMost];
    bool partial = scores_.compute(tile, arrays_.chunk, spans, arrays_.s, top);
    partial = partial || !edges_finite(tile, arrays_.s, spans.keys);
    if (tile.rows < tile.lanes) partial = true, hide_padding(tile, spans.keys);
    if (p.tile_keys > 0) map_.count(tile, spans, arrays_.s, partial);
    weigh(tile, spans.keys);
    if (p.key_mass) add_mass(tile, spans, at);
    if (p.tile_keys > 0) map_.add(tile, spans, arrays_.s);
    if (p.metrics) measure(tile, spans, at);
  }

  // Lanes without a row hold the scores of the last one, also of keys that it does not see.
  void hide_padding(const Tile<V>& tile, int keys) const noexcept {
    for (int j = 0; j < keys; ++j)
      for (int n = tile.rows; n < tile.lanes; ++n)
        arrays_.s[j * tile.lanes + n] = InspectScores<V>::kHidden;
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
        T* at = arrays_.s + j * tile.lanes + n;
        const V u = V::load(at);
        const V w = exp2_of((u - from) * log2e) * factor;
        select(less(u, lowest), V::set(0), w).store(at);
      }
    }
  }

  // ---- mass -------------------------------------------------------------------------------------

  void add_mass(const Tile<V>& tile, const KeySpans& spans, std::int64_t from) const noexcept {
    for (int r = 0; r < spans.size; ++r) {
      const KeySpan& span = spans.span[r];
      T* sum = arrays_.lanes + (span.key - from) * V::kLanes;
      const T* w = arrays_.s + span.at * tile.lanes;
      for (int x = 0; x < span.count; ++x, sum += V::kLanes, w += tile.lanes) {
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
      T* lanes = arrays_.lanes + j * V::kLanes;
      unrolled<V::kLanes>(ATTEND_EACH(n) {
        square[n] = V::load(lanes + n * V::kLanes);
        V::set(0).store(lanes + n * V::kLanes);
      });
      transpose(square);
      V sum = square[0];
      unrolled<V::kLanes - 1>(ATTEND_EACH(n) { sum = sum + square[n + 1]; });
      unrolled<V::kDoubles>(ATTEND_EACH(k) {
        double* mass = arrays_.mass + j + k * D::kLanes;
        (D::load(mass) + wide<k>(sum)).store(mass);
      });
    }
  }

  // ---- metrics ----------------------------------------------------------------------------------

  void load_tokens(std::int64_t at, std::int64_t end) const noexcept {
    for (std::int64_t j = at; j < end; ++j) {
      arrays_.token[j - at] = static_cast<T>(token_of(p, call_, sequence_, j));
      arrays_.left[j - at] =
          static_cast<T>(j == 0 ? kNoToken - 1 : token_of(p, call_, sequence_, j - 1));
    }
  }

  void measure(const Tile<V>& tile, const KeySpans& spans, std::int64_t at) noexcept {
    T token[kMost];
    for (int n = 0; n < tile.lanes; ++n) {
      const std::int64_t position = tile.i[n < tile.rows ? n : 0] + sequence_.offset;
      const bool has = p.tokens && position >= 0 && position < sequence_.k_stored;
      token[n] = static_cast<T>(has ? token_of(p, call_, sequence_, position) : kNoToken);
    }
    for (int r = 0; r < spans.size; ++r) {
      const KeySpan& span = spans.span[r];
      const T* w = arrays_.s + span.at * tile.lanes;
      single_keys(tile, span, w);
      T position[kMost];  // counted from the span's first key
      for (int n = 0; n < tile.lanes; ++n)
        position[n] = static_cast<T>(tile.i[n < tile.rows ? n : 0] + sequence_.offset - span.key);
      distances(tile, span, w, position);
      ATTEND_PATH_IF(p.tokens, V, "tokens");
      if (p.tokens) copies(tile, span, w, position, token, span.key - at);
    }
  }

  void single_keys(const Tile<V>& tile, const KeySpan& span, const T* w) noexcept {
    const auto at = [&](std::int64_t key, int n) {
      const std::int64_t x = key - span.key;
      return x < 0 || x >= span.count ? 0.0 : static_cast<double>(w[x * tile.lanes + n]);
    };
    for (int n = 0; n < tile.rows; ++n) {
      const std::int64_t position = tile.i[n] + sequence_.offset;
      sums_.previous += at(position - 1, n);
      sums_.diagonal += at(position, n);
      sums_.first += at(0, n);
    }
  }

  // distance = sum of p |position - j|, local = sum of p where that is at most local_width.
  void distances(const Tile<V>& tile, const KeySpan& span, const T* w, const T* position) noexcept {
    // The keys that are near to any row; by subtraction, as local_width may be 2^63 - 1.
    const std::int64_t front = tile.i[0] + sequence_.offset - span.key;
    const std::int64_t back = tile.i[tile.rows - 1] + sequence_.offset - span.key;
    const int from = front > p.local_width ? clamped(front - p.local_width, span.count) : 0;
    const int to = span.count - back > p.local_width ? clamped(back + p.local_width + 1, span.count)
                                                     : span.count;
    const V width = V::set(static_cast<T>(p.local_width)), zero = V::set(0);
    for (int n = 0; n < tile.lanes; n += V::kLanes) {
      const V here = V::load(position + n);
      V distance = zero, local = zero;
      for (int x = 0; x < span.count; ++x) {
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
  void copies(const Tile<V>& tile, const KeySpan& span, const T* w, const T* position,
              const T* token, std::int64_t at) noexcept {
    const V zero = V::set(0);
    for (int n = 0; n < tile.lanes; n += V::kLanes) {
      const V here = V::load(position + n), mine = V::load(token + n);
      const auto equal = [&](T other, V u) __attribute__((always_inline)) {
        const V theirs = V::set(other);
        return select(less(mine, theirs), zero, select(less(theirs, mine), zero, u));
      };
      V duplicate = zero, induction = zero;
      for (int x = 0; x < span.count; ++x) {
        const V key = V::set(static_cast<T>(x)), u = V::load(w + x * tile.lanes + n);
        duplicate = duplicate + select(less(key, here), equal(arrays_.token[at + x], u), zero);
        induction = induction + select(less(here, key), zero, equal(arrays_.left[at + x], u));
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

  const InspectProblem& p;
  const InspectCall& call_;
  InspectScores<V>& scores_;
  const Sequence& sequence_;
  Arrays& arrays_;
  InspectMap<V>& map_;
  const RowRecord<T>* records_;
  HeadSums sums_;
};

}  // namespace
}  // namespace attend
