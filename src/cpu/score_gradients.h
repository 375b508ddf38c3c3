// P and dS of a group of query rows against all their keys: what every gradient is made of.
//
// ds_ij = p_ij (dp_ij - delta_i + dlse_i) needs delta_i = sum_j p_ij dp_ij, and p_ij the row's
// maximum and sum, so nothing is known before the row's last key. Two bands of scratch memory hold
// the group's scores meanwhile, O(length) in all, and no product is computed twice:
//
//   weigh          chunk by chunk of 256 keys     S^T = K Q^T,  dP^T = V dO^T;  1 to 3, 4 reversed
//                  and tile by tile of rows       W = 2^(t - m of the chunk), sums of w and w dp
//   differentiate  chunk by chunk, backwards      P = W 2^(m of the chunk - m) / l,  3 reversed
//                                                 dS = P (dP - delta + dlse)
//
//              tile 0   tile 1  ...                 row of a band: a key; lane: a query row, tiles
//            +--------+--------+--------+           side by side, so that a row of dS^T is one
//    keys,   | W, P   |        |        |           operand of dK = dS^T Q for the whole group
//    all of  |        |        |        |
//    them    +--------+--------+--------+           dP and dS lie in the other band likewise
//
// delta is formed from the very numbers dp that it is subtracted from: where one key has nearly all
// the weight, dp - delta is small, and the roundings of dp cancel in it. The caller's `out` would
// give delta without those roundings, and so a larger error.
// (What vectors do with W, dP and these sums: softmax_gradient.h.)
#pragma once

#include "core/row_sums.h"
#include "cpu/scores.h"
#include "cpu/softmax_gradient.h"

namespace attend {
namespace {

template <class V>
class ScoreGradients {
 public:
  using Operand = OperandOf<V>;
  using Sum = SumOf<V>;
  static constexpr int kMost = Tile<V>::kMost;
  static constexpr int kRows = 128 % kMost == 0 ? 128 : 96;  // of a group, at most
  static constexpr int kTiles = kRows / kMost;
  static constexpr Sum kHidden = BackwardScores<V>::kHidden;
  // A weight's error is that of its score, which comes from the length of the chain of features.
  static constexpr int kFeatures = 64;

  GradientTile<V>* tiles;  // of the group at hand
  int used = 0;
  int rows = 0;
  std::int64_t stride = 0;  // of the bands
  // Where row n of the group stands in a row of the bands. For a matrix instruction each tile has
  // a band of its own, so that a tile and a chunk lie side by side.
  std::int64_t column(int n) const noexcept {
    return kMatrix<V> ? n / kMost * band_keys(problem_) * kMost + n % kMost : n;
  }
  std::int64_t begin = 0, end = 0;
  Chunk<V> chunk;
  KeySpans* spans;  // of the chunk at hand
  Sum *p, *ds;      // [keys][stride], of the chunk at hand

  ScoreGradients(BackwardScores<V>& scores, Scratch& scratch)
      : scores_(scores), problem_(scores.p), call_(scores.call) {
    scores_.chain = kFeatures;
    if (!kMatrix<V>) scores_.k_width = BackwardScores<V>::width(problem_.d);
    const std::int64_t keys = band_keys(problem_), chunks = (keys + kChunk - 1) / kChunk;
    const std::int64_t group = group_rows(problem_) < kMost ? kMost : group_rows(problem_);
    const std::int64_t width = group < kRows ? group : kRows;
    tiles = scratch.take<GradientTile<V>>(kTiles);
    spans = scratch.take<KeySpans>(2);
    w_ = scratch.take<Sum>(saturating_count(keys, band_lanes(problem_)));
    dp_ = scratch.take<Sum>(saturating_count(keys, band_lanes(problem_)));
    slopes_ =
        scratch.take<Sum>(problem_.softcap != 0 ? saturating_count(keys, band_lanes(problem_)) : 0);
    tops_ = scratch.take<Sum>(saturating_count(chunks, width));
    partial_ = scratch.take<bool>(saturating_count(chunks, kTiles));
    factors_ = scratch.take<Sum>(problem_.drop_below != 0 ? kChunk * kMost : 0);
    const auto whole = [](std::int64_t count) {
      return kMatrix<V> ? whole_depth<V>(whole_vectors<V>(count)) : count + V::kLanes;
    };
    chunk.packed_k = scratch.take<Operand>(kChunk * whole(problem_.d));
    chunk.packed_v = scratch.take<Operand>(kChunk * whole(problem_.dv));
    for (int n = 0; TilesOf<V>::kPanels && n < 2; ++n)
      arranged_[n] =
          scratch.take<Operand>(kChunk * ((n == 0 ? problem_.d : problem_.dv) + 2 * V::kLanes));
    rows_ = scratch.take<Operand>(kMost * problem_.dv);
    for (int t = 0; t < kTiles; ++t) {
      Operand* q = scratch.take<Operand>(whole_depth<V>(problem_.d) * kMost);
      Operand* dout = scratch.take<Operand>(whole_depth<V>(problem_.dv) * kMost);
      if (tiles != nullptr) tiles[t].q = q, tiles[t].dout = dout;
    }
  }

