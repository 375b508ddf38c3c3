// Sweep 1 of the statistics: what belongs to a row. It is forward without the values; beside the
// sum of the weights w = e^(s - top) of a chunk it keeps that of w x, x = log2 w. With both brought
// to one unit (softmax_state.h) and added up over the chunks, l = sum w and turn = sum w log2 w:
//
//   entropy = (seen ln l - ln 2 turn) / l
//
// where l counts the sink and seen, the sum over the keys, does not. The largest keys of the rows
// are lists in order, which a key enters only if it beats the last: few do.
#pragma once

#include "cpu/scores.h"

namespace attend {
namespace {

// What sweep 2 needs of a row: p = e^(s - base) * scale.
template <class T>
struct RowRecord {
  T base, scale;  // the largest score, and its weight
  T visible;      // how many keys it sees
};

template <class V>
class InspectRows {
  using T = typename V::T;
  static constexpr int kMost = Tile<V>::kMost;
  static constexpr int kTiles = 4;  // of a task: they share a chunk while it is in the cache
  static constexpr int kSlice = 8;  // keys of a span that are tested together
  static constexpr int kSlices = kChunk / kSlice + kChunk / 2 + 1;  // in all spans of a chunk
  static constexpr T kHidden = InspectScores<V>::kHidden;

  struct InspectedTile : Tile<V> {
    double top[kMost], l[kMost], up[kMost];  // as forward has them
    double seen[kMost], turn[kMost];         // in the unit of l
    double visible[kMost];
    T best[kMost];             // the largest score
    T bound[kMost];            // a score up to it does not enter the list
    T *top_scores, *top_keys;  // [top_k][lanes], descending; a key as a number, -1: none
  };

  struct Arrays {
    InspectedTile* tiles;
    KeySpans* spans;
    Chunk<V> chunk;
    T* s;  // [256][lanes]
    KeySpan* slices;
    T* maxima;  // [slices][lanes]
    T* sorted;  // [top_k][lanes]
    Arrays(const InspectProblem& p, Scratch& scratch) {
      tiles = scratch.take<InspectedTile>(kTiles);
      spans = scratch.take<KeySpans>(1);
      s = scratch.take<T>(kChunk * kMost);
      slices = scratch.take<KeySpan>(p.top_k > 0 ? kSlices : 0);
      maxima = scratch.take<T>(p.top_k > 0 ? kSlices * kMost : 0);
      sorted = scratch.take<T>(p.top_k * kMost);
      chunk.packed_k = scratch.take<OperandOf<V>>(kChunk * p.d);
      for (int t = 0; t < kTiles; ++t) {
        auto* q = scratch.take<OperandOf<V>>(whole_depth<V>(p.d) * kMost);
        T* scores = scratch.take<T>(kMost * p.top_k);
        T* keys = scratch.take<T>(kMost * p.top_k);
        if (tiles != nullptr)
          tiles[t].q = q, tiles[t].top_scores = scores, tiles[t].top_keys = keys;
      }
    }
  };

 public:
  static constexpr std::int64_t kRows = kMost * kTiles;  // of a task

  static std::size_t scratch_bytes(const InspectProblem& p) {
    Scratch scratch(nullptr);
    const InspectCall none;
    InspectScores<V> scores(p, none, scratch);
    Arrays arrays(p, scratch);
    return scratch.used();
  }

  // The rows from `first` on of the key head; records is [batch][heads][queries].
  static void run(const InspectProblem& p, const InspectCall& call, std::int64_t b,
                  std::int64_t kv_head, std::int64_t first, const Task& task,
                  RowRecord<T>* records) noexcept {
    Scratch scratch(task.scratch);
    InspectScores<V> scores(p, call, scratch);
    scores.interrupt = task.interrupt;
    Arrays own(p, scratch);
    scores.sequence = sequence_of(p, call, b);
    scores.kv_head = kv_head;
    InspectRows(p, call, scores, own, records).task_tiles(first);
  }

 private:
  InspectRows(const InspectProblem& problem, const InspectCall& call, InspectScores<V>& scores,
              Arrays& arrays, RowRecord<T>* records)
      : p(problem), call_(call), scores_(scores), arrays_(arrays), records_(records) {}

