// Attention forward, fused. Tile by tile of queries, chunk by chunk of keys:
//
//   1 scores, 2 mask   S^T [chunk][lanes]                           (scores.h)
//   3 softmax          one maximum for the whole chunk, known before the first weight: a weight is
//                      computed once, and its bits depend on the row's own chunk alone. The largest
//                      weight is exactly 1
//   4 values           O [rows][dv] of the chunk, sums in registers (product.h); features in lanes,
//                      so that v is read as it lies and o comes out as it is stored
//   join               in f64, a chunk's sums are brought to an integer maximum in log2 units, and
//                      chunks are added, scaled by exact powers of two. A tile that sees one chunk
//                      alone needs none: its products store the results
//
// Few rows against many keys (decode) are cut by chunks instead: every chunk leaves its maximum,
// sum and O in the shared workspace, and a second stage joins them in the same order, so the bits
// are the same.
//
// What limits it: the multipliers, and beside them the weights (about 16 instructions a vector of
// scores, for d + dv multiply-adds), the ends of tiles and the joins. `attend bench --suite long
// --threads 1`, 2048 keys, 2026-11-16: 73 % of the peak at d = 64, 80 % at d = 128 on Neoverse N1
// (where weights take 15 % of the time at d = 64: that core does 1.3 of their instructions a cycle,
// whatever their order); 70 % and 73 % on a core with neighbours of an AVX-512 Xeon. It declines no
// problem.
#pragma once

#include "cpu/few_rows.h"
#include "cpu/matrix_few_rows.h"
#include "cpu/matrix_weights.h"
#include "cpu/row.h"
#include "cpu/show.h"
#include "cpu/sums.h"

namespace attend {
namespace {

template <class V>
class FlashForward {
  using Operand = OperandOf<V>;
  using Sum = SumOf<V>;
  static constexpr int kMost = Tile<V>::kMost, kRoom = Tile<V>::kRoom;
  static constexpr int kTiles = TilesOf<V>::kTiles;  // of a task: they share a chunk, in the cache
  static constexpr int kAhead = 32;                  // keys, where memory is the limit
  static constexpr Sum kHidden = ForwardScores<V>::kHidden;

  struct Arrays {
    Sums<V>* tiles;
    KeySpans* spans;
    Chunk<V> chunk;
    Sum *s, *factors;  // [256][lanes]
    [[no_unique_address]] SumsAsOperand<V> weights;
    Sum* few_q;            // [few rows][d]
    MatrixStep<V>* steps;  // two, of a matrix instruction
    Arrays(const ForwardProblem& p, Scratch& scratch) : weights(scratch, kChunk * kRoom) {
      tiles = scratch.take<Sums<V>>(kTiles);
      spans = scratch.take<KeySpans>(1);
      s = scratch.take<Sum>(kChunk * kRoom);
      steps = scratch.take<MatrixStep<V>>(kMatrix<V> ? 2 : 0);
      Sum* other = scratch.take<Sum>(kMatrix<V> ? kChunk * kRoom : 0);
      if (steps != nullptr && kMatrix<V>) steps[0].s = s, steps[1].s = other;
      const bool factored = p.drop_below != 0 || (kMatrix<V> && p.v_scales);
      factors = scratch.take<Sum>(factored ? kChunk * kRoom : 0);
      chunk.scales_of_k = p.k_scales ? scratch.take<Sum>(kChunk) : nullptr;
      chunk.scales_of_v = p.v_scales ? scratch.take<Sum>(kChunk) : nullptr;
      few_q = scratch.take<Sum>(FewRows<V>::kMost * p.d);
      chunk.packed_k = scratch.take<Operand>(kChunk * whole_depth<V>(p.d));
      chunk.packed_v = scratch.take<Operand>(kChunk * whole_depth<V>(width(p)));
      chunk.paneled_k =
          scratch.take<Operand>(TilesOf<V>::kPanels ? kChunk * whole_depth<V>(p.d) : 0);
      chunk.stripped_v =
          scratch.take<Operand>(TilesOf<V>::kPanels ? kChunk * (width(p) + V::kLanes) : 0);
      Operand* q = scratch.take<Operand>(saturating_count(kTiles * kRoom, whole_depth<V>(p.d)));
      Sum* chunk_sums = scratch.take<Sum>(saturating_count(kTiles * kRoom, width(p)));
      double* o = scratch.take<double>(saturating_count(kTiles * kRoom, width(p)));
      for (int t = 0; tiles != nullptr && t < kTiles; ++t) {
        tiles[t].q = q + t * kRoom * whole_depth<V>(p.d);
        tiles[t].chunk_sums = chunk_sums + t * kRoom * width(p);
        tiles[t].o = o + t * kRoom * width(p);
      }
    }
  };

