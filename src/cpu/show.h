// Weights and scores on request, in a second sweep over the scores of a tile: the weights need the
// row's final maximum and sum. Length x length numbers are written, so nothing here is hot, but of
// heads whose weights are not asked for nothing is computed again.
#pragma once

#include "cpu/sums.h"

namespace attend {
namespace {

template <class V>
class Show {
  using T = typename V::T;
  static constexpr int kRoom = Tile<V>::kRoom;

 public:
  Show(ForwardScores<V>& scores, Chunk<V>& chunk, KeySpans& spans, T* s)
      : p(scores.p), call_(scores.call), scores_(scores), chunk_(chunk), spans_(spans), s_(s) {}

  // What is hidden, in the rows [first, first + count) of (query, head of the group), those that
  // the sequence does not have included: weight 0, score -inf.
  void hide_rows(std::int64_t first, std::int64_t count) noexcept {
    const std::int64_t rows = p.group() * p.q_length;
    for (std::int64_t r = first; r < rows && r < first + count; ++r) {
      if (scores_.stops()) return;
      const std::int64_t i = r / p.group(), h = scores_.kv_head * p.group() + r % p.group();
      if (const std::int64_t place = place_in_weights(p, call_, h); place >= 0)
        fill(call_.weights, place, i, 0);
      if (p.scores) fill(call_.scores, h, i, kMinusInfinity);
    }
  }

  // The scores after the mask, and the weights, which need the sums of the tiles.
  void visible(const Sums<V>* tiles, int used) noexcept {
    const bool masked = p.scores && p.stage == ScoreStage::masked;
    const bool apart = p.weight_heads != 0 && p.group() != 1;
    for (int t = 0; t < used; ++t) {
      const bool weights = !apart && place_in_weights(p, call_, tiles[t].h[0]) >= 0;
      sweep(tiles[t], masked, weights, tiles[t].top, tiles[t].l);
    }
    const std::int64_t first = scores_.kv_head * p.group();
    for (std::int64_t h = first; apart && h < first + p.group(); ++h)
      if (place_in_weights(p, call_, h) >= 0) one_head(tiles, used, h);
  }

  // The scores before the mask: every stored key has one, hidden or not.
  void unmasked(const Tile<V>& tile) noexcept {
    if (!p.scores || p.stage == ScoreStage::masked) return;
    for (std::int64_t at = 0; at < scores_.sequence.k_stored; at += kChunk) {
      if (scores_.stops()) return;
      const std::int64_t left = scores_.sequence.k_stored - at;
      const int count = static_cast<int>(left < kChunk ? left : kChunk);
      scores_.bring(chunk_, at, at + count, false);
      spans_.size = 1;
      spans_.keys = count;
      spans_.span[0] = {at, 0, count};
      T top[kRoom];
      scores_.products(tile, chunk_, spans_.span[0], s_, top);
      if (p.stage == ScoreStage::softcapped) cap(tile);
      write_scores(tile);
    }
  }

 private:
  // Weights are computed 2^64 times as large: down to the last subnormal number they are there.
  static constexpr double kLifted = 64, kUnlifted = 0x1p-64;

  // The rows of one of the group's heads, gathered from the tiles: other heads' rows, which stand
  // between them there, are not computed again. The first tile's packed q is lost.
  void one_head(const Sums<V>* tiles, int used, std::int64_t h) noexcept {
    Tile<V> tile;
    tile.q = tiles[0].q;
    double top[kRoom], l[kRoom];
    std::int64_t first = 0;
    int rows = 0;
    const auto show = [&] {
      if (rows == 0) return;
      for (int n = rows; n < kRoom; ++n) top[n] = kMinusInfinity, l[n] = 0;
      scores_.head = h;
      scores_.open(tile, first, rows);
      scores_.head = -1;
      sweep(tile, false, true, top, l);
      rows = 0;
    };
    for (int t = 0; t < used; ++t) {
      for (int n = 0; n < tiles[t].rows; ++n) {
        if (tiles[t].h[n] != h) continue;
        if (rows == 0) first = tiles[t].i[n];
        top[rows] = tiles[t].top[n], l[rows] = tiles[t].l[n];
        if (++rows == Tile<V>::kMost) show();
      }
    }
    show();
  }

