// A tile of queries against a chunk of keys: steps 1 and 2, which forward and backward share.
//
// Scores are computed transposed, S^T = K Q^T: a key is a row, a query is a lane. So everything the
// softmax needs is vertical (maximum, sum, rescale: no shuffles), and P^T is the operand of
// O^T = V^T P^T as it lies. The lanes of a tile are rows r = i * group + g, i a query and g a head
// of the group that shares a key head: one query of many heads (decode) fills them like many of
// one.
//
//                     lanes: 1 or kTileVectors vectors of rows; the last tile of a task has as many
//                     as its rows need, up to kLastVectors (forward)
//                 +--------------------+
//    keys, in     |  S^T, then P^T     |  1 scores   q lies packed [d][lanes], k is read as it lies
//    one chunk    |  [chunk][lanes]    |  2 mask     only where something is hidden or added
//    of 256       +--------------------+
#pragma once

#include "core/philox.h"
#include "core/scratch.h"
#include "core/softmax_state.h"
#include "cpu/chunk.h"
#include "cpu/exp2.h"
#include "cpu/pack.h"

#include <cstring>

namespace attend {
namespace {

// a * b for sizes; what is too much stays too much for any allocation.
inline std::int64_t saturating_count(std::int64_t a, std::int64_t b) noexcept {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<std::int64_t>::max() / 16
                                                : product;
}

// Up to kMost rows of one key head, or kRoom.
template <class V>
struct Tile {
  static constexpr int kMost = kTileVectors<V> * V::kLanes;
  static constexpr int kRoom = kLastVectors<V> * V::kLanes;  // for the last one of a task
  int rows, lanes;
  std::int64_t stride;         // from key to key in S^T; the lanes, unless tiles lie side by side
  std::int64_t vector_stride;  // from one vector of lanes to the next
  // Where lane n of a key stands in S^T.
  std::int64_t column(int n) const noexcept {
    return kMatrix<V> ? n / V::kLanes * vector_stride + n % V::kLanes : n;
  }
  std::int64_t begin, end;  // keys that any row may see, by position
  KeyRange all;             // keys that every row may see, by position; perhaps none
  std::int64_t h[kRoom], i[kRoom];
  KeyRange keys[kRoom];  // by position
  OperandOf<V>* q;       // [d][lanes]
};

// use(how many vectors the lanes of a tile are), a constant.
template <class V, int kVectors = 1, class Use>
void with_vectors(int lanes, Use use) noexcept {
  if constexpr (kVectors < kLastVectors<V>)
    if (lanes > kVectors * V::kLanes) return with_vectors<V, kVectors + 1>(lanes, use);
  use(At<kVectors>{});
}

// Steps 1 and 2 of one problem and key head. A tile has one vector of lanes or kTileVectors; in
// forward, as many as its rows need.
template <class V, class Operation>
class Scores {
  static constexpr bool kAsNeeded = std::is_same_v<Operation, Forward>;

 public:
  using Operand = OperandOf<V>;
  using Sum = SumOf<V>;
  using Problem = typename Operation::Problem;
  using Call = typename Operation::Call;
  static constexpr int kMost = Tile<V>::kMost, kRoom = Tile<V>::kRoom;
  // Keys that are taken together, from a multiple of it on.
  static constexpr int kGroup = [] {
    if constexpr (kMatrix<V>) return Matrix<V>::kGroup;
    else return 1;
  }();
  // Rows of keys or values that are arranged together.
  static constexpr int kTogether = [] {
    if constexpr (kMatrix<V>) return Matrix<V>::kRowsTogether;
    else return 0;
  }();
  static constexpr Sum kHidden = -std::numeric_limits<Sum>::infinity();
  static constexpr Sum kLowest = std::numeric_limits<Sum>::lowest();
  // From so many keys on, a tile of one vector waits for memory more than for products.
  static constexpr int kStreamed = 128;
  static bool streams(const Tile<V>& tile, int keys) noexcept {
    return tile.lanes == V::kLanes && keys >= kStreamed;
  }