  // What stage 0 leaves to stage 1 for each chunk, when the keys are cut.
  struct PartialResult {
    Sum *top, *sum, *o;  // [lanes], [lanes], [rows][width]
  };

 public:
  using Operation = Forward;
  static constexpr int kStages = 2;

  // Cores that have BFMMLA have more requests on their way in the second cache than in the first
  // (Neoverse V1); Neoverse N1 does better with the first alone.
  static Tiles tiles(const ForwardProblem&, const Machine& machine) {
    return {.queries = kMost * kTiles,
            .keys = kChunk,
            .asks_twice = kLaterBytes<V> > 0 && machine.neon_bf16};
  }

  static std::int64_t tasks(const ForwardProblem& p, const Tiles& tiles, int stage) {
    const std::int64_t heads = p.batch * p.kv_heads, cuts = pieces(p);
    if (stage == 1) return cuts > 1 ? heads : 0;
    return heads * (cuts > 1 ? cuts : row_tasks(p, tiles));
  }

  static Workspace workspace(const ForwardProblem& p, const Tiles&) {
    Scratch scratch(nullptr), shared(nullptr);
    const ForwardCall none;
    ForwardScores<V> scores(p, none, scratch);
    Arrays arrays(p, scratch);
    if (pieces(p) > 1)
      shared.take<Sum>(saturating_count(p.batch * p.kv_heads * chunks(p), partial_size(p)));
    return {.shared = shared.used(), .per_strand = scratch.used()};
  }

  static void run(const ForwardProblem& p, const Tiles& tiles, const ForwardCall& call,
                  const Task& task) noexcept {
    Scratch scratch(task.scratch);
    ForwardScores<V> scores(p, call, scratch);
    Arrays arrays(p, scratch);
    FlashForward f{p, call, scores, arrays};
    const std::int64_t cuts = pieces(p);
    const std::int64_t each = task.stage == 1 ? 1 : cuts > 1 ? cuts : row_tasks(p, tiles);
    // Divisions are slow, and heads may be short.
    const std::int64_t head = each == 1 ? task.index : task.index / each;
    const std::int64_t index = each == 1 ? 0 : task.index % each;
    scores.interrupt = task.interrupt;
    scores.asks_twice = tiles.asks_twice;
    scores.sequence = sequence_of(p, call, head / p.kv_heads);
    scores.kv_head = head % p.kv_heads;
    f.partials_ = reinterpret_cast<Sum*>(task.shared);
    if (f.partials_ != nullptr) f.partials_ += head * chunks(p) * partial_size(p);
    if (task.stage == 1) f.join_pieces();
    else if (cuts > 1) f.piece(index, cuts);
    else f.task_tiles(each - 1 - index, task_rows(p, tiles));  // causal: the last see the most keys
  }

 private:
  FlashForward(const ForwardProblem& problem, const ForwardCall& call, ForwardScores<V>& scores,
               Arrays& arrays)
      : p(problem), call_(call), scores_(scores), arrays_(arrays), results_(scores),
        slice_(slice(problem)) {}

  // Keys whose values stay in the nearest cache. Of no use to a matrix instruction.
  static int slice(const ForwardProblem& p) {
    if constexpr (kMatrix<V>) {
      return 0;
    } else {
      if (TilesOf<V>::kSliceBytes == 0) return 64;
      const std::int64_t fits =
          TilesOf<V>::kSliceBytes / (width(p) * static_cast<std::int64_t>(sizeof(Operand)));
      return fits > 128 ? 128 : fits < 16 ? 16 : static_cast<int>(fits);
    }
  }

