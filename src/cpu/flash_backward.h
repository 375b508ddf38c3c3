// Attention backward, fused: five products, O(length) memory, the same bits on any number of
// threads.
//
// A task owns a key head (or a segment of its query rows, see segments.h) and goes through the rows
// group by group. For each group score_gradients.h leaves P and dS in two bands, and three
// products are left, chunk by chunk of 256 keys, all of them product.h:
//
//            rows of the group                      dQ [rows][d]    += dS K          tile by tile
//          +-------------------+                    dV [keys][dv]   += P^T dO        key_sums.h
//    chunk |   P^T   and dS^T  |                    dK [keys][d]    += dS^T Q        key_sums.h
//   of 256 |                   |
//    keys  +-------------------+                    features in lanes, so that nothing is
//                                                   transposed on its way out
//
// dq of a chunk is summed in f32, chunks in f64, descending. Registers as in product.h. What limits
// it is the multiplier: 5 products of 2 d flop a pair, beside some 25 instructions a vector of
// pairs for softmax and dS; from T = 2048 on also the caches, since K, V, dK and dV pass by once a
// group. It declines nothing but the machine. `attend bench --suite backward --threads 1`, five
// products counted, 2048 keys, 2026-11-15: 69 % of the peak at d = 64, 71 % at d = 128, causal, on
// Neoverse N1; 50 % and 59 % on a core with neighbours of an AVX-512 Xeon.
//
// dalibi and dsinks are summed on the way. dbias, which is of any broadcast shape, has tasks of its
// own (bias_gradient.h).
#pragma once

#include "cpu/bias_gradient.h"
#include "cpu/key_sums.h"
#include "cpu/row.h"

namespace attend {
namespace {

template <class V>
class FlashBackward {
  using Sum = SumOf<V>;
  using TileGroup = ScoreGradients<V>;
  static constexpr int kMost = TileGroup::kMost, kTiles = TileGroup::kTiles;
  static constexpr int kSlice = 64;  // keys whose rows stay in the nearest cache

  struct Arrays {
    KeySums<V> dk, dv;
    Sum* dq[kTiles];          // [rows][width]  of the chunk at hand
    double* dq_sum[kTiles];   // [rows][width]
    double *dalibi, *dsinks;  // [heads of the group]
    double alibi_row[TileGroup::kRows], bias_row[TileGroup::kRows];
    [[no_unique_address]] SumsAsOperand<V> pairs;
    Sum* turned;  // dS of a tile and a chunk, for a matrix instruction
    Arrays(const BackwardProblem& p, const BackwardCall& call, const Segments<V>& segments,
           BackwardScores<V>& scores, TileGroup& group, Scratch& scratch)
        : dk(scores, group, scratch, segments, {p.dk, p.d, call.q, call.dk, p.scale}),
          dv(scores, group, scratch, segments, {p.dv_gradient, p.dv, call.dout, call.dv, 1}),
          pairs(scratch, kChunk * TileGroup::kRows) {
      const std::int64_t size = p.dq ? kMost * BackwardScores<V>::width(p.d) : 0;
      for (int t = 0; t < kTiles; ++t) {
        dq[t] = scratch.take<Sum>(size);
        dq_sum[t] = scratch.take<double>(p.k_length > kChunk ? size : 0);
      }
      turned = scratch.take<Sum>(kMatrix<V> && p.dq ? kChunk * kMost : 0);
      dalibi = scratch.take<double>(p.group());
      dsinks = scratch.take<double>(p.group());
    }
  };

 public:
  using Operation = Backward;
  static constexpr int kStages = 2;

  static Tiles tiles(const BackwardProblem& p, const Machine&) {
    return {TileGroup::group_rows(p), kChunk};
  }

  static std::int64_t tasks(const BackwardProblem& p, const Tiles& tiles, int stage) {
    const Segments<V> segments(p, tiles);
    return stage == 0 ? segments.tasks() + BiasGradient<V>::tasks(p) : segments.joins();
  }