  // Keys of a band: in whole groups of a matrix instruction.
  static std::int64_t band_keys(const BackwardProblem& problem) noexcept {
    return kGroup == 1 ? problem.k_length : (problem.k_length / kGroup + 1) * kGroup;
  }

  // How many rows share a sweep over the keys: the more, the fewer sweeps over dk and dv, but the
  // bands grow with them, and should not be larger than dk and dv are, nor than kBandBytes. By
  // the shape alone: a group is one chain of the sums of dk and dv.
  static int group_rows(const BackwardProblem& p) noexcept {
    constexpr std::int64_t kBandBytes = 32 << 20, kLeast = 16;
    const std::int64_t sums =
        (p.d + p.dv) * static_cast<std::int64_t>(sizeof(Sum) + sizeof(double));
    int count = kRows;
    while (count > kLeast) {
      const auto bytes = static_cast<std::int64_t>(2 * sizeof(Sum)) * count;
      if (bytes <= sums && bytes <= kBandBytes / (p.cut_keys() + 1)) break;
      count /= 2;
    }
    return count;
  }

  // The rows from `first` on: group_rows of them, or as many as are wanted or there are.
  void open(std::int64_t first, std::int64_t wanted = kRows) noexcept {
    const int most = group_rows(problem_) < kMost ? group_rows(problem_) : kMost;
    const int limit = group_rows(problem_) / most;
    used = rows = 0;
    begin = scores_.sequence.k_length;
    end = 0;
    for (; used < limit && rows < wanted && first + rows < scores_.rows(); ++used) {
      GradientTile<V>& tile = tiles[used];
      scores_.open(tile, first + rows,
                   wanted - rows < most ? static_cast<int>(wanted) - rows : most);
      rows += tile.rows;
      begin = tile.begin < begin ? tile.begin : begin;
      end = tile.end > end ? tile.end : end;
      take_dout(tile);
      start(tile);
    }
    stride = used == 0 ? 0 : (used - 1) * kMost + tiles[used - 1].lanes;
    if (kMatrix<V> && used > 1) stride = kMost;
    for (int t = 0; t < used; ++t) tiles[t].stride = stride;
  }

  // Both products and the sums of every row. Where rows have been summed already, over more keys
  // than there are here, the products alone, or nothing.
  void weigh() noexcept {
    if (problem_.only_joins_rows()) return finish_tiles();
    chunk.paneled_k = arranged_[0];
    chunk.paneled_v = arranged_[1];
    chunk.stripped_k = nullptr;
    chunks_ = band_end_ = 0;
    for_chunks(true, [&](std::int64_t index, std::int64_t row) {
      for (int t = 0; t < used; ++t) weigh_tile(t, index, row);
    });
    finish_tiles();
  }

  // Where the sums of row n of the tile are, that travel between calls.
  std::int64_t row_sums_at(const GradientTile<V>& tile, int n) const noexcept {
    return query_row(problem_, call_.sums, scores_.sequence, tile.h[n], tile.i[n]);
  }

  // Calls use() for every chunk that a row may see something of, with p, ds, spans and chunk.k at
  // hand.
  template <class Use>
  void for_gradients(Use use) noexcept {
    chunk.paneled_k = chunk.paneled_v = nullptr;
    chunk.stripped_k = arranged_[0];
    for_chunks(false, [&](std::int64_t index, std::int64_t row) {
      p = w_ + row * stride;
      ds = dp_ + row * stride;
      index_ = index;
      row_ = row;
      use();
    });
  }

  // Whether a pair of the chunk may be hidden.
  bool hides() const noexcept {
    bool any = false;
    for (int t = 0; t < used; ++t)
      any |= partial_[index_ * kTiles + t] || tiles[t].begin > spans->span[0].key ||
             tiles[t].end < spans->span[spans->size - 1].key + spans->span[spans->size - 1].count;
    return any;
  }