  const Problem& p;
  const Call& call;
  Sequence sequence;
  std::int64_t kv_head = 0;
  std::int64_t head = -1;  // this one alone; -1: the whole group of the key head
  // Features that are summed in one chain; parts of so many are added. A chain's error grows with
  // its length.
  static constexpr std::int64_t kChain = 256;
  std::int64_t chain;
  std::int64_t k_width;  // of a row of keys: d, or as whole vectors where it is read by vectors
  Lines<Operand>* soon = nullptr;  // what follows the scores of few rows and many keys
  Interrupt* interrupt = nullptr;
  const bool plain;  // nothing is added to a score
  Sum scale;         // of a sum; q has the rest of it

  Scores(const Problem& problem, const Call& c, Scratch& scratch)
      : p(problem), call(c), chain(p.d < kChain ? p.d : kChain), k_width(whole_depth<V>(p.d)),
        plain(p.softcap == 0 && !p.bias && !p.alibi && !p.mask),
        rows_(scratch.take<Sum>(kRoom * kChunk)), added_(scratch.take<Sum>(kRoom * kChunk)),
        q_(scratch.take<Operand>(kRoom * p.d)),
        together_(scratch.take<Operand>(kTogether * (p.d > p.dv ? p.d : p.dv))) {
    // A power of two goes into q, exactly, unless q could overflow; any other factor multiplies the
    // sum.
    int exponent = 0;
    const double mantissa = __builtin_frexp(p.scale, &exponent);
    const bool power = !kMatrix<V> && (mantissa == 0.5 || mantissa == -0.5) && exponent <= 1;
    q_scale_ = static_cast<Sum>(power ? p.scale : 1);
    scale = static_cast<Sum>(power ? 1 : p.scale);
    if (kMatrix<V> && scale < 0) q_scale_ = -1, scale = -scale;  // the largest sum has it still
  }

  // A row of `count` features as whole vectors.
  static std::int64_t width(std::int64_t count) noexcept {
    return (count + V::kLanes - 1) / V::kLanes * V::kLanes;
  }
  std::int64_t group() const noexcept { return head < 0 ? p.group() : 1; }
  std::int64_t rows() const noexcept { return group() * sequence.q_length; }

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
    const Operand* q[kRoom];
    const bool ready = is_contiguous_row<Operand>(call.q);
    const Operand* from = reinterpret_cast<const Operand*>(call.q.data);
    const std::int64_t head_stride = call.q.stride[1], row_stride = call.q.stride[2];
    const std::int64_t group = this->group(), first_head = head < 0 ? kv_head * group : head;
    std::int64_t i = first / group, g = first % group;
    const std::int64_t origin = query_row(p, call.q, sequence, first_head, 0);
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
      const std::int64_t at = origin + g * head_stride + i * row_stride;
      if (!ready) convert_row<V>(call.q, at, p.d, q_ + n * p.d);
      q[n] = ready ? from + at : q_ + n * p.d;
    }
    // Behind the last row it stands again: every square is a whole one.
    for (int n = tile.rows; n < tile.lanes; ++n) q[n] = q[tile.rows - 1];
    if constexpr (kMatrix<V>) Matrix<V>::queries(q, tile.lanes, p.d, tile.q, q_scale_ < 0);
    else rows_to_operand<V>(q, tile.lanes, p.d, tile.q, tile.lanes, q_scale_);
  }