  static Workspace workspace(const BackwardProblem& p, const Tiles& tiles) {
    const BackwardCall none;
    const Segments<V> segments(p, tiles);
    Scratch scratch(nullptr), shared(nullptr);
    BackwardScores<V> scores(p, none, scratch);
    TileGroup group(scores, scratch);
    Scratch bias = scratch;
    if (segments.tasks() > 0) Arrays(p, none, segments, scores, group, scratch);
    if (BiasGradient<V>::tasks(p) > 0) BiasGradient<V>::take(p, bias);
    segments.take(shared);
    return {.shared = shared.used(),
            .per_strand = scratch.used() > bias.used() ? scratch.used() : bias.used()};
  }

  static void run(const BackwardProblem& p, const Tiles& tiles, const BackwardCall& call,
                  const Task& task) noexcept {
    const Segments<V> segments(p, tiles);
    if (task.stage == 1) return segments.join(call, task);
    Scratch scratch(task.scratch);
    BackwardScores<V> scores(p, call, scratch);
    scores.interrupt = task.interrupt;
    TileGroup group(scores, scratch);
    if (task.index >= segments.tasks()) {
      BiasGradient<V>(scores, group, scratch).run(task.index - segments.tasks());
      return;
    }
    Arrays arrays(p, call, segments, scores, group, scratch);
    FlashBackward f{p, call, segments, scores, group, arrays};
    // Causal: the last rows see the most keys.
    const std::int64_t last = segments.apart ? segments.count - 1 : 0;
    f.task_segment(task.index % segments.heads, last - task.index / segments.heads, task.shared);
  }

 private:
  FlashBackward(const BackwardProblem& problem, const BackwardCall& call,
                const Segments<V>& segments, BackwardScores<V>& scores, TileGroup& group,
                Arrays& arrays)
      : p(problem), call_(call), segments_(segments), scores_(scores), group_(group),
        arrays_(arrays) {}

  static std::int64_t width(std::int64_t features) { return BackwardScores<V>::width(features); }

  // ---- a task ----------------------------------------------------------------------------------

  void task_segment(std::int64_t head, std::int64_t segment, std::byte* shared) noexcept {
    Scratch scratch(shared);
    const auto left = segments_.take(scratch);
    const std::int64_t place = segments_.apart ? head * segments_.count + segment : head;
    for (std::int64_t g = 0; g < p.group(); ++g) arrays_.dalibi[g] = arrays_.dsinks[g] = 0;
    arrays_.dk.begin(segments_.apart ? left.dk + place * p.k_length * width(p.d) : nullptr);
    arrays_.dv.begin(segments_.apart ? left.dv + place * p.k_length * width(p.dv) : nullptr);
    ATTEND_PATH_IF(segments_.apart, V, "segments apart");
    ATTEND_PATH_IF(segments_.count > 1 && !segments_.apart, V, "segments together");
    scores_.kv_head = head % p.kv_heads;
    const std::int64_t first = paged(p) ? 0 : head / p.kv_heads;
    for (std::int64_t b = first; b < (paged(p) ? p.batch : first + 1); ++b) {
      scores_.sequence = sequence_of(p, call_, b);
      const std::int64_t rows = segments_.rows_of_task();
      query_rows(segment * rows, (segment + 1) * rows);
      if (scores_.stops()) return;
    }
    arrays_.dk.end();
    arrays_.dv.end();
    for (std::int64_t g = 0; g < p.group(); ++g) {
      if (p.dalibi) left.dalibi[place * p.group() + g] = arrays_.dalibi[g];
      if (p.dsinks) left.dsinks[place * p.group() + g] = arrays_.dsinks[g];
    }
  }