  // P and dS of the chunk, at the score after softcap. Hidden pairs are 0 in dS; in P they are 0
  // or, with marks, stay -inf.
  void differentiate(bool marks) noexcept {
    Sum factors[kRows];
    int first[kTiles], last[kTiles];
    for (int t = 0; t < used; ++t) {
      KeySpans& mine = spans[1];
      first[t] = clip(tiles[t], mine);
      last[t] = first[t] + mine.keys;
      const Sum outside = marks ? kHidden : Sum{0};
      fill(p, t, 0, first[t], outside);
      fill(ds, t, 0, first[t], Sum{0});
      fill(p, t, last[t], spans->keys, outside);
      fill(ds, t, last[t], spans->keys, Sum{0});
      if (mine.keys > 0) weight_factors(tiles[t], top_of(t, index_), factors + t * kMost);
    }
    constexpr int kSome = keys_together();
    for (int some = 0; some < spans->keys; some += kSome) {
      for (int t = 0; t < used; ++t) {
        const int from = some > first[t] ? some : first[t];
        const int to = some + kSome < last[t] ? some + kSome : last[t];
        if (from < to) differentiate_tile(t, from, to - from, factors + t * kMost, marks);
      }
    }
  }

  // dS *= the softcap's derivative: dS at the score before it.
  void through_softcap() noexcept {
    for (int t = 0; t < used; ++t) {
      KeySpans& mine = spans[1];
      const int first = clip(tiles[t], mine);
      Sum* to = ds + first * stride + column(t * kMost);
      const Sum* slopes = slopes_ + (row_ + first) * stride + column(t * kMost);
      for (int j = 0; j < mine.keys; ++j, to += stride, slopes += stride)
        for (int n = 0; n < tiles[t].lanes; n += V::kLanes)
          (V::load(to + n) * V::load(slopes + n)).store(to + n);
    }
  }

  // The keys of the chunk that the tile may see by position, counted from the first of them, which
  // is the result: its place in the group's spans.
  int clip(const Tile<V>& tile, KeySpans& mine) const noexcept {
    int first = 0;
    mine.size = mine.keys = 0;
    mine.same_blocks = spans->same_blocks;
    for (int r = 0; r < spans->size; ++r) {
      const KeySpan& span = spans->span[r];
      std::int64_t lo = tile.begin, hi = tile.end;
      if constexpr (kMatrix<V>)  // what vectors compute ends with half a group
        lo = lo / kGroup * kGroup, hi = (hi + kGroup / 2 - 1) / (kGroup / 2) * (kGroup / 2);
      if (lo < span.key) lo = span.key;
      if (hi > span.key + span.count) hi = span.key + span.count;
      if (lo >= hi) continue;
      const int at = span.at + static_cast<int>(lo - span.key);
      if (mine.size == 0) first = at;
      mine.span[mine.size++] = {lo, at - first, static_cast<int>(hi - lo)};
      mine.keys += static_cast<int>(hi - lo);
    }
    return first;
  }

 private:
  static constexpr int kGroup = kKeyGroup<V>;
  static std::int64_t band_lanes(const BackwardProblem& problem) noexcept {
    const std::int64_t all = problem.group() * problem.q_length;  // a short band for few rows
    const std::int64_t lanes = (all + V::kLanes - 1) / V::kLanes * V::kLanes;
    const std::int64_t most = group_rows(problem) < V::kLanes ? V::kLanes : group_rows(problem);
    return all <= V::kLanes || most <= V::kLanes ? V::kLanes
           : lanes < most                        ? (lanes + kMost - 1) / kMost * kMost
                                                 : most;
  }

  void take_dout(GradientTile<V>& tile) noexcept {
    const Operand* dout[kMost];
    const bool ready = is_contiguous_row<Operand>(call_.dout);
    for (int n = 0; n < tile.rows; ++n) {
      const std::int64_t at =
          query_row(problem_, call_.dout, scores_.sequence, tile.h[n], tile.i[n]);
      if (!ready) convert_row<V>(call_.dout, at, problem_.dv, rows_ + n * problem_.dv);
      dout[n] =
          ready ? reinterpret_cast<const Operand*>(call_.dout.data) + at : rows_ + n * problem_.dv;
    }
    if constexpr (kMatrix<V>) {
      for (int n = tile.rows; n < tile.lanes; ++n) dout[n] = dout[tile.rows - 1];
      Matrix<V>::queries(dout, tile.lanes, problem_.dv, tile.dout, false);
    } else {
      rows_to_operand<V>(dout, tile.rows, problem_.dv, tile.dout, tile.lanes);
    }
  }

