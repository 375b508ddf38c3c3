// A tile of queries against a chunk of keys: steps 1 and 2, which forward and backward share.
//
// Scores are computed transposed, S^T = K Q^T: a key is a row, a query is a lane. So everything the
// softmax needs is vertical (maximum, sum, rescale: no shuffles), and P^T is the operand of
// O^T = V^T P^T as it lies.
//
//                     lanes: a tile (tile.h)
//                 +--------------------+
//    keys, in     |  S^T, then P^T     |  1 scores   q lies packed [d][lanes], k is read as it lies
//    one chunk    |  [chunk][lanes]    |             (matrix instructions: key_groups.h)
//    of 256       +--------------------+  2 mask     only where something is hidden or added
//                                                    (score_mask.h)
#pragma once

#include "cpu/chunk.h"
#include "cpu/key_groups.h"
#include "cpu/score_mask.h"

namespace attend {
namespace {

// Steps 1 and 2 of one problem and key head. A tile has one vector of lanes or kTileVectors; in
// forward, as many as its rows need.
template <class V, class Operation>
class Scores : public KeyHead<Operation> {
  static constexpr bool kAsNeeded = std::is_same_v<Operation, Forward>;

 public:
  using Operand = OperandOf<V>;
  using Sum = SumOf<V>;
  using Problem = typename Operation::Problem;
  using Call = typename Operation::Call;
  static constexpr int kMost = Tile<V>::kMost, kRoom = Tile<V>::kRoom;
  static constexpr Sum kHidden = kHiddenScore<V>;
  // From so many keys on, a tile of one vector waits for memory more than for products.
  static constexpr int kStreamed = 128;
  static bool streams(const Tile<V>& tile, int keys) noexcept {
    return tile.lanes == V::kLanes && keys >= kStreamed;
  }

  using KeyHead<Operation>::p;
  using KeyHead<Operation>::call;
  using KeyHead<Operation>::sequence;
  using KeyHead<Operation>::kv_head;
  using KeyHead<Operation>::head;
  using KeyHead<Operation>::rows;
  // Features that are summed in one chain; such chains are added. A chain's error grows with
  // its length.
  static constexpr std::int64_t kChain = 256;
  std::int64_t chain;
  std::int64_t k_width;  // of a row of keys: d, or as whole vectors where it is read by vectors
  LinesOf<V>* soon = nullptr;  // what follows the scores of few rows and many keys
  bool asks_twice = false;     // for keys and values of few rows
  // Rows of `count` numbers after those that are asked for, which are then asked for too; 0: none.
  template <class E = Operand>
  std::int64_t later(std::int64_t count) const noexcept {
    constexpr auto kNumbers = kLaterBytes<V> / static_cast<std::int64_t>(sizeof(E));
    return asks_twice && count > 0 && count < kNumbers ? kNumbers / count : 0;
  }
  Interrupt* interrupt = nullptr;
  Sum scale;  // of a sum; q has the rest of it
  ScoreMask<V, Operation> mask;
  KeyGroups<V, Operation> groups;  // of a matrix instruction

  Scores(const Problem& problem, const Call& c, Scratch& scratch)
      : KeyHead<Operation>(problem, c), chain(p.d < kChain ? p.d : kChain),
        k_width(whole_depth<V>(p.d)), mask(*this, scratch), groups(*this, scratch),
        q_(scratch.take<Operand>(kRoom * p.d)) {
    // A power of two goes into q, exactly, unless q could overflow; any other factor multiplies the
    // sum.
    int exponent = 0;
    const double mantissa = __builtin_frexp(p.scale, &exponent);
    const bool power = !kMatrix<V> && (mantissa == 0.5 || mantissa == -0.5) && exponent <= 1;
    q_scale_ = static_cast<Sum>(power ? p.scale : 1);
    scale = static_cast<Sum>(power ? 1 : p.scale);
    if (kMatrix<V> && scale < 0) q_scale_ = -1, scale = -scale;  // the largest sum has it still
  }
  Scores(const Scores&) = delete;  // its members refer to it
  Scores& operator=(const Scores&) = delete;

  // A row of `count` features as whole vectors.
  static std::int64_t width(std::int64_t count) noexcept { return whole_vectors<V>(count); }

  // Whether the call is to end. Who is asked may have used matrix instructions himself.
  bool stops() const noexcept {
    if (interrupt == nullptr) return false;
    const bool stop = must_stop(interrupt);
    if constexpr (kMatrix<V>) Matrix<V>::configure();
    return stop;
  }