  // One tile: p = weight(s, top) / l, and the scores after the mask.
  void sweep(const Tile<V>& tile, bool masked, bool weights, const double* top_of_row,
             const double* l) noexcept {
    if (!weights && !masked) return;
    for (std::int64_t at = tile.begin / kChunk * kChunk; at < tile.end; at += kChunk) {
      if (scores_.stops()) return;
      scores_.bring(chunk_, at > tile.begin ? at : tile.begin,
                    at + kChunk < tile.end ? at + kChunk : tile.end, false);
      scores_.find_spans(tile, chunk_, spans_);
      if (spans_.keys == 0) continue;
      T top[kRoom];
      scores_.compute(tile, chunk_, spans_, s_, top);
      if (masked) write_scores(tile);
      if (!weights) continue;
      weigh(tile, top_of_row);
      write(call_.weights, tile, true,
            [&](int n, T u) {  // what is hidden is 0 in a row of NaN, too
              return u < 0 ? 0 : static_cast<double>(u) * (kUnlifted / l[n]);
            });
    }
  }

  void fill(const Strided& t, std::int64_t h, std::int64_t i, double value) noexcept {
    for (std::int64_t j = 0; j < p.k_length; ++j)
      store(t, t.offset(scores_.sequence.b, h, i, j), value);
  }

  // s becomes 2^64 weight(s, top), and -1 where it is hidden.
  void weigh(const Tile<V>& tile, const double* top) noexcept {
    using D = typename V::Double;
    double high[kRoom], low[kRoom];  // the unit of l, as a score in two parts
    for (int n = 0; n < tile.lanes; ++n) {
      const bool far = is_far(top[n]);
      const double m = far ? 0 : std::ceil(log2_units(top[n]));
      high[n] = far && top[n] != kMinusInfinity ? top[n] : m * kLn2High;
      low[n] = m * kLn2Low;
    }
    const V lowest = V::set(std::numeric_limits<T>::lowest()), hidden = V::set(-1);
    for (int n = 0; n < tile.lanes; n += V::kLanes) {
      D from[V::kDoubles], rest[V::kDoubles];
      unrolled<V::kDoubles>(ATTEND_EACH(k) {
        from[k] = D::load(high + n + k * D::kLanes);
        rest[k] = D::load(low + n + k * D::kLanes);
      });
      for (int j = 0; j < spans_.keys; ++j) {
        T* at = s_ + j * tile.stride + tile.column(n);
        const V u = V::load(at);
        D t[V::kDoubles];
        unrolled<V::kDoubles>(ATTEND_EACH(k) {
          t[k] = lifted((wide<k>(u) - from[k] - rest[k]) * D::set(std::numbers::log2e));
        });
        select(less(u, lowest), hidden, V::narrowed(t)).store(at);
      }
    }
  }

  // 2^(x + 64). The sum would round: it is taken where x is as large as it. Above the row's maximum
  // are scores beside a NaN: any weight will do, it is divided by a NaN, but none below 0.
  template <class D>
  ATTEND_INLINE static D lifted(D x) {
    x = select(less(D::set(1), x), D::set(1), x);
    const auto small = less(x, D::set(-900));
    const D power = exp2_of(select(small, x + D::set(kLifted), x));
    return select(small, power, power * D::set(1 / kUnlifted));
  }

  void cap(const Tile<V>& tile) noexcept {
    const KeySpan& span = spans_.span[0];
    for (int n = 0; n < tile.rows; ++n) {
      for (int x = 0; x < span.count; ++x) {
        T& u = s_[x * tile.stride + tile.column(n)];
        auto score = static_cast<double>(u);
        if (p.bias_before_softcap)
          score += added(p, call_, scores_.sequence, tile.h[n], tile.i[n], span.key + x);
        u = static_cast<T>(p.softcap == 0 ? score : p.softcap * std::tanh(score / p.softcap));
      }
    }
  }

  void write_scores(const Tile<V>& tile) noexcept {
    write(call_.scores, tile, false, [](int, T u) { return static_cast<double>(u); });
  }

  // value(row, s) of every key in the spans, each rounded once. Weights are written to their head's
  // place among the chosen ones.
  template <class Value>
  void write(const Strided& t, const Tile<V>& tile, bool weights, Value value) noexcept {
    with_type(t.type, [&]<class E>(E) {
      for (int n = 0; n < tile.rows; ++n) {
        const std::int64_t h = weights ? place_in_weights(p, call_, tile.h[n]) : tile.h[n];
        for (int r = 0; r < spans_.size; ++r) {
          const KeySpan& span = spans_.span[r];
          E* to =
              reinterpret_cast<E*>(t.data) + t.offset(scores_.sequence.b, h, tile.i[n], span.key);
          const std::int64_t left =
              scores_.sequence.k_stored - span.key;  // groups may end behind it
          for (int x = 0; x < span.count && x < left; ++x)
            to[x * t.stride[3]] =
                static_cast<E>(value(n, s_[(span.at + x) * tile.stride + tile.column(n)]));
        }
      }
    });
  }

  const ForwardProblem& p;
  const ForwardCall& call_;
  ForwardScores<V>& scores_;
  Chunk<V>& chunk_;
  KeySpans& spans_;
  T* s_;
};

}  // namespace
}  // namespace attend