  // The sums before the first key: the sink, a key that everybody sees, with dp = 0.
  void start(GradientTile<V>& tile) const noexcept {
    for (int n = 0; n < tile.lanes; ++n)
      tile.m[n] = kMinusInfinity, tile.l[n] = 0, tile.delta[n] = 0;
    for (int n = 0; problem_.sinks && n < tile.rows; ++n) {
      const double sink = load(call_.sinks, call_.sinks.offset(0, tile.h[n], 0));
      if (sink == kMinusInfinity) continue;
      tile.m[n] = sink;
      tile.l[n] = std::exp(sink - sink);  // 1, or NaN
    }
  }

  void finish_tiles() noexcept {
    for (int t = 0; t < used; ++t) finish(tiles[t]);
  }

  void finish(GradientTile<V>& tile) const noexcept {
    for (int n = 0; n < tile.lanes; ++n) {
      tile.delta[n] = tile.l[n] == 0 ? 0 : tile.delta[n] / tile.l[n];
      if (problem_.sums_read && n < tile.rows) {
        const RowSums sums = load_sums_of_keys(call_.sums, row_sums_at(tile, n));
        tile.m[n] = sums.top, tile.l[n] = sums.l, tile.delta[n] = sums.shift;
      } else if (problem_.dlse && n < tile.rows)
        tile.delta[n] -= load(
            call_.dlse, query_row(problem_, call_.dlse, scores_.sequence, tile.h[n], tile.i[n]));
      tile.shift[n] = static_cast<Sum>(tile.delta[n]);
    }
  }

  // Calls use(number of the chunk, its first row in the bands), forth and then back: what was
  // weighed last is still in a near cache. (A call that is to stop does not go on, so that there
  // are as many chunks back as forth.)
  template <class Use>
  void for_chunks(bool forth, Use use) noexcept {
    const std::int64_t first = begin / kChunk;
    const std::int64_t last = begin < end ? (end - 1) / kChunk : first - 1;
    for (std::int64_t n = first; n <= last; ++n) {
      if (scores_.stops()) return;
      const std::int64_t at = (forth ? n : first + last - n) * kChunk;
      const std::int64_t from = at > begin ? at : begin;
      const std::int64_t to = at + kChunk < end ? at + kChunk : end;
      find_spans(from, to);
      if (spans->keys == 0) continue;
      scores_.bring(chunk, from, to, forth);
      if constexpr (TilesOf<V>::kPanels)
        if (used >= TilesOf<V>::kArrangeBackward) scores_.arrange(chunk);
      if (!forth) --chunks_, band_end_ -= spans->keys;
      use(chunks_, band_end_);
      if (forth) ++chunks_, band_end_ += spans->keys;
    }
  }

  // The keys of the chunk that any row of the group has to look at.
  void find_spans(std::int64_t from, std::int64_t to) noexcept {
    attend::find_spans<V>(
        problem_, from, to, [&](std::int64_t j, bool& same) { return any_sees(j, same); }, *spans);
  }

  // Whether any row sees the block of key j; `same` is cleared if not all see the same.
  bool any_sees(std::int64_t j, bool& same) const noexcept {
    int seen = 0;
    for (int t = 0; t < used; ++t) seen += scores_.mask.any_sees(tiles[t], j, same) ? 1 : 0;
    if (seen != 0 && seen != used) same = false;
    return seen != 0;
  }