  // The rows from `first` on, their q packed.
  void open(Tile<V>& tile, std::int64_t first, int most = kMost) noexcept {
    const std::int64_t left = rows() - first;
    tile.rows = static_cast<int>(left < most ? left : most);
    tile.lanes = static_cast<int>(width(tile.rows));
    if (!kAsNeeded && tile.lanes > V::kLanes) tile.lanes = kMost;
    tile.stride = tile.lanes;
    tile.vector_stride = V::kLanes;
    if (kMatrix<V> && kAsNeeded) {  // vectors of lanes lie each by itself
      tile.stride = V::kLanes;
      tile.vector_stride = V::kLanes * kChunk;
    }
    tile.begin = sequence.k_length;
    tile.end = 0;
    tile.all = {0, sequence.k_length};
    const std::int64_t group = this->group(), first_head = head < 0 ? kv_head * group : head;
    std::int64_t i = first, g = 0;
    if (group != 1) i = first / group, g = first % group;  // slow, where heads are short
    KeyRange keys;
    // Else every row has the same keys.
    const bool moves = p.causal || p.window_left != kUnlimited || p.window_right != kUnlimited;
    for (int n = 0; n < tile.rows; ++n, ++g) {
      if (g == group) g = 0, ++i;
      tile.i[n] = i;
      tile.h[n] = first_head + g;
      if (n == 0 || (moves && g == 0)) keys = positions(p, sequence, i);
      tile.keys[n] = keys;
      tile.all.begin = keys.begin > tile.all.begin ? keys.begin : tile.all.begin;
      tile.all.end = keys.end < tile.all.end ? keys.end : tile.all.end;
      if (keys.begin < keys.end) {
        tile.begin = keys.begin < tile.begin ? keys.begin : tile.begin;
        tile.end = keys.end > tile.end ? keys.end : tile.end;
      }
    }
    bring_queries(tile);
  }

  // The keys and values [from, to) of a chunk: where they are, or packed. Where few rows read them
  // (few_rows.h), rows of 8 and 16 bits wait: they are converted on the way, or pack() comes later.
  void bring(Chunk<V>& chunk, std::int64_t from, std::int64_t to, bool values = true,
             bool few = false) noexcept {
    if constexpr (kMatrix<V>) return groups.bring(chunk, from, to, values, few);
    chunk.from = from;
    chunk.to = to;
    bring_scales(*this, chunk, values);
    if (few && !chunk.k_takes && !chunk.v_takes && call.k.stride[3] == 1 && call.v.stride[3] == 1 &&
        p.keys != KeyAddressing::paged) {
      const auto row = [&](const Strided& t) {
        return t.data + key_row(p, call, t, sequence, kv_head, from) * size_of(t.type);
      };
      chunk.raw_k = row(call.k);
      chunk.raw_v = row(call.v);
      chunk.raw_k_stride = call.k.stride[2];
      chunk.raw_v_stride = call.v.stride[2];
    } else {
      pack(chunk, values);
    }
  }

  void pack(Chunk<V>& chunk, bool values = true) noexcept {
    chunk.raw_k = chunk.raw_v = nullptr;
    chunk.k =
        bring_rows(call.k, chunk.packed_k, p.d, k_width, chunk, chunk.taken_by_k(), chunk.k_stride);
    if (values)
      chunk.v = bring_rows(call.v, chunk.packed_v, p.dv, width(p.dv), chunk, chunk.taken_by_v(),
                           chunk.v_stride);
    chunk.k_panels = chunk.v_panels = chunk.k_strips = chunk.v_strips = nullptr;
  }

  // Then, for many tiles of rows, what products by lane read best: everything that the chunk has
  // memory for.
  void arrange(Chunk<V>& chunk) const noexcept {
    if (!TilesOf<V>::kPanels) return;
    if constexpr (TilesOf<V>::kPanels) ATTEND_PATH(V, "panels and strips");
    const std::int64_t count = chunk.to - chunk.from;
    if (chunk.paneled_k != nullptr)
      chunk.k_panels = rows_to_panels<V>(chunk.k, chunk.k_stride, count, p.d, chunk.paneled_k);
    if (chunk.paneled_v != nullptr)
      chunk.v_panels = rows_to_panels<V>(chunk.v, chunk.v_stride, count, p.dv, chunk.paneled_v);
    if (chunk.stripped_k != nullptr)
      chunk.k_strips = rows_to_strips<V>(chunk.k, chunk.k_stride, count, k_width, chunk.stripped_k);
    if (chunk.stripped_v != nullptr)
      chunk.v_strips =
          rows_to_strips<V>(chunk.v, chunk.v_stride, count, width(p.dv), chunk.stripped_v);
  }