  void query_rows(std::int64_t from, std::int64_t to) noexcept {
    to = to < scores_.all_rows() ? to : scores_.all_rows();
    for (std::int64_t first = from, next; first < to || first == from; first = next) {
      if (scores_.stops()) return;
      group_.open(scores_.enter(first), to - first);
      next = first + (group_.rows > 0 ? group_.rows : 1);
      const bool only = first == from && next >= to, last = next >= to;
      arrays_.dk.open(first == from, only);
      arrays_.dv.open(first == from, only);
      group_.weigh();
      clear(arrays_.alibi_row, group_.rows);
      clear(arrays_.bias_row, group_.rows);
      if (p.only_joins_rows()) take_row_sums();
      else gradients();
      if (p.dalibi) sum_alibi_rows();
      if (p.dsinks) sum_sinks();
      if (p.sums_written) leave_row_sums();
      arrays_.dk.close(first - from, next - from, last);
      arrays_.dv.close(first - from, next - from, last);
    }
  }

  // The three products of every chunk.
  void gradients() noexcept {
    bool started[kTiles] = {};
    const bool joined =
        group_.begin < group_.end && group_.begin / kChunk != (group_.end - 1) / kChunk;
    if (p.dq && joined)
      for (int t = 0; t < group_.used; ++t)
        clear(arrays_.dq_sum[t], group_.tiles[t].rows * width(p.d));
    group_.for_gradients([&] {
      const bool hides = group_.hides();
      const bool careful = hides && !(arrays_.dk.finite() && arrays_.dv.finite());
      const bool careful_q = hides && p.dq && !keys_finite();
      group_.differentiate(careful || careful_q);
      if (!p.bias_before_softcap) sum_added();
      if (p.softcap != 0) group_.through_softcap();
      if (p.bias_before_softcap) sum_added();
      for (int t = 0; p.dq && t < group_.used; ++t) {
        if (!query_products(t, careful_q)) continue;
        started[t] = true;
        ATTEND_PATH_IF(joined, V, "dq of several chunks");
        if (joined)
          add_wide<V>(arrays_.dq[t], group_.tiles[t].rows * width(p.d), arrays_.dq_sum[t]);
      }
      arrays_.dv.add(group_.p, careful || careful_q);
      arrays_.dk.add(group_.ds, careful || careful_q);
    });
    for (int t = 0; p.dq && t < group_.used; ++t) {
      if (!started[t] && !joined) clear(arrays_.dq[t], group_.tiles[t].rows * width(p.d));
      store_queries(t, joined);
    }
  }

  // ---- dq --------------------------------------------------------------------------------------

  // dq[row][x] = sum over the chunk's keys of ds[j][row] * k[j][x]; false if the tile sees none.
  bool query_products(int t, bool careful) noexcept {
    const GradientTile<V>& tile = group_.tiles[t];
    KeySpans& mine = group_.spans[1];
    const std::int64_t at = group_.clip(tile, mine) * group_.stride + group_.column(t * kMost);
    if (mine.keys == 0) return false;
    if constexpr (kMatrix<V>) group_query_products(t, mine, at, careful);
    else key_query_products(t, mine, group_.ds + at, careful);
    return true;
  }

  // By a matrix instruction.
  void group_query_products(int t, const KeySpans& mine, std::int64_t at, bool careful) noexcept {
    constexpr int kGroup = kKeyGroup<V>;
    const GradientTile<V>& tile = group_.tiles[t];
    const OperandOf<V>* k[kChunk / kGroup];
    int places[kChunk / kGroup], groups = 0;
    const Sum* ds = group_.ds + at;
    const auto units = GradientMatrix<V>::units_of_rows(ds, group_.stride, mine.keys, tile.lanes);
    for (int r = 0; r < mine.size; ++r) {
      for (int x = 0; x < mine.span[r].count; x += kGroup, ++groups) {
        places[groups] = mine.span[r].at + x;
        k[groups] = group_.chunk.packed_k +
                    Matrix<V>::values_at(mine.span[r].key + x - group_.chunk.from, width(p.d));
        GradientMatrix<V>::turn(ds + places[groups] * group_.stride, group_.stride, tile.lanes,
                                units, arrays_.turned + groups * kGroup * V::kLanes);
      }
    }
    Sum* dq = arrays_.dq[t];
    Matrix<V>::products(arrays_.turned, tile.rows, k, groups, width(p.d), dq, width(p.d));
    const Sum* marks = group_.p + at;  // 0 * NaN is NaN: hidden pairs take no part
    for (int n = 0; careful && n < tile.rows; ++n)
      Matrix<V>::products_of_row(
          arrays_.turned, n, k, groups, width(p.d),
          [&](int g, int key) {
            return marks[(places[g] + key) * group_.stride + n] == TileGroup::kHidden;
          },
          dq + n * width(p.d));
    GradientMatrix<V>::bring_back(units, tile.rows, width(p.d), dq);
  }