  // The keys and values [from, to) of a chunk: where they are, or packed.
  void bring(Chunk<V>& chunk, std::int64_t from, std::int64_t to, bool values = true) noexcept {
    if constexpr (kMatrix<V>) return bring_groups(chunk, from, to, values);
    chunk.from = from;
    chunk.to = to;
    chunk.k = bring_rows(call.k, chunk.packed_k, p.d, k_width, chunk, chunk.k_stride);
    if (values)
      chunk.v = bring_rows(call.v, chunk.packed_v, p.dv, width(p.dv), chunk, chunk.v_stride);
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
  void find_runs(const Tile<V>& tile, const Chunk<V>& chunk, Runs& runs) const noexcept {
    const std::int64_t lo = chunk.from > tile.begin ? chunk.from : tile.begin;
    const std::int64_t hi = chunk.to < tile.end ? chunk.to : tile.end;
    runs.runs = runs.count = 0;
    runs.same_blocks = true;
    if constexpr (kMatrix<V>) return find_groups(tile, lo, hi, runs);
    for (std::int64_t j = lo; j < hi;) {
      const std::int64_t left = p.blocks ? p.block_keys - j % p.block_keys : hi - j;
      const int count = static_cast<int>(left < hi - j ? left : hi - j);
      if (!p.blocks || any_sees(tile, j, runs.same_blocks)) append(runs, j, count);
      j += count;
    }
  }

  // s[key][lane] of every key in the runs, kHidden where the row does not see it; top[lane] is
  // the largest. Gives whether anything may be hidden. With a softcap, slopes[key][lane] becomes
  // its derivative (0 where hidden), if asked for.
  bool compute(const Tile<V>& tile, const Chunk<V>& chunk, const Runs& runs, Sum* s, Sum* top,
               Sum* slopes = nullptr) noexcept {
    for (int n = 0; n < tile.lanes; ++n) top[n] = kHidden;
    for (int r = 0; r < runs.runs; ++r) products(tile, chunk, runs.run[r], s, top);  // 1 scores
    return mask(tile, runs, s, top, slopes);                                         // 2 mask
  }

  bool mask(const Tile<V>& tile, const Runs& runs, Sum* s, Sum* top,
            Sum* slopes = nullptr) noexcept {
    bool partial = false;
    if (!plain || !runs.same_blocks) {
      partial = true;
      add(tile, runs, s, slopes);
    } else {
      for (int r = 0; r < runs.runs; ++r) partial |= hide(tile, runs.run[r], s);
    }
    if (partial) find_top(tile, s, runs.count, top);
    return partial;
  }

  // Step 1 alone: s = scale * q . k.
  void products(const Tile<V>& tile, const Chunk<V>& chunk, const Run& run, Sum* s,
                Sum* top) const noexcept {
    if constexpr (kMatrix<V>) return group_products(tile, chunk, run, s, top);
    else products_by_vectors(tile, chunk, run, s, top);
  }

  void products_by_vectors(const Tile<V>& tile, const Chunk<V>& chunk, const Run& run, Sum* s,
                           Sum* top) const noexcept {
    Operands<V> x{.a = chunk.k + (run.key - chunk.from) * chunk.k_stride,
                  .a_stride = chunk.k_stride,
                  .b = tile.q,
                  .b_stride = tile.lanes,
                  .c = s + run.at * tile.stride,
                  .c_stride = tile.stride,
                  .depth = p.d};
    StoreAndTop finish{.add = false, .top = top, .scale = scale};
    const std::int64_t row = run.key - chunk.from;
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
          chunk_products<V, vectors, kLayout>(x, run.count, chunk.k_panels, row,
                                              whole_depth<V>(p.d), from, finish);
        });
        x.a += chain;
        x.b += chain * tile.lanes;
      }
    } else if (streams(tile, run.count)) {
      ATTEND_PATH(V, "one vector of rows, many keys");
      x.soon = soon;
      product<V, 1, Layout::streamed>(x, run.count, finish);
    } else {
      with_lanes([&](auto vectors) {
        constexpr Layout kCold = vectors < kTileVectors<V> ? Layout::along : Layout::streamed;
        ATTEND_PATH_OF(V, "scores, vectors", vectors);
        constexpr bool kAlwaysCold = std::is_same_v<Operation, Backward>;
        if (kAlwaysCold || chunk.cold)
          chunk_products<V, vectors, kCold>(x, run.count, chunk.k_panels, row, whole_depth<V>(p.d),
                                            0, finish);
        else if constexpr (!kAlwaysCold)
          chunk_products<V, vectors, Layout::along>(x, run.count, chunk.k_panels, row,
                                                    whole_depth<V>(p.d), 0, finish);
      });
    }
  }

  // Sums of one group of keys, from `first` of the chunk on, by a matrix instruction; in two halves
  // (0 and 1), between which its unit has time for others.
  void group_scores(const Tile<V>& tile, const Chunk<V>& chunk, std::int64_t first, int half,
                    Sum* s) const noexcept {
    const bool whole = first + kGroup <= chunk.to - chunk.from;
    const std::int64_t middle = k_width / TilesOf<V>::kDepth / 2 * TilesOf<V>::kDepth;
    const std::int64_t apart = whole ? chunk.k_stride : k_width;
    Matrix<V>::scores(whole ? chunk.k + first * chunk.k_stride : chunk.k_last,
                      chunk.arranged_k ? 0 : apart, tile.q, tile.lanes, half == 0 ? 0 : middle,
                      half == 0 ? middle : k_width, k_width, s, tile.stride, tile.vector_stride);
  }

  // They become scores, times `by`; top the largest so far.
  void finish_group(const Tile<V>& tile, Sum* s, Sum* top, Sum by,
                    int keys = kGroup) const noexcept {
    constexpr int kChains = 4;
    const V factor = V::set(by);
    for (int n = 0; n < tile.lanes; n += V::kLanes) {
      V most[kChains];
      unrolled<kChains>(ATTEND_EACH(c) { most[c] = V::set(kHidden); });
      most[0] = V::load(top + n);
      for (int j = 0; j < keys; j += kChains)
        unrolled<kChains>(ATTEND_EACH(c) {
          Sum* const at = s + (j + c) * tile.stride + tile.column(n);
          V u = V::load(at);
          if (by != 1) (u = u * factor).store(at);
          most[c] = larger(u, most[c]);
        });
      larger(larger(most[3], most[2]), larger(most[1], most[0])).store(top + n);
    }
  }

  // Whether row n sees key j, which lies in one of its runs.
  bool sees(const Tile<V>& tile, int n, std::int64_t j) const noexcept {
    return j >= tile.keys[n].begin && j < tile.keys[n].end &&
           block_visible(p, call, sequence.b, tile.h[n], tile.i[n], j) &&
           !masked_out(p, call, sequence.b, tile.h[n], tile.i[n], j);
  }

  // Takes `count` keys from j on into the runs.
  static void append(Runs& runs, std::int64_t j, int count) noexcept {
    Run* last = runs.run + runs.runs - 1;
    ATTEND_PATH_IF(runs.runs > 0 && last->key + last->count != j, V, "several runs of keys");
    if (runs.runs > 0 && last->key + last->count == j) last->count += count;
    else runs.run[runs.runs++] = {j, runs.count, count};
    runs.count += count;
  }

  // Whether a row of the tile sees the block of key j; `same` is cleared if not all see the same.
  bool any_sees(const Tile<V>& tile, std::int64_t j, bool& same) const noexcept {
    int seen = 0;
    for (int n = 0; n < tile.rows; ++n)
      seen += block_visible(p, call, sequence.b, tile.h[n], tile.i[n], j) ? 1 : 0;
    if (seen != 0 && seen != tile.rows) same = false;
    return seen != 0;
  }

  // Whether the scores of the tile's first row and of the first key are finite. Then q and k are,
  // and a score is -inf only if q . k overflows: its key weighs 0, but is not hidden.
  static bool edges_finite(const Tile<V>& tile, const Sum* s, int keys) noexcept {
    V check[4];  // of numbers times 0: 0, or NaN
    unrolled<4>(ATTEND_EACH(n) { check[n] = V::set(0); });
    for (int n = 0; n < tile.lanes; n += V::kLanes)
      check[0] = fma(V::load(s + tile.column(n)), V::set(0), check[0]);
    int j = 0;
    for (; j + 4 <= keys; j += 4)
      unrolled<4>(ATTEND_EACH(n) {
        check[n] = fma(V::load(s + (j + n) * tile.stride), V::set(0), check[n]);
      });
    for (; j < keys; ++j) check[0] = fma(V::load(s + j * tile.stride), V::set(0), check[0]);
    return all_finite((check[0] + check[1]) + (check[2] + check[3]));
  }

  // What dropout multiplies the weights with, [key][lane].
  void dropout(const Tile<V>& tile, const Runs& runs, Sum* factors) noexcept {
    const Sum* rows[kRoom];
    for (int n = 0; n < tile.rows; ++n) {
      Sum* row = rows_ + n * kChunk;
      rows[n] = row;
      for (int r = 0; r < runs.runs; ++r)
        for (int x = 0; x < runs.run[r].count; ++x)
          row[runs.run[r].at + x] = static_cast<Sum>(
              dropout_factor(p, call, sequence.b, tile.h[n], tile.i[n], runs.run[r].key + x));
    }
    rows_to_lanes<V>(rows, tile.rows, runs.count, factors, tile.lanes);
  }

 private:
  // ---- keys in groups, for matrix instructions -------------------------------------------------

  static std::int64_t whole_groups(std::int64_t keys) noexcept {
    return (keys + kGroup - 1) / kGroup * kGroup;
  }

  // From a multiple of a group on. Keys behind the last that is asked for, but are there, are
  // taken with the others.
  void bring_groups(Chunk<V>& chunk, std::int64_t from, std::int64_t to, bool values) noexcept {
    chunk.from = from / kGroup * kGroup;
    const std::int64_t whole = whole_groups(to), there = sequence.k_length;
    chunk.to = to > there ? to : whole < there ? whole : there;
    constexpr bool kBackward = std::is_same_v<Operation, Backward>;
    if constexpr (Matrix<V>::kArrangesKeys) return arrange_groups(chunk, values);
    if (kBackward && !values) return bring_pairs(call.k, p.d, chunk, chunk.packed_k);
    chunk.k_last = bring_group_rows(call.k, p.d, chunk, chunk.packed_k, chunk.k, chunk.k_stride);
    if (kBackward)
      chunk.v_last = bring_group_rows(call.v, p.dv, chunk, chunk.packed_v, chunk.v, chunk.v_stride);
    else if (values) bring_pairs(call.v, p.dv, chunk, chunk.packed_v, chunk.k != chunk.packed_k);
  }

  // What more than one tile, or more than one vector of rows, reads is arranged.
  void arrange_groups(Chunk<V>& chunk, bool values) noexcept {
    chunk.arranged_k = rows() > kRoom;
    if (chunk.arranged_k) {
      chunk.k = chunk.packed_k;
      chunk.k_stride = k_width;
      chunk.k_last = chunk.k + (chunk.to - chunk.from) / kGroup * kGroup * k_width;
      each_group(call.k, p.d, chunk, [&](auto row, std::int64_t first) {
        Matrix<V>::keys(row, p.d, chunk.packed_k + first * k_width);
      });
    } else {
      chunk.k_last = bring_group_rows(call.k, p.d, chunk, chunk.packed_k, chunk.k, chunk.k_stride);
    }
    if (!values) return;
    chunk.arranged_v = rows() > V::kLanes;
    if (chunk.arranged_v) bring_pairs(call.v, p.dv, chunk, chunk.packed_v);
    else
      chunk.v_last = bring_group_rows(call.v, p.dv, chunk, chunk.packed_v, chunk.v, chunk.v_stride);
  }

  // Rows of whole depths, as they lie or packed; gives those of a last group that is not a whole
  // one. Behind its keys lies anything: it is hidden.
  const Operand* bring_group_rows(const Strided& t, std::int64_t count, const Chunk<V>& chunk,
                                  Operand* packed, const Operand*& at,
                                  std::int64_t& stride) const noexcept {
    const std::int64_t depth = whole_depth<V>(count);
    const std::int64_t keys = chunk.to - chunk.from, last = keys / kGroup * kGroup;
    const bool ready =
        is_contiguous_row<Operand>(t) && p.keys != KeyAddressing::paged && count == depth;
    stride = ready ? t.stride[2] : depth;
    at = packed;
    if (ready)
      at = reinterpret_cast<const Operand*>(t.data) +
           key_row(p, call, t, sequence, kv_head, chunk.from);
    for (std::int64_t j = ready ? last : 0; j < keys; ++j) {
      Operand* row = packed + j * depth;
      bring_row(t, key_row(p, call, t, sequence, kv_head, chunk.from + j), count, row);
      for (std::int64_t x = count; x < depth; ++x) row[x] = Operand{};
    }
    return packed + last * depth;
  }

  // Groups of keys in pairs. Meanwhile rows of k may be asked for, which come next.
  void bring_pairs(const Strided& t, std::int64_t count, const Chunk<V>& chunk, Operand* to,
                   bool asks = false) const noexcept {
    each_group(t, count, chunk, [&](auto row, std::int64_t first) {
      if (asks)
        ask_for(chunk.k + first * chunk.k_stride, chunk.k_stride, chunk.to - chunk.from - first);
      Matrix<V>::values(row, count, to + Matrix<V>::values_at(first, width(count)));
    });
  }

  // take(row, first): row(key of the group) is one, or null behind the last; `first` is the
  // group's first key in the chunk.
  template <class Take>
  void each_group(const Strided& t, std::int64_t count, const Chunk<V>& chunk,
                  Take take) const noexcept {
    const bool side_by_side = is_contiguous_row<Operand>(t);
    for (std::int64_t j = chunk.from; j < chunk.to; j += kGroup)
      take(
          [&](int key) -> const Operand* {
            if (j + key >= chunk.to) return nullptr;
            const std::int64_t at = key_row(p, call, t, sequence, kv_head, j + key);
            if (side_by_side) return reinterpret_cast<const Operand*>(t.data) + at;
            Operand* row = together_ + key % kTogether * count;
            bring_row(t, at, count, row);
            return row;
          },
          j - chunk.from);
  }

  // The keys of a group, which are read next, and not in the order in which they lie.
  void ask_for(const Operand* k, std::int64_t stride, std::int64_t keys) const noexcept {
    constexpr std::int64_t kLine = 64 / sizeof(Operand);
    for (std::int64_t j = 0; j < kGroup && j < keys; ++j)
      for (std::int64_t x = 0; x < p.d; x += kLine) __builtin_prefetch(k + j * stride + x, 0, 2);
  }

  // Of the operands' own type.
  static void bring_row(const Strided& t, std::int64_t at, std::int64_t count,
                        Operand* row) noexcept {
    const Operand* from = reinterpret_cast<const Operand*>(t.data) + at;
    if (t.stride[3] == 1) std::memcpy(row, from, static_cast<std::size_t>(count) * sizeof(Operand));
    else
      for (std::int64_t x = 0; x < count; ++x) row[x] = from[x * t.stride[3]];
  }

  // Groups of which some row sees some key.
  void find_groups(const Tile<V>& tile, std::int64_t lo, std::int64_t hi,
                   Runs& runs) const noexcept {
    for (std::int64_t group = lo / kGroup * kGroup; group < hi; group += kGroup) {
      const std::int64_t end = group + kGroup < hi ? group + kGroup : hi;
      bool seen = !p.blocks, same = true;
      for (std::int64_t j = group > lo ? group : lo; p.blocks && j < end;) {
        const bool sees = any_sees(tile, j, same);
        seen |= sees;
        same &= sees;
        j += p.block_keys - j % p.block_keys;
      }
      if (!seen) continue;
      runs.same_blocks &= same;
      append(runs, group, kGroup);
    }
  }

  void group_products(const Tile<V>& tile, const Chunk<V>& chunk, const Run& run, Sum* s,
                      Sum* top) const noexcept {
    for (std::int64_t j = 0; j < run.count; j += kGroup) {
      Sum* const to = s + (run.at + j) * tile.stride;
      group_scores(tile, chunk, run.key - chunk.from + j, 0, to);
      group_scores(tile, chunk, run.key - chunk.from + j, 1, to);
      const bool all = kAsNeeded || j + kGroup <= run.count;
      finish_group(tile, to, top, scale, all ? kGroup : static_cast<int>(run.count - j));
    }
  }

  // ---- products by vectors ---------------------------------------------------------------------

  // The largest of the numbers; where larger() does not keep a NaN of its first operand, NaN is
  // passed over: its own weight is NaN, and all others are at most 1, as exp2_of() wants them.
  struct StoreAndTop {
    bool add;  // a later part of the features, to those before it
    Sum* top;  // null: a part that is not the last
    Sum scale;
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
      V most[kVectors];
      load(top, most);
      unrolled<kRows>(ATTEND_EACH(r) { larger_row(sum[r], most); });
      store(most, top);
      Store{}(x, sum);
    }
  };

  const Operand* bring_rows(const Strided& t, Operand* packed, std::int64_t count,
                            std::int64_t row_width, const Chunk<V>& chunk,
                            std::int64_t& stride) const noexcept {
    if (is_contiguous_row<Operand>(t) && p.keys != KeyAddressing::paged && count == row_width) {
      ATTEND_PATH(V, "keys or values as they lie");
      stride = t.stride[2];
      return reinterpret_cast<const Operand*>(t.data) +
             key_row(p, call, t, sequence, kv_head, chunk.from);
    }
    ATTEND_PATH(V, "keys or values packed");
    for (std::int64_t j = chunk.from; j < chunk.to; ++j, packed += row_width) {
      convert_row<V>(t, key_row(p, call, t, sequence, kv_head, j), count, packed);
      for (std::int64_t x = count; x < row_width; ++x) packed[x] = Operand{};
    }
    stride = row_width;
    return packed - (chunk.to - chunk.from) * row_width;
  }

  static void find_top(const Tile<V>& tile, const Sum* s, int count, Sum* top) noexcept {
    for (int n = 0; n < tile.lanes; n += V::kLanes) {
      V most = V::set(kHidden);
      for (int j = 0; j < count; ++j)
        most = larger(V::load(s + j * tile.stride + tile.column(n)), most);
      most.store(top + n);
    }
  }

  // Hides by position, with nothing else to do. Keys that every row sees are not touched.
  bool hide(const Tile<V>& tile, const Run& run, Sum* s) const noexcept {
    int seen_from = within(run, tile.all.begin), seen_to = within(run, tile.all.end);
    if (seen_from == 0 && seen_to == run.count) return false;
    ATTEND_PATH(V, "hidden by position alone");
    Sum first[kRoom], last[kRoom];
    for (int n = 0; n < tile.rows; ++n) {
      first[n] = static_cast<Sum>(within(run, tile.keys[n].begin));
      last[n] = static_cast<Sum>(within(run, tile.keys[n].end));
    }
    for (int n = tile.rows; n < tile.lanes; ++n)
      first[n] = 0, last[n] = static_cast<Sum>(run.count);
    if (seen_to < seen_from) seen_from = seen_to = 0;
    hide_keys(tile, first, last, 0, seen_from, s + run.at * tile.stride);
    hide_keys(tile, first, last, seen_to, run.count, s + run.at * tile.stride);
    return true;
  }

  static int within(const Run& run, std::int64_t j) noexcept {
    return j <= run.key ? 0 : j - run.key > run.count ? run.count : static_cast<int>(j - run.key);
  }

  static void hide_keys(const Tile<V>& tile, const Sum* first, const Sum* last, int from, int to,
                        Sum* s) noexcept {
    const V hidden = V::set(kHidden);
    for (int n = 0; n < tile.lanes; n += V::kLanes) {
      const V begin = V::load(first + n), end = V::load(last + n);
      for (int j = from; j < to; ++j) {
        const V key = V::set(static_cast<Sum>(j));
        Sum* const at = s + j * tile.stride + tile.column(n);
        const V u = V::load(at);
        select(less(key, begin), hidden, select(less(key, end), u, hidden)).store(at);
      }
    }
  }

  // Any combination of options: what is added to each score, or kHidden, is written row by row,
  // where it lies side by side, and turned into lanes.
  [[gnu::noinline]] void add(const Tile<V>& tile, const Runs& runs, Sum* s, Sum* slopes) noexcept {
    ATTEND_PATH(V, "something added to scores");
    const Sum* rows[kRoom];
    for (int n = 0; n < tile.rows; ++n) {
      rows[n] = rows_ + n * kChunk;
      for (int r = 0; r < runs.runs; ++r)
        added_to_row(tile, n, runs.run[r], rows_ + n * kChunk + runs.run[r].at);
    }
    rows_to_lanes<V>(rows, tile.rows, runs.count, added_, tile.lanes);

    const V cap = V::set(static_cast<Sum>(p.softcap));
    const V inverse = V::set(static_cast<Sum>(p.softcap == 0 ? 0 : 1 / p.softcap));
    const V hidden = V::set(kHidden), lowest = V::set(std::numeric_limits<Sum>::lowest());
    for (int j = 0; j < runs.count; ++j) {
      for (int n = 0; n < tile.lanes; n += V::kLanes) {
        const V a = V::load(added_ + j * tile.lanes + n);
        const std::int64_t x = j * tile.stride + tile.column(n);
        V u = V::load(s + x);
        V before = u;  // the score before the bias
        if (p.bias_before_softcap) u = u + a;
        if (p.softcap != 0) {
          const V t = tanh_of(u * inverse);
          u = cap * t;
          if (slopes != nullptr)
            select(less(a, lowest), V::set(0), V::set(1) - t * t).store(slopes + x);
        }
        if (!p.bias_before_softcap) before = u, u = u + a;
        u = select(less(before, lowest), u, larger(lowest, u));  // finite stays finite
        select(less(a, lowest), hidden, u).store(s + x);
      }
    }
  }

  void added_to_row(const Tile<V>& tile, int n, const Run& run, Sum* row) const noexcept {
    const std::int64_t b = sequence.b, h = tile.h[n], i = tile.i[n];
    const int from = within(run, tile.keys[n].begin), to = within(run, tile.keys[n].end);
    for (int x = 0; x < run.count; ++x) row[x] = 0;
    if (p.alibi) {
      const Sum slope = static_cast<Sum>(load(call.alibi, call.alibi.offset(0, h, 0)));
      const std::int64_t position = i + sequence.offset;
      // Finite stays finite. A slope of infinity hides, unless a softcap makes it finite again.
      const bool capped = p.bias_before_softcap && p.softcap != 0;
      const Sum least = slope == -kHidden && !capped ? kHidden : kLowest;
      for (int x = from; x < to; ++x) {
        const std::int64_t distance = position - (run.key + x);
        const Sum value = -slope * static_cast<Sum>(distance < 0 ? -distance : distance);
        row[x] = value < least ? least : value;
      }
    }
    if (p.bias) add_bias(call.bias.offset(b, h, i, run.key), from, to, row);
    if (p.mask) apply_mask(call.mask.offset(b, h, i, run.key), from, to, row);
    for (int x = 0; x < from; ++x) row[x] = kHidden;
    for (int x = to; x < run.count; ++x) row[x] = kHidden;
    if (p.blocks) {
      for (int x = from; x < to; ++x)
        if (!block_visible(p, call, b, h, i, run.key + x)) row[x] = kHidden;
    }
  }

  // -inf stays -inf whatever ALiBi says.
  void add_bias(std::int64_t offset, int from, int to, Sum* row) const noexcept {
    Sum bias[kChunk];
    convert_row<V>(call.bias, offset + from * call.bias.stride[3], to - from, bias);
    for (int x = from; x < to; ++x) {
      const Sum value = bias[x - from];
      const bool overflows = p.alibi && row[x] + value < kLowest && row[x] != kHidden;
      row[x] = value == kHidden ? kHidden : overflows ? kLowest : row[x] + value;
    }
  }

  void apply_mask(std::int64_t offset, int from, int to, Sum* row) const noexcept {
    const std::int64_t stride = call.mask.stride[3];
    if (call.mask.type == DType::i64 || call.mask.type == DType::i32) {
      for (int x = from; x < to; ++x)
        if (load_integer(call.mask, offset + x * stride) == 0) row[x] = kHidden;
    } else {
      const auto* mask = reinterpret_cast<const std::uint8_t*>(call.mask.data) + offset;
      for (int x = from; x < to; ++x) row[x] = mask[x * stride] == 0 ? kHidden : row[x];
    }
  }

  Sum q_scale_;
  Sum *rows_, *added_;  // [lanes][256] and [256][lanes]
  Operand* q_;          // [lanes][d], rows that do not lie ready
  Operand* together_;   // [kTogether][d or dv], the same of keys or values
};

template <class V>
using ForwardScores = Scores<V, Forward>;
template <class V>
using BackwardScores = Scores<V, Backward>;
template <class V>
using InspectScores = Scores<V, Inspect>;

}  // namespace
}  // namespace attend