  // Which keys of the chunk the tile has to look at.
  void find_spans(const Tile<V>& tile, const Chunk<V>& chunk, KeySpans& spans) const noexcept {
    const std::int64_t lo = chunk.from > tile.begin ? chunk.from : tile.begin;
    const std::int64_t hi = chunk.to < tile.end ? chunk.to : tile.end;
    attend::find_spans<V>(
        p, lo, hi, [&](std::int64_t j, bool& same) { return mask.any_sees(tile, j, same); }, spans);
  }

  // s[key][lane] of every key in the spans, kHidden where the row does not see it; top[lane] is
  // the largest. Gives whether anything may be hidden. With a softcap, slopes[key][lane] becomes
  // its derivative (0 where hidden), if asked for.
  bool compute(const Tile<V>& tile, const Chunk<V>& chunk, const KeySpans& spans, Sum* s, Sum* top,
               Sum* slopes = nullptr) noexcept {
    for (int n = 0; n < tile.lanes; ++n) top[n] = kHidden;
    for (int r = 0; r < spans.size; ++r) products(tile, chunk, spans.span[r], s, top);  // 1 scores
    return mask.apply(tile, spans, s, top, slopes);                                     // 2 mask
  }

  // Step 1 alone: s = scale * q . k.
  void products(const Tile<V>& tile, const Chunk<V>& chunk, const KeySpan& span, Sum* s,
                Sum* top) const noexcept {
    if constexpr (kMatrix<V>) return groups.products(tile, chunk, span, scale, s, top);
    else products_by_vectors(tile, chunk, span, s, top);
  }

  void products_by_vectors(const Tile<V>& tile, const Chunk<V>& chunk, const KeySpan& span, Sum* s,
                           Sum* top) const noexcept {
    Operands<V> x{.a = chunk.k + (span.key - chunk.from) * chunk.k_stride,
                  .a_stride = chunk.k_stride,
                  .b = tile.q,
                  .b_stride = tile.lanes,
                  .c = s + span.at * tile.stride,
                  .c_stride = tile.stride,
                  .depth = p.d};
    const std::int64_t row = span.key - chunk.from;
    StoreAndTop finish{.add = false, .top = top, .scale = scale};
    finish.scales = chunk.scales_from(row), finish.first = x.c;
    const auto with_lanes = [&](auto take) {
      if constexpr (kAsNeeded) with_vectors<V>(tile.lanes, take);
      else if (tile.lanes == kMost) take(At<kTileVectors<V>>{});
      else take(At<1>{});
    };
    if (chain < p.d) {
      ATTEND_PATH(V, "several chains of features");
      for (std::int64_t from = 0; from < p.d; from += chain) {
        x.depth = p.d - from < chain ? p.d - from : chain;
        finish.add = from > 0;
        finish.top = from + chain < p.d ? nullptr : top;
        with_lanes([&](auto vectors) {
          constexpr Layout kLayout = vectors < kTileVectors<V> ? Layout::along : Layout::streamed;
          chunk_products<V, vectors, kLayout>(x, span.count, chunk.k_panels, row,
                                              whole_depth<V>(p.d), from, finish);
        });
        x.a += chain;
        x.b += chain * tile.lanes;
      }
    } else if (streams(tile, span.count)) {
      ATTEND_PATH(V, "one vector of rows, many keys");
      x.soon = soon;
      product<V, 1, Layout::streamed>(x, span.count, finish);
    } else {
      with_lanes([&](auto vectors) {
        constexpr Layout kCold = vectors < kTileVectors<V> ? Layout::along : Layout::streamed;
        ATTEND_PATH_OF(V, "scores, vectors", vectors);
        constexpr bool kAlwaysCold = std::is_same_v<Operation, Backward>;
        if (kAlwaysCold || chunk.cold)
          chunk_products<V, vectors, kCold>(x, span.count, chunk.k_panels, row, whole_depth<V>(p.d),
                                            0, finish);
        else if constexpr (!kAlwaysCold)
          chunk_products<V, vectors, Layout::along>(x, span.count, chunk.k_panels, row,
                                                    whole_depth<V>(p.d), 0, finish);
      });
    }
  }

