// Steps 1 to 4 of a chunk by a matrix instruction, whose unit works beside the vectors: while these
// make the weights of one tile of queries, it makes the scores of the next, group by group of keys.
//
//      unit       scores 0 | scores 1   | values 0 | scores 2   | values 1 | ...
//      vectors             | weights 0  | join 0   | weights 1  | join 1   | ...
//
// In program order the unit's instructions of a group stand before those of the vectors; the
// processor looks far enough ahead to have both at work.
#pragma once

#include "cpu/sums.h"

namespace attend {
namespace {

// A tile of queries on its way through a chunk.
template <class V>
struct MatrixStep {
  using Sum = SumOf<V>;
  Sum* s;  // [vectors of lanes][256][lanes of one]
  const Sums<V>* tile;
  KeySpans spans;
  int groups;
  std::int64_t first[kChunk];  // of each group of keys, in the chunk
  Sum top[Tile<V>::kRoom];
  Sum scale;     // of what stands in s: 1 if these are scores
  bool partial;  // something may be hidden
};

template <class V>
class MatrixWeights {
  using Operand = OperandOf<V>;
  using Sum = SumOf<V>;
  using Step = MatrixStep<V>;
  static constexpr int kGroup = kKeyGroup<V>, kRoom = Tile<V>::kRoom;

 public:
  MatrixWeights(ForwardScores<V>& scores, const Chunk<V>& chunk, Step* steps, Sum* factors)
      : p(scores.p), scores_(scores), chunk_(chunk), steps_(steps), factors_(factors) {}

  // Calls use(tile, maximum, sum) for every tile that sees something of the chunk, its O in
  // tile.chunk_sums.
  template <class Use>
  void each(Sums<V>* tiles, int used, Use use) noexcept {
    Step *now = steps_, *next = steps_ + 1;
    int t = open_next(*now, tiles, 0, used);
    if (t == used) return;
    all_scores(*now);
    while (t < used) {
      const int other = open_next(*next, tiles, t + 1, used);
      Sum sum[kRoom];
      weights(*now, other < used ? next : nullptr, sum);
      values(*now, tiles[t].to, tiles[t].lanes);  // it has room for whole tiles
      if (other < used) mask(*next);
      use(tiles[t], now->top, sum);
      Step* const done = now;
      now = next, next = done, t = other;
    }
  }

  // The same of one tile; false if it sees nothing.
  bool one(const Sums<V>& tile, const Place<Sum>& to, Sum* top, Sum* sum) noexcept {
    Step& step = *steps_;
    if (!open(step, tile)) return false;
    all_scores(step);
    weights(step, nullptr, sum);
    values(step, to, tile.rows);
    for (int n = 0; n < tile.lanes; ++n) top[n] = step.top[n];
    return true;
  }

 private:
  int open_next(Step& step, const Sums<V>* tiles, int t, int used) noexcept {
    while (t < used && !open(step, tiles[t])) ++t;
    return t;
  }

  bool open(Step& step, const Sums<V>& tile) noexcept {
    step.tile = &tile;
    scores_.find_spans(tile, chunk_, step.spans);
    step.groups = 0;
    for (int r = 0; r < step.spans.size; ++r)
      for (int x = 0; x < step.spans.span[r].count; x += kGroup)
        step.first[step.groups++] = step.spans.span[r].key + x - chunk_.from;
    for (int n = 0; n < tile.lanes; ++n) step.top[n] = ForwardScores<V>::kHidden;
    // Sums are compared as well as scores are, if nothing is added to these. By the problem alone.
    // Times a scale above 1 a sum that is finite may not be.
    const bool as_sums =
        scores_.mask.plain && !p.blocks && !p.k_scales && scores_.scale > 0 && scores_.scale <= 1;
    step.scale = as_sums ? scores_.scale : 1;
    return step.groups > 0;
  }

  // 1 scores: a group's maximum is taken while the unit works on the next.
  void scores(Step& step, int g, int half, int first = 0) noexcept {
    if (g < step.groups)
      scores_.groups.scores(*step.tile, chunk_, step.first[g], half, group_of(step, g));
    if (g > first && half == 1)
      scores_.groups.finish(*step.tile, group_of(step, g - 1), step.top,
                            step.scale == 1 ? scores_.scale : 1,
                            chunk_.scales_from(step.first[g - 1]));
  }
  void all_scores(Step& step) noexcept {
    int first = 0;
    if constexpr (requires { Matrix<V>::kFewKeys; }) first = scores_of_few(step);
    for (int g = first; g <= step.groups; ++g) scores(step, g, 0, first), scores(step, g, 1, first);
    mask(step);
  }
  // Of the first groups, if few rows of queries read keys as they lie. Gives how many these are.
  int scores_of_few(Step& step) noexcept {
    constexpr int kGroups = Matrix<V>::kFewKeys / kGroup;
    const Tile<V>& tile = *step.tile;
    if (chunk_.arranged_k || tile.rows > V::kLanes) return 0;
    const std::int64_t last = chunk_.to - chunk_.from - Matrix<V>::kFewKeys;
    int g = 0;
    for (; g + kGroups <= step.groups; g += kGroups) {
      const std::int64_t first = step.first[g];
      if (first > last || step.first[g + kGroups - 1] != first + (kGroups - 1) * kGroup) break;
      Matrix<V>::scores_of_few(chunk_.k + first * chunk_.k_stride, chunk_.k_stride, tile.q,
                               tile.rows, whole_depth<V>(p.d), group_of(step, g), tile.stride,
                               chunk_.k != chunk_.packed_k);
      for (int n = 0; n < kGroups; ++n)
        scores_.groups.finish(tile, group_of(step, g + n), step.top,
                              step.scale == 1 ? scores_.scale : 1,
                              chunk_.scales_from(step.first[g + n]));
    }
    return g;
  }
  void mask(Step& step) noexcept {  // 2 mask
    step.partial = scores_.mask.apply(*step.tile, step.spans, step.s, step.top);
  }
  static Sum* group_of(const Step& step, int g) noexcept {
    return step.s + g * kGroup * step.tile->stride;
  }