  void task_tiles(std::int64_t first) noexcept {
    int used = 0;
    std::int64_t begin = scores_.sequence.k_length, end = 0;
    for (; used < kTiles && first + used * kMost < scores_.rows(); ++used) {
      InspectedTile& tile = arrays_.tiles[used];
      open(tile, first + used * kMost);
      begin = tile.begin < begin ? tile.begin : begin;
      end = tile.end > end ? tile.end : end;
    }
    for (std::int64_t at = begin / kChunk * kChunk; at < end; at += kChunk) {
      if (must_stop(scores_.interrupt)) return;
      scores_.bring(arrays_.chunk, at > begin ? at : begin, at + kChunk < end ? at + kChunk : end,
                    false);
      for (int t = 0; t < used; ++t) {
        arrays_.chunk.cold = t == 0;
        take(arrays_.tiles[t]);
      }
    }
    for (int t = 0; t < used; ++t) close(arrays_.tiles[t]);
  }

  void open(InspectedTile& tile, std::int64_t first) noexcept {
    scores_.open(tile, first);
    for (int n = 0; n < tile.lanes; ++n) {
      SoftmaxState state;
      if (p.sinks && n < tile.rows) {
        const double sink = load(call_.sinks, call_.sinks.offset(0, tile.h[n], 0));
        if (sink != kMinusInfinity) state.add(sink);
      }
      tile.top[n] = state.top, tile.l[n] = state.l, tile.up[n] = 1;
      tile.seen[n] = tile.turn[n] = tile.visible[n] = 0;
      tile.best[n] = tile.bound[n] = kHidden;
    }
    for (std::int64_t x = 0; x < kMost * p.top_k; ++x)
      tile.top_scores[x] = kHidden, tile.top_keys[x] = -1;
  }

  // One chunk: steps 1 to 3.
  void take(InspectedTile& tile) noexcept {
    KeySpans& spans = *arrays_.spans;
    scores_.find_spans(tile, arrays_.chunk, spans);
    if (spans.keys == 0) return;
    T top[kMost], sum[kMost], turn[kMost];
    bool partial = scores_.compute(tile, arrays_.chunk, spans, arrays_.s, top);
    partial = partial || !edges_finite(tile, arrays_.s, spans.keys);
    if (tile.lanes == V::kLanes) softmax<1>(spans.keys, top, sum, turn);
    else softmax<kTileVectors<V>>(spans.keys, top, sum, turn);
    count(tile, spans.keys, partial);
    join(tile, top, sum, turn);
    if (p.top_k > 0) enter(tile, spans);
  }

  // Of w = 2^x, x = (s - top) log2(e): sum = sum of w, turn = sum of w x.
  template <int kVectors>
  void softmax(int keys, const T* top, T* sum, T* turn) const noexcept {
    const V log2e = V::set(Exp2<T>::kLog2E), lowest = V::set(V::kLowestPower);
    V base[kVectors], total[kVectors], turned[kVectors];
    unrolled<kVectors>(ATTEND_EACH(n) {
      const V most = V::load(top + n * V::kLanes);
      const V none = V::set(std::numeric_limits<T>::lowest());  // nothing visible: any number does
      base[n] = select(less(most, none), V::set(0), most);
      total[n] = turned[n] = V::set(0);
    });
    for (int j = 0; j < keys; ++j) {
      unrolled<kVectors>(ATTEND_EACH(n) {
        const V x = (V::load(arrays_.s + (j * kVectors + n) * V::kLanes) - base[n]) * log2e;
        const V w = exp2_of(x);
        total[n] = total[n] + w;
        turned[n] = fma(w, larger(lowest, x), turned[n]);  // 0 times a number, not times -inf
      });
    }
    unrolled<kVectors>(ATTEND_EACH(n) {
      total[n].store(sum + n * V::kLanes);
      turned[n].store(turn + n * V::kLanes);
    });
  }

  void count(InspectedTile& tile, int keys, bool partial) const noexcept {
    T seen[kMost];
    for (int n = 0; n < tile.lanes; n += V::kLanes) {
      V sum = V::set(static_cast<T>(partial ? 0 : keys));
      const V lowest = V::set(std::numeric_limits<T>::lowest());
      for (int j = 0; partial && j < keys; ++j) {
        const V u = V::load(arrays_.s + j * tile.lanes + n);
        sum = sum + select(less(u, lowest), V::set(0), V::set(1));
      }
      sum.store(seen + n);
    }
    for (int n = 0; n < tile.rows; ++n) tile.visible[n] += static_cast<double>(seen[n]);
  }