  void weigh_tile(int t, std::int64_t index, std::int64_t row) noexcept {
    GradientTile<V>& tile = tiles[t];
    KeySpans& mine = spans[1];
    const int first = clip(tile, mine);
    bool& partial = partial_[index * kTiles + t];
    partial = false;
    if (mine.keys == 0) return;
    const std::int64_t at = (row + first) * stride + column(t * kMost);
    const TilePairs<V> pairs{w_ + at, dp_ + at, stride};
    Sum* const top = top_of(t, index);
    Sum sum[kMost], dot[kMost];
    partial = scores_.compute(tile, chunk, mine, pairs.w, top,  // 1 scores, 2 mask
                              problem_.softcap != 0 ? slopes_ + at : nullptr);
    partial = partial || !edges_finite(tile, pairs.w, mine.keys);
    const bool drops = problem_.drop_below != 0;
    if (drops) scores_.mask.dropout(tile, mine, factors_);
    const auto weigh = [&](auto vectors) {
      value_products<vectors>(tile, mine, pairs.dp);  // 4 reversed
      weigh_keys<V, vectors>(pairs, mine, partial, drops ? factors_ : nullptr, top, sum, dot);
    };
    if (tile.lanes == V::kLanes) weigh(At<1>{});
    else weigh(At<kTileVectors<V>>{});
    for (int n = 0; n < tile.lanes; ++n) {  // joined in f64, in ascending order
      const double chunk_top = top[n] < std::numeric_limits<Sum>::lowest()
                                   ? kMinusInfinity
                                   : static_cast<double>(top[n]);
      const double m = chunk_top > tile.m[n] ? chunk_top : tile.m[n];
      const double mine_factor = exp_of_difference(tile.m[n], m);
      const double other = exp_of_difference(chunk_top, m);
      tile.l[n] = tile.l[n] * mine_factor + static_cast<double>(sum[n]) * other;
      tile.delta[n] = tile.delta[n] * mine_factor + static_cast<double>(dot[n]) * other;
      tile.m[n] = m;
    }
  }

  // The largest scores of a tile's rows in a chunk.
  Sum* top_of(int t, std::int64_t index) const noexcept {
    return tops_ + (index * used + t) * (used > 1 ? kMost : tiles[0].lanes);
  }

  // dp = v . dout of every key in the spans.
  template <int kVectors>
  void value_products(const GradientTile<V>& tile, const KeySpans& mine, Sum* dp) const noexcept {
    for (int r = 0; r < mine.size; ++r) {
      const KeySpan& span = mine.span[r];
      const std::int64_t first = span.key - chunk.from;
      if constexpr (kMatrix<V>) {
        const GroupedRows<V> v = scores_.groups.values(chunk);
        for (int j = 0; j < span.count; j += kGroup)
          group_products(v, first + j, tile.dout, tile.rows, tile.lanes, 0, v.depth,
                         dp + (span.at + j) * stride, stride, V::kLanes);
      } else {
        const Operands<V> x{.a = chunk.v + first * chunk.v_stride,
                            .a_stride = chunk.v_stride,
                            .b = tile.dout,
                            .b_stride = tile.lanes,
                            .c = dp + span.at * stride,
                            .c_stride = stride,
                            .depth = problem_.dv};
        if constexpr (kVectors == 1) product<V, 1, Layout::streamed>(x, span.count);
        else
          chunk_products<V, kVectors, Layout::streamed>(x, span.count, chunk.v_panels, first,
                                                        whole_depth<V>(problem_.dv));
      }
    }
  }

  // Few keys of every tile: the bands, too large for the nearer caches, are read as they lie.
  static constexpr int keys_together() noexcept {
    if constexpr (kMatrix<V>) return static_cast<int>(kChunk);
    else return TilesOf<V>::kBandKeys;
  }

  void differentiate_tile(int t, int from, int count, const Sum* factors, bool marks) noexcept {
    const std::int64_t at = from * stride + column(t * kMost);
    const auto differentiate = [&](auto vectors) {
      differentiate_keys<V, vectors>(tiles[t], {p + at, ds + at, stride}, count, factors,
                                     !partial_[index_ * kTiles + t] && problem_.drop_below == 0,
                                     marks, static_cast<Sum>(kept_factor(problem_)));
    };
    if (tiles[t].lanes == V::kLanes) differentiate(At<1>{});
    else differentiate(At<kTileVectors<V>>{});
  }

  void fill(Sum* band, int t, int from, int to, Sum value) const noexcept {
    for (int j = from; j < to; ++j)
      for (int n = 0; n < tiles[t].lanes; n += V::kLanes)
        V::set(value).store(band + j * stride + column(t * kMost) + n);
  }

  BackwardScores<V>& scores_;
  const BackwardProblem& problem_;
  const BackwardCall& call_;
  Sum *w_, *dp_, *slopes_;     // the bands, [keys][stride]
  Operand* arranged_[2] = {};  // keys and values of a chunk as panels, then keys as strips
  Sum* tops_;                  // [chunks][lanes of the group]
  bool* partial_;              // [chunks][tiles]
  Sum* factors_;               // [256][lanes]
  Operand* rows_;              // [lanes][dv]
  std::int64_t index_ = 0, row_ = 0;
  std::int64_t chunks_ = 0, band_end_ = 0;  // weighed, and not yet differentiated
};

}  // namespace
}  // namespace attend