  // 3 softmax: s becomes P. Meanwhile the scores of the next tile.
  void weights(Step& step, Step* next, Sum* sum) noexcept {
    const bool drops = p.drop_below != 0, scales = chunk_.v_scales != nullptr;
    if (drops) scores_.mask.dropout(*step.tile, step.spans, factors_);
    if (scales) scale_factors<V>(*step.tile, step.spans, chunk_, drops, factors_);
    with_vectors<V>(step.tile->lanes, [&](auto vectors) {
      if (drops || scales) weights<true, vectors>(step, next, sum);
      else weights<false, vectors>(step, next, sum);
    });
  }

  template <bool kFactors, int kVectors>
  void weights(Step& step, Step* next, Sum* sum) noexcept {
    const V unit = V::set(Exp2<Sum>::kLog2E * step.scale);
    const std::int64_t lanes = step.tile->lanes;
    V base[kVectors], total[kVectors][2];
    unrolled<kVectors>(ATTEND_EACH(n) {
      base[n] = base_of<V>(step.top + n * V::kLanes);
      total[n][0] = total[n][1] = V::set(0);
    });
    const int most =
        next != nullptr && next->groups >= step.groups ? next->groups + 1 : step.groups;
    for (int g = 0; g < most; ++g) {
      const bool ahead = next != nullptr && g <= next->groups;
      unrolled<kVectors>(ATTEND_EACH(n) {
        if (ahead && n < 2) scores(*next, g, n);
        if (kVectors == 1 && ahead) scores(*next, g, 1);
        if (g < step.groups)
          Matrix<V>::template weights<kFactors>(
              group_of(step, g) + n * step.tile->vector_stride, base[n], unit,
              kFactors ? factors_ + g * kGroup * lanes + n * V::kLanes : nullptr, lanes, total[n]);
      });
    }
    unrolled<kVectors>(ATTEND_EACH(n) {
      (total[n][0] + total[n][1]).store(sum + n * V::kLanes);
      Sum* const top = step.top + n * V::kLanes;  // a score, if it was a sum
      (V::load(top) * V::set(step.scale)).store(top);
    });
  }

  // 4 values: `rows` of them are stored.
  void values(const Step& step, const Place<Sum>& to, int rows) noexcept {
    const std::int64_t width = Results<V>::width(p);
    if constexpr (Matrix<V>::kArrangesKeys)
      if (!chunk_.arranged_v) return values_of_rows(step, to, width);
    const Operand* v[kChunk / kGroup];
    for (int g = 0; g < step.groups; ++g)
      v[g] = chunk_.packed_v + Matrix<V>::values_at(step.first[g], width);
    Matrix<V>::products(step.s, rows, v, step.groups, width, to.o, to.stride);
    without_hidden(step, to, width, v);
  }

  // The same of values that lie as rows.
  void values_of_rows(const Step& step, const Place<Sum>& to, std::int64_t width) noexcept {
    const std::int64_t keys = chunk_.to - chunk_.from, depth = whole_depth<V>(p.dv);
    const auto group = [&](int g, std::int64_t& stride) {
      const bool whole = step.first[g] + kGroup <= keys;
      stride = whole ? chunk_.v_stride : depth;
      return whole ? chunk_.v + step.first[g] * chunk_.v_stride : chunk_.v_last;
    };
    constexpr int kTogether = 4;  // groups that lie one behind the other
    for (int g = 0, count = 1; g < step.groups; g += count, count = 1) {
      std::int64_t stride = 0;
      const Operand* const v = group(g, stride);
      const std::int64_t first = step.first[g];
      while (count < kTogether && g + count < step.groups &&
             step.first[g + count] == first + count * kGroup &&
             first + (count + 1) * kGroup <= keys)
        ++count;
      Matrix<V>::add_products(group_of(step, g), step.tile->rows, v, stride, count, width, to.o,
                              to.stride, g == 0, chunk_.v != chunk_.packed_v);
    }
    without_hidden(step, to, width, [&](int g, int key) {
      std::int64_t stride = 0;
      const Operand* const v = group(g, stride);
      return v + key * stride;
    });
  }

  // 0 * NaN is NaN: rows that are not finite, where something is hidden, are made again.
  template <class Values>
  void without_hidden(const Step& step, const Place<Sum>& to, std::int64_t width,
                      const Values& v) noexcept {
    if (!step.partial) return;
    const Sums<V>& tile = *step.tile;
    Sum* o = to.o;
    for (int n = 0; n < tile.rows; ++n, o += to.stride)
      if (!is_finite<V>(o, width))
        Matrix<V>::products_of_row(
            step.s, n, v, step.groups, width,
            [&](int g, int key) {
              return !scores_.mask.sees(tile, n, chunk_.from + step.first[g] + key);
            },
            o);
  }

  const ForwardProblem& p;
  ForwardScores<V>& scores_;
  const Chunk<V>& chunk_;
  Step* steps_;
  Sum* factors_;
};

}  // namespace
}  // namespace attend