  void key_query_products(int t, const KeySpans& mine, const Sum* ds, bool careful) noexcept {
    const GradientTile<V>& tile = group_.tiles[t];
    const Chunk<V>& chunk = group_.chunk;
    const OperandOf<V>* a = arrays_.pairs.across(ds, mine.keys, tile.lanes, group_.stride);
    for (int r = 0; r < mine.size && !careful; ++r) {
      const KeySpan& span = mine.span[r];
      const int slice = chunk.k_strips != nullptr ? span.count : kSlice;
      for (int x = 0; x < span.count; x += slice) {
        const KeyRows<V> rows{.at = chunk.k,
                              .stride = chunk.k_stride,
                              .strips = chunk.k_strips,
                              .count = chunk.to - chunk.from,
                              .width = width(p.d)};
        const Operands<V> operands{.a = a + (span.at + x) * group_.stride,
                                   .a_stride = group_.stride,
                                   .b = nullptr,
                                   .b_stride = 0,
                                   .c = arrays_.dq[t],
                                   .c_stride = width(p.d),
                                   .depth = span.count - x < slice ? span.count - x : slice,
                                   .start = r == 0 && x == 0 ? Start::zero : Start::c};
        const std::int64_t first = span.key + x - chunk.from;
        rows_product(operands, tile.rows, rows, first);
      }
    }
    if (careful) careful_query_products(tile, mine, ds, arrays_.dq[t]);
  }

  // 0 * NaN is NaN: the same sums, in which hidden pairs take no part.
  void careful_query_products(const GradientTile<V>& tile, const KeySpans& mine, const Sum* ds,
                              Sum* dq) const noexcept {
    const Chunk<V>& chunk = group_.chunk;
    for (int n = 0; n < tile.rows; ++n, dq += width(p.d)) {
      clear(dq, width(p.d));
      for (int r = 0; r < mine.size; ++r) {
        for (int y = 0; y < mine.span[r].count; ++y) {
          const Sum* pair = ds + (mine.span[r].at + y) * group_.stride + n;
          if (group_.p[pair - group_.ds] == TileGroup::kHidden) continue;
          const OperandOf<V>* k = chunk.k + (mine.span[r].key + y - chunk.from) * chunk.k_stride;
          for (std::int64_t x = 0; x < width(p.d); x += V::kLanes)
            fma(V::set(*pair), load_elements<V>(k + x), V::load(dq + x)).store(dq + x);
        }
      }
    }
  }

  // 1 reversed: dq = scale * the sums.
  void store_queries(int t, bool joined) noexcept {
    const GradientTile<V>& tile = group_.tiles[t];
    for (int n = 0; n < tile.rows; ++n) {
      const std::int64_t at = query_row(p, call_.dq, scores_.sequence, tile.h[n], tile.i[n]);
      const std::int64_t row = n * width(p.d);
      if (joined) store_scaled<V>(call_.dq, at, p.d, arrays_.dq_sum[t] + row, p.scale);
      else store_scaled<V>(call_.dq, at, p.d, arrays_.dq[t] + row, p.scale);
    }
  }