  // The rows of a task: fewer tiles than fit, if tasks are few. Else threads would wait for the
  // last of them, the longer where the first keys hide from most rows.
  static std::int64_t task_rows(const ForwardProblem& p, const Tiles& tiles) {
    constexpr std::int64_t kTasksPerThread = 8, kLeast = kMost * TilesOf<V>::kLeastTiles;
    const std::int64_t all = p.group() * p.q_length, heads = p.batch * p.kv_heads;
    const std::int64_t wanted = tiles.threads > 1 ? kTasksPerThread * tiles.threads : 1;
    std::int64_t rows = tiles.queries;
    if (all <= kLeast) return rows;
    while (rows > kLeast && heads * ((all + rows - 1) / rows) < wanted) rows /= 2;
    return rows;
  }
  static std::int64_t row_tasks(const ForwardProblem& p, const Tiles& tiles) {
    const std::int64_t rows = task_rows(p, tiles), all = p.group() * p.q_length;
    return all == 0 ? 0 : all <= rows ? 1 : (all + rows - 1) / rows;
  }
  static std::int64_t chunks(const ForwardProblem& p) { return (p.k_length + kChunk - 1) / kChunk; }
  static std::int64_t width(const ForwardProblem& p) { return Results<V>::width(p); }
  static std::int64_t partial_size(const ForwardProblem& p) {
    return 2 * kMost + p.group() * p.q_length * width(p);
  }

  // Into how many pieces the keys of a head are cut: when one tile holds all its rows and heads
  // alone would leave processors idle. By the shape alone; the bits are the same either way.
  static std::int64_t pieces(const ForwardProblem& p) {
    constexpr std::int64_t kTasks = 128, kChunksAtLeast = 2;
    const std::int64_t heads = p.batch * p.kv_heads;
    if (p.k_length <= kChunksAtLeast * kChunk || heads == 0 || heads >= kTasks || p.query_runs ||
        p.group() * p.q_length > kMost)
      return 1;
    const std::int64_t most = chunks(p) / kChunksAtLeast, wanted = (kTasks + heads - 1) / heads;
    return most < wanted ? (most < 1 ? 1 : most) : wanted;
  }

  // ---- a task: a few tiles against all their keys ----------------------------------------------

  void task_tiles(std::int64_t index, std::int64_t rows) noexcept {
    const std::int64_t first = index * rows, all = scores_.all_rows();
    const std::int64_t last = all - first < rows ? all : first + rows;
    int used = 0;
    for (std::int64_t at = first; at < last;) {  // once, or run by run of the queries
      const std::int64_t from = scores_.enter(at), left = last - at, there = scores_.rows() - from;
      used = weigh_rows(from, from + (left < there ? left : there));
      at += left < there ? left : there;
      if (used == 0) return;
    }
    show(first, rows, used);
  }

  // Rows that fit into the tiles. Gives how many these are, or 0 if the call is to end.
  int weigh_rows(std::int64_t first, std::int64_t last) noexcept {
    int used = 0;
    std::int64_t begin = scores_.sequence.k_length, end = 0;
    for (std::int64_t row = first; row < last; ++used) {
      Sums<V>& tile = arrays_.tiles[used];
      results_.open(tile, row, last - row <= kRoom ? static_cast<int>(last - row) : kMost);
      row += tile.rows;
      begin = tile.begin < begin ? tile.begin : begin;
      end = tile.end > end ? tile.end : end;
    }
    for (std::int64_t at = begin / kChunk * kChunk; at < end; at += kChunk) {
      if (scores_.stops()) return 0;
      bring(at, begin, end, used);
      if constexpr (TilesOf<V>::kPanels)
        if (used >= TilesOf<V>::kArrangeForward) scores_.arrange(arrays_.chunk);
      weigh_tiles(used);
    }
    for (int t = 0; t < used; ++t) results_.close(arrays_.tiles[t]);
    return used;
  }

  // The weights and scores of these rows, which some tiles hold, if they are asked for.
  void show(std::int64_t first, std::int64_t rows, int used) noexcept {
    if (!p.weights && !p.scores) return;
    Show<V> shown(scores_, arrays_.chunk, *arrays_.spans, arrays_.s);
    shown.hide_rows(first, rows);
    for (int t = 0; t < used; ++t) shown.unmasked(arrays_.tiles[t]);
    shown.visible(arrays_.tiles, used);
  }