 private:
  // The largest of the numbers; where larger() does not keep a NaN of its first operand, NaN is
  // passed over: its own weight is NaN, and all others are at most 1, as exp2_of() wants them.
  struct StoreAndTop {
    bool add;  // a later chain of the features, to those before it
    Sum* top;  // null: a chain that is not the last
    Sum scale;
    const Sum *scales = nullptr, *first = nullptr;  // of each row from `first` of c on; or none
    template <int kRows, int kVectors>
    ATTEND_INLINE void operator()(const Operands<V>& x, V (&sum)[kRows][kVectors]) const {
      if (add) {
        unrolled<kRows>(ATTEND_EACH(r) {
          V before[kVectors];
          load(x.c + r * x.c_stride, before);
          add_row(sum[r], before);
        });
      }
      if (top == nullptr) return Store{}(x, sum);
      if (scale != 1) unrolled<kRows>(ATTEND_EACH(r) { multiply_row(sum[r], V::set(scale)); });
      if (scales != nullptr) {
        const Sum* const by = scales + (x.c - first) / x.c_stride;
        unrolled<kRows>(ATTEND_EACH(r) { multiply_row(sum[r], V::set(by[r])); });
      }
      V most[kVectors];
      load(top, most);
      unrolled<kRows>(ATTEND_EACH(r) { larger_row(sum[r], most); });
      store(most, top);
      Store{}(x, sum);
    }
  };

  void bring_queries(const Tile<V>& tile) noexcept {
    if constexpr (kMultipliesSums<V> && HasHalves<V, bf16>) {
      if (is_contiguous_row<bf16>(call.q)) return queries_to_lanes<bf16>(tile);
      if (is_contiguous_row<f16>(call.q)) return queries_to_lanes<f16>(tile);
    }
    queries_to_lanes<Operand>(tile);
  }

  // Rows of q as they lie, of 16 bits too where these are widened; any others are converted first.
  template <class E>
  void queries_to_lanes(const Tile<V>& tile) noexcept {
    const E *q[kRoom], *const from = reinterpret_cast<const E*>(call.q.data);
    const bool ready = is_contiguous_row<E>(call.q);
    const std::int64_t origin = query_row(p, call.q, sequence, tile.h[0], 0);
    for (int n = 0; n < tile.rows; ++n) {
      const std::int64_t at =
          origin + (tile.h[n] - tile.h[0]) * call.q.stride[1] + tile.i[n] * call.q.stride[2];
      q[n] = from + at;
      if constexpr (std::is_same_v<E, Operand>) {
        if (ready) continue;
        convert_row<V>(call.q, at, p.d, q_ + n * p.d);
        q[n] = q_ + n * p.d;
      }
    }
    // Behind the last row it stands again: every square is a whole one.
    for (int n = tile.rows; n < tile.lanes; ++n) q[n] = q[tile.rows - 1];
    if constexpr (kMatrix<V>) Matrix<V>::queries(q, tile.lanes, p.d, tile.q, q_scale_ < 0);
    else if constexpr (std::is_same_v<E, Operand>)
      rows_to_operand<V>(q, tile.lanes, p.d, tile.q, tile.lanes, q_scale_);
    else halves_to_lanes<V>(q, p.d, tile.q, tile.lanes, q_scale_);
  }

  const Operand* bring_rows(const Strided& t, Operand* packed, std::int64_t count,
                            std::int64_t row_width, const Chunk<V>& chunk, Sum* scales,
                            std::int64_t& stride) const noexcept {
    if (is_contiguous_row<Operand>(t) && p.keys != KeyAddressing::paged && count == row_width &&
        scales == nullptr) {
      ATTEND_PATH(V, "keys or values as they lie");
      stride = t.stride[2];
      return reinterpret_cast<const Operand*>(t.data) +
             key_row(p, call, t, sequence, kv_head, chunk.from);
    }
    ATTEND_PATH(V, "keys or values packed");
    stride = row_width;
    if (t.type != DType::i8 && p.keys != KeyAddressing::paged && scales == nullptr) {
      convert_each_row<V>(t, key_row(p, call, t, sequence, kv_head, chunk.from), t.stride[2],
                          chunk.to - chunk.from, count, packed, row_width);
      return packed;
    }
    for (std::int64_t j = chunk.from; j < chunk.to; ++j, packed += row_width) {
      const std::int64_t from = key_row(p, call, t, sequence, kv_head, j);
      ask_for_next_bytes(p, t, from, count);
      convert_row<V>(t, from, count, packed);
      for (std::int64_t x = count; x < row_width; ++x) packed[x] = Operand{};
      if (scales != nullptr) take_scale<V>(packed, count, scales[j - chunk.from], false);
    }
    return packed - (chunk.to - chunk.from) * row_width;
  }

  Sum q_scale_;
  Operand* q_;  // [lanes][d], rows that do not lie ready
};

template <class V>
using ForwardScores = Scores<V, Forward>;
template <class V>
using BackwardScores = Scores<V, Backward>;
template <class V>
using InspectScores = Scores<V, Inspect>;

}  // namespace
}  // namespace attend