  bool keys_finite() const noexcept {
    const Chunk<V>& chunk = group_.chunk;
    if constexpr (kMatrix<V>) {  // in pairs of keys
      constexpr std::int64_t kGroup = kKeyGroup<V>;
      const std::int64_t groups = (chunk.to - chunk.from + kGroup - 1) / kGroup;
      return GradientMatrix<V>::rows_finite(chunk.packed_k, groups * kGroup, width(p.d));
    }
    V check = V::set(0);
    for (std::int64_t j = 0; j < chunk.to - chunk.from; ++j) {
      const OperandOf<V>* k = chunk.k + j * chunk.k_stride;
      std::int64_t x = 0;
      for (; x + V::kLanes <= p.d; x += V::kLanes)
        check = fma(load_elements<V>(k + x), V::set(0), check);
      if (x < p.d) check = fma(load_first_elements<V>(k + x, p.d - x), V::set(0), check);
    }
    return all_finite(check);
  }

  // ---- dalibi and dsinks, and the sums of rows -------------------------------------------------

  // With dS at what is added to the scores.
  void sum_added() noexcept {
    if (p.dalibi) sum_alibi();
    if (p.sums_written && p.bias && p.dbias_keys == 1) sum_bias();
  }

  // The row's part of a dbias that all keys share, as bias_gradient.h sums it.
  void sum_bias() noexcept {
    for (int n = 0; n < group_.rows; ++n) {
      for (int r = 0; r < group_.spans->size; ++r) {
        const KeySpan& span = group_.spans->span[r];
        const Sum* ds = group_.ds + span.at * group_.stride + group_.column(n);
        for (int y = 0; y < span.count; ++y)
          arrays_.bias_row[n] += static_cast<double>(ds[y * group_.stride]);
      }
    }
  }

  void take_row_sums() noexcept {
    for (int n = 0; n < group_.rows; ++n)
      arrays_.alibi_row[n] =
          load_row_sums(call_.sums, group_.row_sums_at(group_.tiles[n / kMost], n % kMost)).alibi;
  }
  void leave_row_sums() noexcept {
    for (int n = 0; n < group_.rows; ++n) {
      const GradientTile<V>& tile = group_.tiles[n / kMost];
      const int at = n % kMost;
      store_row_sums(
          call_.sums, group_.row_sums_at(tile, at),
          {tile.m[at], tile.l[at], tile.delta[at], arrays_.alibi_row[n], arrays_.bias_row[n]});
    }
  }

  // dalibi -= ds |i + offset - j|: each row's sum first.
  void sum_alibi() noexcept {
    for (int n = 0; n < group_.rows; ++n) {
      const GradientTile<V>& tile = group_.tiles[n / kMost];
      const std::int64_t position = tile.i[n % kMost] + scores_.sequence.offset;
      for (int r = 0; r < group_.spans->size; ++r) {
        const KeySpan& span = group_.spans->span[r];
        const Sum* ds = group_.ds + span.at * group_.stride + group_.column(n);
        for (int y = 0; y < span.count; ++y) {
          const std::int64_t distance = position - span.key - y;
          arrays_.alibi_row[n] -= static_cast<double>(ds[y * group_.stride]) *
                                  static_cast<double>(distance < 0 ? -distance : distance);
        }
      }
    }
  }

  // Then the rows', in ascending order.
  void sum_alibi_rows() noexcept {
    for (int n = 0; n < group_.rows; ++n) {
      const std::int64_t h = group_.tiles[n / kMost].h[n % kMost];
      arrays_.dalibi[h - scores_.kv_head * p.group()] += arrays_.alibi_row[n];
    }
  }

  // dsink += exp(sink - lse) (dlse - delta).
  void sum_sinks() noexcept {
    for (int t = 0; t < group_.used; ++t) {
      const GradientTile<V>& tile = group_.tiles[t];
      for (int n = 0; n < tile.rows; ++n) {
        const double sink = load(call_.sinks, call_.sinks.offset(0, tile.h[n], 0));
        if (sink == kMinusInfinity) continue;
        arrays_.dsinks[tile.h[n] - scores_.kv_head * p.group()] -=
            exp_of_difference(sink, tile.m[n]) / tile.l[n] * tile.delta[n];
      }
    }
  }

  const BackwardProblem& p;
  const BackwardCall& call_;
  const Segments<V>& segments_;
  BackwardScores<V>& scores_;
  TileGroup& group_;
  Arrays& arrays_;
};

}  // namespace
}  // namespace attend