  // The chunk at hand, tile by tile.
  void weigh_tiles(int used) noexcept {
    if constexpr (kMatrix<V>) {
      if (arrays_.chunk.waits) {
        Sums<V>& tile = arrays_.tiles[0];
        Sum top[kRoom], sum[kRoom];
        if (weigh(tile, tile.to, top, sum)) results_.join(tile, top, sum, tile.chunk_sums);
        return;
      }
      MatrixWeights<V> weights(scores_, arrays_.chunk, arrays_.steps, arrays_.factors);
      weights.each(arrays_.tiles, used, [&](Sums<V>& tile, const Sum* top, const Sum* sum) {
        results_.join(tile, top, sum, tile.chunk_sums);
      });
    } else {
      for (int t = 0; t < used; ++t) {
        Sums<V>& tile = arrays_.tiles[t];
        arrays_.chunk.cold = t == 0;
        Sum top[kRoom], sum[kRoom];
        if (weigh(tile, tile.to, top, sum)) results_.join(tile, top, sum, tile.chunk_sums);
      }
    }
  }

  void bring(std::int64_t at, std::int64_t begin, std::int64_t end, int used = 1) noexcept {
    const std::int64_t from = at > begin ? at : begin, to = at + kChunk < end ? at + kChunk : end;
    const Sums<V>& tile = arrays_.tiles[0];
    bool few = used == 1;
    if constexpr (kMatrix<V>) few = few && MatrixFewRows<V>::takes(scores_, tile, from, to);
    else few = few && FewRows<V>::waits(p) && tile.rows <= FewRows<V>::kMost;
    scores_.bring(arrays_.chunk, from, to, true, few);
  }

  // One chunk: steps 1 to 4. Gives its maximum, sum and O; false if the tile sees nothing of it.
  bool weigh(const Sums<V>& tile, const Place<Sum>& to, Sum* top, Sum* sum) noexcept {
    if constexpr (FewRowsMatrix<V>::kMost > 0)
      if (arrays_.chunk.waits) {
        MatrixFewRows<V>(scores_, arrays_.chunk, arrays_.steps).weigh(tile, to, top, sum);
        return true;
      }
    if constexpr (kMatrix<V>)
      return MatrixWeights<V>(scores_, arrays_.chunk, arrays_.steps, arrays_.factors)
          .one(tile, to, top, sum);
    KeySpans& spans = *arrays_.spans;
    scores_.find_spans(tile, arrays_.chunk, spans);
    if (spans.keys == 0) return false;
    if constexpr (!kMatrix<V>) weigh_keys(tile, to, top, sum);
    return true;
  }

  void weigh_keys(const Sums<V>& tile, const Place<Sum>& to, Sum* top, Sum* sum) noexcept {
    KeySpans& spans = *arrays_.spans;
    Sum* s = arrays_.s;
    if constexpr (TilesOf<V>::kFewRows > 0)
      if (FewRows<V> few(scores_, arrays_.chunk, arrays_.few_q, s); few.takes(tile, spans)) {
        ATTEND_PATH(V, "few rows");
        few.weigh(tile, spans.span[0], to, top, sum);
        return;
      }
    if (arrays_.chunk.raw_k != nullptr) scores_.pack(arrays_.chunk);
    // Few rows against many keys: memory is asked kAhead keys before.
    const Chunk<V>& chunk = arrays_.chunk;
    const bool streams = TilesOf<V>::kAsks && ForwardScores<V>::streams(tile, spans.keys);
    LinesOf<V> soon(chunk.k + kAhead * chunk.k_stride, chunk.k_stride, p.d, scores_.later(p.d));
    if (streams && chunk.k != chunk.packed_k) scores_.soon = &soon;
    if constexpr (TilesOf<V>::kAsks) ATTEND_PATH_IF(streams, V, "keys are asked for");
    const bool partial = scores_.compute(tile, arrays_.chunk, spans, s, top);  // 1 scores, 2 mask
    scores_.soon = nullptr;
    with_vectors<V>(tile.lanes, [&](auto vectors) {
      softmax<vectors>(s, spans.keys, top, sum);  // 3 softmax
    });
    if (p.drop_below != 0) {
      ATTEND_PATH(V, "dropout");
      scores_.mask.dropout(tile, spans, arrays_.factors);
      for (std::int64_t x = 0; x < std::int64_t{spans.keys} * tile.lanes; ++x)
        s[x] *= arrays_.factors[x];
    }
    if (chunk.v_scales != nullptr) {
      ATTEND_PATH(V, "values have scales");
      scale_factors<V>(tile, spans, chunk, true, s);
    }
    Divisors<V, kRoom> divisors;
    ATTEND_PATH_IF(to.final, V, "products store results");
    if (to.final) divisors.set(sum, tile.lanes);
    const Operand* w = arrays_.weights.across(s, spans.keys, tile.lanes, tile.lanes);
    values(tile, spans, w, to, to.final ? &divisors : nullptr);  // 4 values
    if (partial) without_hidden(tile, spans, s, to, to.final ? &divisors : nullptr);
  }