  // Adds a chunk to what was there. top and l go as forward's do, so that lse has its bits.
  //   e^top = 2^(m + rest), up = 2^rest; far from 0 the unit is e^top
  void join(InspectedTile& tile, const T* top, const T* sum, const T* turn) const noexcept {
    using D = typename V::Double;
    double rests[kMost], ups[kMost];
    for (int n = 0; n < tile.lanes; n += V::kLanes) {
      unrolled<V::kDoubles>(ATTEND_EACH(k) {
        const int at = n + k * D::kLanes;
        const D rest = rest_of(wide<k>(V::load(top + n)));
        rest.store(rests + at);
        exp2_of(rest).store(ups + at);
      });
    }
    for (int n = 0; n < tile.rows; ++n) {
      const auto chunk_sum = static_cast<double>(sum[n]);
      if (chunk_sum == 0) continue;  // nothing of the chunk is visible
      if (top[n] > tile.best[n]) tile.best[n] = top[n];
      const auto highest = static_cast<double>(top[n]);
      const double rest = is_far(highest) ? 0 : rests[n], up = is_far(highest) ? 1 : ups[n];
      const double most = highest > tile.top[n] ? highest : tile.top[n];
      const double mine = rescale_factor(tile.top[n], most);
      const double other = rescale_factor(highest, most) * up;
      double sums = 0, turns = 0;
      if (mine != 0) {
        sums = tile.seen[n] * mine;
        turns = (tile.turn[n] + octaves(tile.top[n], most) * tile.seen[n]) * mine;
      }
      if (other != 0) {
        sums += chunk_sum * other;
        turns +=
            (static_cast<double>(turn[n]) + (rest + octaves(highest, most)) * chunk_sum) * other;
      }
      if (tile.l[n] == 0) {
        tile.l[n] = chunk_sum, tile.up[n] = up;
      } else {
        tile.l[n] = tile.l[n] * (tile.up[n] * mine) + chunk_sum * other;
        tile.up[n] = 1;
      }
      tile.top[n] = most, tile.seen[n] = sums, tile.turn[n] = turns;
    }
  }

  // The largest keys: where the maximum of a slice beats the bound of any row, its keys are tried.
  void enter(InspectedTile& tile, const KeySpans& spans) const noexcept {
    const int slices = find_maxima(tile, spans);
    const T* last = tile.top_keys + (p.top_k - 1) * kMost;
    bool full = true;
    for (int n = 0; n < tile.rows; ++n) full = full && last[n] >= 0;
    ATTEND_PATH_IF(full, V, "largest keys, list full");
    ATTEND_PATH_IF(!full && slices >= p.top_k, V, "largest keys, bound raised");
    if (!full && slices >= p.top_k) raise_bounds(tile, slices);
    for (int b = 0; b < slices; ++b) {
      const KeySpan& slice = arrays_.slices[b];
      for (int n = 0; n < tile.lanes; n += V::kLanes) {
        if (!any_less(V::load(tile.bound + n), V::load(arrays_.maxima + b * kMost + n))) continue;
        for (int j = 0; j < slice.count; ++j) {
          const V u = V::load(arrays_.s + (slice.at + j) * tile.lanes + n);
          if (any_less(V::load(tile.bound + n), u)) insert(tile, n, u, slice.key + j);
        }
      }
    }
  }

  // The spans cut into slices, and the maximum of each; gives their number.
  int find_maxima(const InspectedTile& tile, const KeySpans& spans) const noexcept {
    int slices = 0;
    for (int r = 0; r < spans.size; ++r) {
      const KeySpan& span = spans.span[r];
      for (int x = 0; x < span.count; x += kSlice, ++slices) {
        const int keys = span.count - x < kSlice ? span.count - x : kSlice;
        arrays_.slices[slices] = {span.key + x, span.at + x, keys};
        for (int n = 0; n < tile.lanes; n += V::kLanes) {
          const T* s = arrays_.s + (span.at + x) * tile.lanes + n;
          V most = V::load(s);
          for (int j = 1; j < keys; ++j) {
            const V u = V::load(s + j * tile.lanes);
            most = select(less(most, u), u, most);
          }
          most.store(arrays_.maxima + slices * kMost + n);
        }
      }
    }
    return slices;
  }