  // s becomes exp(s - top), as a power of two.
  template <int kVectors>
  void softmax(Sum* s, int count, const Sum* top, Sum* sum) const noexcept {
    const V log2e = V::set(Exp2<Sum>::kLog2E);
    V base[kVectors], total[kVectors];
    unrolled<kVectors>(ATTEND_EACH(n) {
      base[n] = base_of<V>(top + n * V::kLanes);
      total[n] = V::set(0);
    });
    const bool drops = p.drop_below != 0;  // then the smallest weight may be all that is left
    // While the weights are computed memory has nothing to do: it brings the first values, a line
    // with each weight, or all of them, a row with the weights of a key.
    constexpr std::int64_t kLine = 64 / sizeof(Operand);
    const bool streamed = kVectors == 1 && count >= ForwardScores<V>::kStreamed;
    const std::int64_t lines = streamed                             ? 1
                               : kVectors > 1 && arrays_.chunk.cold ? (p.dv + kLine - 1) / kLine
                                                                    : 0;
    const bool lie = arrays_.chunk.v != arrays_.chunk.packed_v;  // else behind them is nothing
    LinesOf<V> soon(arrays_.chunk.v, arrays_.chunk.v_stride, p.dv,
                    streamed && lie ? scores_.later(p.dv) : 0);
    for (int j = 0; j < count; ++j, s += kVectors * V::kLanes) {
      for (std::int64_t n = 0; n < lines; ++n) soon.prefetch_next();
      unrolled<kVectors>(ATTEND_EACH(n) {
        const V t = (V::load(s + n * V::kLanes) - base[n]) * log2e;
        const V w = drops ? exp2_gradual(t) : exp2_of(t);
        total[n] = total[n] + w;
        w.store(s + n * V::kLanes);
      });
    }
    unrolled<kVectors>(ATTEND_EACH(n) { total[n].store(sum + n * V::kLanes); });
  }

  // o[row][x] = sum over the keys of w[j][row] * v[j][x], one ascending chain; at last divided,
  // if there are divisors.
  void values(const Sums<V>& tile, const KeySpans& spans, const Operand* w, const Place<Sum>& to,
              const Divisors<V, kRoom>* divisors) const noexcept {
    const Chunk<V>& chunk = arrays_.chunk;
    const KeyRows<V> v{.at = chunk.v,
                       .stride = chunk.v_stride,
                       .strips = chunk.v_strips,
                       .count = chunk.to - chunk.from,
                       .width = width(p)};
    LinesOf<V> soon(chunk.v + kAhead * chunk.v_stride, chunk.v_stride, p.dv, scores_.later(p.dv));
    for (int r = 0; r < spans.size; ++r) {
      const KeySpan& span = spans.span[r];
      const bool streamed = ForwardScores<V>::streams(tile, span.count);
      const int slice = v.strips != nullptr ? span.count : streamed ? slice_ / 2 : slice_;
      for (int x = 0; x < span.count; x += slice) {
        const bool end = divisors != nullptr && r == spans.size - 1 && x + slice >= span.count;
        const std::int64_t first = span.key + x - chunk.from;
        const Operands<V> operands{
            .a = w + (span.at + x) * tile.lanes,
            .a_stride = tile.lanes,
            .b = nullptr,
            .b_stride = 0,
            .c = to.o,
            .c_stride = to.stride,
            .depth = span.count - x < slice ? span.count - x : slice,
            .start = r == 0 && x == 0 ? Start::zero : Start::c,
            .soon = streamed && v.strips == nullptr && chunk.v != chunk.packed_v ? &soon : nullptr};
        ATTEND_PATH_IF(operands.start == Start::c, V, "several slices of values");
        const StoreDivided<Divisors<V, kRoom>, V> store{operands.a, end ? divisors : nullptr};
        rows_product(operands, tile.rows, v, first, store);
      }
    }
  }

  // 0 * NaN is NaN: a row whose sums are not finite, and that does not see every key, is summed
  // again without the keys it does not see.
  void without_hidden(const Sums<V>& tile, const KeySpans& spans, const Sum* w,
                      const Place<Sum>& to, const Divisors<V, kRoom>* divisors) noexcept {
    const std::int64_t whole = width(p);
    Sum* o = to.o;
    for (int n = 0; n < tile.rows; ++n, o += to.stride) {
      if (is_finite<V>(o, whole)) continue;
      for (std::int64_t x = 0; x < whole; ++x) o[x] = 0;
      for (int r = 0; r < spans.size; ++r) {
        for (int y = 0; y < spans.span[r].count; ++y) {
          const std::int64_t j = spans.span[r].key + y;
          if (!scores_.mask.sees(tile, n, j)) continue;
          const Operand* v = arrays_.chunk.v + (j - arrays_.chunk.from) * arrays_.chunk.v_stride;
          const V weight = V::set(w[(spans.span[r].at + y) * tile.lanes + n]);
          for (std::int64_t x = 0; x < whole; x += V::kLanes)
            fma(weight, load_elements<V>(v + x), V::load(o + x)).store(o + x);
        }
      }
      for (std::int64_t x = 0; divisors != nullptr && x < whole; x += V::kLanes)
        divisors->divided(V::load(o + x), n).store(o + x);
    }
  }

  // ---- keys cut into pieces --------------------------------------------------------------------

  PartialResult partial_result(std::int64_t chunk) const noexcept {
    Sum* at = partials_ + chunk * partial_size(p);
    return {at, at + kMost, at + 2 * kMost};
  }

  // Stage 0: the chunks of one piece.
  void piece(std::int64_t index, std::int64_t cuts) noexcept {
    Sums<V>& tile = arrays_.tiles[0];
    if (scores_.rows() == 0) return;
    scores_.open(tile, 0, kMost);
    const std::int64_t all = chunks(p), last = all * (index + 1) / cuts;
    for (std::int64_t c = all * index / cuts; c < last; ++c) {
      const std::int64_t at = c * kChunk;
      if (at + kChunk <= tile.begin || at >= tile.end) continue;
      if (scores_.stops()) return;
      bring(at, tile.begin, tile.end);
      const PartialResult to = partial_result(c);
      ATTEND_PATH(V, "piece");
      if (!weigh(tile, {to.o, width(p), false}, to.top, to.sum)) {
        ATTEND_PATH(V, "piece whose blocks are hidden");
        for (int n = 0; n < tile.lanes; ++n) to.top[n] = kHidden, to.sum[n] = 0;
      }
    }
  }

  // Stage 1: joins what the pieces left, in ascending order.
  void join_pieces() noexcept {
    if (scores_.rows() != 0) join_chunks();
    show(0, p.group() * p.q_length, scores_.rows() != 0 ? 1 : 0);
  }

  void join_chunks() noexcept {
    Sums<V>& tile = arrays_.tiles[0];
    results_.open(tile, 0, kMost);
    ATTEND_PATH(V, "pieces joined");
    if (!tile.joined) results_.expect_chunks(tile);
    for (std::int64_t c = 0; c < chunks(p); ++c) {
      if ((c + 1) * kChunk <= tile.begin || c * kChunk >= tile.end) continue;
      const PartialResult from = partial_result(c);
      results_.join(tile, from.top, from.sum, from.o);
    }
    results_.close(tile);
  }

  const ForwardProblem& p;
  const ForwardCall& call_;
  ForwardScores<V>& scores_;
  Arrays& arrays_;
  Results<V> results_;
  const int slice_;
  Sum* partials_ = nullptr;
};

}  // namespace
}  // namespace attend