  // Lists begin empty, and nearly every key would enter. But each slice has a key as large as its
  // maximum, so the last of the list will not be below the top_k-th of the maxima.
  void raise_bounds(InspectedTile& tile, int slices) const noexcept {
    T* sorted = arrays_.sorted;  // [top_k][lanes], descending
    for (std::int64_t x = 0; x < p.top_k * kMost; ++x) sorted[x] = kHidden;
    for (int n = 0; n < tile.lanes; n += V::kLanes) {
      for (int b = 0; b < slices; ++b) {
        V u = V::load(arrays_.maxima + b * kMost + n);
        for (std::int64_t x = 0; x < p.top_k; ++x) {
          T* at = sorted + x * kMost + n;
          const V here = V::load(at);
          const auto below = less(here, u);
          select(below, u, here).store(at);
          u = select(below, here, u);
        }
      }
    }
    const T* last = sorted + (p.top_k - 1) * kMost;
    for (int n = 0; n < tile.rows; ++n) {
      const T size = last[n] < 0 ? -last[n] : last[n];
      const T bound = last[n] - size * T{0x1p-16F} - std::numeric_limits<T>::min();  // just below
      if (bound > tile.bound[n]) tile.bound[n] = bound;
    }
  }

  // A key into the lists of the lanes from n on: what is smaller than u moves down one place, and u
  // takes its own; equal scores stay before it.
  void insert(InspectedTile& tile, int n, V u, std::int64_t key) const noexcept {
    T *scores = tile.top_scores + n, *keys = tile.top_keys + n;
    const V infinity = V::set(-kHidden);
    V above = infinity, above_key = infinity, mine = V::set(static_cast<T>(key));
    for (std::int64_t at = 0; at < p.top_k; ++at, scores += kMost, keys += kMost) {
      const V here = V::load(scores), here_key = V::load(keys);
      const auto moves = less(above, u), enters = less(here, u);
      select(moves, above, select(enters, u, here)).store(scores);
      select(moves, above_key, select(enters, mine, here_key)).store(keys);
      above = here, above_key = here_key;
    }
    larger(V::load(tile.bound + n), V::load(scores - kMost)).store(tile.bound + n);
  }

  // Whether a < b in any lane.
  ATTEND_INLINE static bool any_less(V a, V b) {
    return !all_finite(select(less(a, b), V::set(-kHidden), V::set(0)));
  }

  void close(const InspectedTile& tile) noexcept {
    for (int n = 0; n < tile.rows; ++n) {
      const SoftmaxState state{tile.top[n], tile.l[n] * tile.up[n]};
      const auto weight_of = [&](T s) {
        return weight(static_cast<double>(s), state.top) / state.l;
      };
      const bool sees = tile.visible[n] > 0, number = state.l == state.l;
      double maximum = 0, entropy = 0;
      if (sees) {
        maximum = number ? weight_of(tile.best[n]) : state.l;
        entropy = (tile.seen[n] * std::log(state.l) - std::numbers::ln2 * tile.turn[n]) / state.l;
        if (entropy < 0) entropy = 0;  // of one key, rounded
      }
      const auto at = [&](const Strided& t) {
        return query_row(p, t, scores_.sequence, tile.h[n], tile.i[n]);
      };
      store(call_.lse, at(call_.lse), state.lse());
      store(call_.maximum, at(call_.maximum), maximum);
      store(call_.entropy, at(call_.entropy), entropy);
      for (std::int64_t x = 0; x < p.top_k; ++x) {
        const auto key = number ? static_cast<std::int64_t>(tile.top_keys[x * kMost + n]) : -1;
        store_integer(call_.top_keys, at(call_.top_keys) + x, key);
        store(call_.top_weights, at(call_.top_weights) + x,
              !number   ? state.l
              : key < 0 ? 0
                        : weight_of(tile.top_scores[x * kMost + n]));
      }
      records_[(scores_.sequence.b * p.heads + tile.h[n]) * p.q_length + tile.i[n]] = {
          sees && number ? tile.best[n] : T{0}, static_cast<T>(maximum),
          static_cast<T>(tile.visible[n])};
    }
  }

  const InspectProblem& p;
  const InspectCall& call_;
  InspectScores<V>& scores_;
  Arrays& arrays_;
  RowRecord<T>* records_;
};

}  // namespace
}  // namespace attend
