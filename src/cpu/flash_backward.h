// Attention backward, fused: five products, O(length) memory, the same bits on any number of
// threads.
//
// A task owns a key head (or a segment of its query rows, see segments()) and goes through the rows
// group by group. For each group score_gradients.h leaves P and dS in two strips, and three
// products are left, chunk by chunk of 256 keys, all of them product.h:
//
//            rows of the group                      dQ [rows][d]    += dS K          tile by tile
//          +-------------------+                    dV [keys][dv]   += P^T dO        key_sums.h
//    chunk |   P^T   and dS^T  |                    dK [keys][d]    += dS^T Q        key_sums.h
//   of 256 |                   |
//    keys  +-------------------+                    features in lanes, so that nothing is
//                                                   transposed on its way out
//
// dq of a chunk is summed in f32, chunks in f64, ascending. Registers as in product.h. What limits
// it is the multiplier: 5 products of 2 d flop a pair, beside some 25 instructions a vector of
// pairs for softmax and dS; from T = 2048 on also the caches, since K, V, dK and dV pass by once a
// group. It declines nothing but the machine. `attend bench --suite backward --threads 1` on a core
// with neighbours (AVX-512 Xeon, 2026-11-15, five products counted, 2048 keys): 49 % of the peak at
// d = 64, 56 % at d = 128, causal.
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
  using T = typename V::T;
  using Group = ScoreGradients<V>;
  using Rows = typename Group::Rows;
  static constexpr int kMost = Group::kMost, kTiles = Group::kTiles;
  static constexpr int kSlice = 64;  // keys whose rows stay in the nearest cache

  struct Memory {
    KeySums<V> dk, dv;
    T* dq[kTiles];            // [rows][width]  of the chunk at hand
    double* dq_sum[kTiles];   // [rows][width]
    double *dalibi, *dsinks;  // [heads of the group]
    double alibi_row[Group::kRows];
    Memory(const Problem& p, const Call& call, Scores<V>& scores, Group& group, Scratch& scratch)
        : dk(scores, group, scratch, {p.dk, p.d, call.q, call.dk, p.scale}, segments(p) > 1,
             segment_rows(p)),
          dv(scores, group, scratch, {p.dv_gradient, p.dv, call.dout, call.dv, 1}, segments(p) > 1,
             segment_rows(p)) {
      const std::int64_t size = p.dq ? kMost * Scores<V>::width(p.d) : 0;
      for (int t = 0; t < kTiles; ++t) {
        dq[t] = scratch.take<T>(size);
        dq_sum[t] = scratch.take<double>(p.k_length > kChunk ? size : 0);
      }
      dalibi = scratch.take<double>(p.group());
      dsinks = scratch.take<double>(p.group());
    }
  };

 public:
  static constexpr Operation kOperation = Operation::backward;
  static constexpr int kStages = 2;

  static Tiles tiles(const Problem& p, const Machine&) { return {Group::group_rows(p), kChunk}; }

  static std::int64_t tasks(const Problem& p, const Tiles&, int stage) {
    const std::int64_t heads = key_heads(p);
    if (stage == 0) return heads * segments(p) + BiasGradient<V>::tasks(p);
    return (segments(p) > 1 ? heads * kJoins : 0) + (p.dalibi || p.dsinks ? p.heads : 0);
  }

  static Workspace workspace(const Problem& p, const Tiles&) {
    const Call none;
    Scratch scratch(nullptr), shared(nullptr);
    Scores<V> scores(p, none, scratch);
    Group group(scores, scratch);
    Scratch bias = scratch;
    if (key_heads(p) > 0) Memory(p, none, scores, group, scratch);
    if (BiasGradient<V>::tasks(p) > 0) BiasGradient<V>::take(p, bias);
    take_shared(p, shared);
    return {.shared = shared.used(),
            .per_strand = scratch.used() > bias.used() ? scratch.used() : bias.used()};
  }

  static void run(const Problem& p, const Tiles&, const Call& call, const Task& task) noexcept {
    const std::int64_t cuts = segments(p), own = key_heads(p) * cuts;
    if (task.stage == 1) return finish(p, call, task);
    Scratch scratch(task.scratch);
    Scores<V> scores(p, call, scratch);
    Group group(scores, scratch);
    if (task.index >= own) {
      BiasGradient<V>(scores, group, scratch).run(task.index - own);
      return;
    }
    Memory memory(p, call, scores, group, scratch);
    FlashBackward f{p, call, scores, group, memory};
    // Causal: the last rows see the most keys.
    f.head(task.index % key_heads(p), cuts - 1 - task.index / key_heads(p), task.shared);
  }

 private:
  FlashBackward(const Problem& problem, const Call& call, Scores<V>& scores, Group& group,
                Memory& memory)
      : p(problem), call_(call), scores_(scores), group_(group), memory_(memory) {}

  static std::int64_t key_heads(const Problem& p) {
    if (!p.dq && !p.dk && !p.dv_gradient && !p.dalibi && !p.dsinks) return 0;
    return paged(p) ? p.kv_heads : p.batch * p.kv_heads;
  }

  // Into how many segments the rows of a key head are cut, where heads alone would leave processors
  // idle. By the shape alone. Every segment has its own sums of dk and dv: not more than kBytes of
  // them a head, unless there were fewer than kTasksAtLeast tasks. Narrow heads, whose strips are
  // large beside those sums, stay whole.
  static std::int64_t segments(const Problem& p) {
    constexpr std::int64_t kEnough = 16, kTasks = 48, kTasksAtLeast = 8, kNarrow = 32;
    constexpr std::int64_t kBytes = 16 << 20;
    const std::int64_t heads = key_heads(p), blocks = row_blocks(p);
    if (heads == 0 || heads >= kEnough || paged(p) || p.d + p.dv < kNarrow) return 1;
    const auto each = saturating_count(p.k_length + 1, (p.d + p.dv) * sizeof(T));
    const std::int64_t room = kBytes / each, least = (kTasksAtLeast + heads - 1) / heads;
    const std::int64_t many = (kTasks + heads - 1) / heads, most = room < least ? least : room;
    const std::int64_t cuts = many < most ? many : most;
    const std::int64_t size = (blocks + cuts - 1) / cuts;
    return blocks < 2 ? 1 : (blocks + size - 1) / size;
  }
  static std::int64_t row_blocks(const Problem& p) {
    return (p.group() * p.q_length + Group::kRows - 1) / Group::kRows;
  }
  static std::int64_t segment_rows(const Problem& p) {
    return (row_blocks(p) + segments(p) - 1) / segments(p) * Group::kRows;
  }
  static constexpr std::int64_t kJoins = 4;  // tasks of a key head that join its segments

  // What stage 0 leaves to stage 1.
  struct Shared {
    T *dk, *dv;               // [key heads][segments][keys][width], where there are segments
    double *dalibi, *dsinks;  // [key heads][segments][group]
  };
  static Shared take_shared(const Problem& p, Scratch& scratch) {
    const std::int64_t each = key_heads(p) * segments(p);
    const std::int64_t keys = segments(p) > 1 ? saturating_count(each, p.k_length) : 0;
    Shared shared;
    shared.dk = scratch.take<T>(p.dk ? saturating_count(keys, width(p.d)) : 0);
    shared.dv = scratch.take<T>(p.dv_gradient ? saturating_count(keys, width(p.dv)) : 0);
    shared.dalibi = scratch.take<double>(p.dalibi ? each * p.group() : 0);
    shared.dsinks = scratch.take<double>(p.dsinks ? each * p.group() : 0);
    return shared;
  }
  static std::int64_t width(std::int64_t features) { return Scores<V>::width(features); }

  // ---- a task ----------------------------------------------------------------------------------

  void head(std::int64_t head, std::int64_t segment, std::byte* memory) noexcept {
    Scratch scratch(memory);
    const Shared shared = take_shared(p, scratch);
    const std::int64_t cuts = segments(p), place = head * cuts + segment;
    for (std::int64_t g = 0; g < p.group(); ++g) memory_.dalibi[g] = memory_.dsinks[g] = 0;
    memory_.dk.begin(cuts > 1 ? shared.dk + place * p.k_length * width(p.d) : nullptr);
    memory_.dv.begin(cuts > 1 ? shared.dv + place * p.k_length * width(p.dv) : nullptr);
    scores_.kv_head = head % p.kv_heads;
    const std::int64_t first = paged(p) ? 0 : head / p.kv_heads;
    for (std::int64_t b = first; b < (paged(p) ? p.batch : first + 1); ++b) {
      scores_.sequence = sequence_of(p, call_, b);
      query_rows(segment * segment_rows(p), (segment + 1) * segment_rows(p));
    }
    memory_.dk.end();
    memory_.dv.end();
    for (std::int64_t g = 0; g < p.group(); ++g) {
      if (p.dalibi) shared.dalibi[place * p.group() + g] = memory_.dalibi[g];
      if (p.dsinks) shared.dsinks[place * p.group() + g] = memory_.dsinks[g];
    }
  }

  void query_rows(std::int64_t from, std::int64_t to) noexcept {
    to = to < scores_.rows() ? to : scores_.rows();
    for (std::int64_t first = from, next; first < to || first == from; first = next) {
      group_.open(first);
      next = first + (group_.rows > 0 ? group_.rows : 1);
      const bool only = first == from && next >= to, last = next >= to;
      memory_.dk.open(first == from, only);
      memory_.dv.open(first == from, only);
      group_.weigh();
      clear(memory_.alibi_row, group_.rows);
      gradients();
      if (p.dalibi) sum_alibi_rows();
      if (p.dsinks) sum_sinks();
      memory_.dk.close(next - from, last);
      memory_.dv.close(next - from, last);
    }
  }

  // The three products of every chunk.
  void gradients() noexcept {
    bool started[kTiles] = {};
    const bool joined =
        group_.begin < group_.end && group_.begin / kChunk != (group_.end - 1) / kChunk;
    if (p.dq && joined)
      for (int t = 0; t < group_.used; ++t)
        clear(memory_.dq_sum[t], group_.tiles[t].rows * width(p.d));
    group_.for_gradients([&] {
      const bool hides = group_.hides();
      const bool careful = hides && !(memory_.dk.finite() && memory_.dv.finite());
      const bool careful_q = hides && p.dq && !keys_finite();
      group_.differentiate(careful || careful_q);
      if (p.dalibi && !p.bias_before_softcap) sum_alibi();
      if (p.softcap != 0) group_.through_softcap();
      if (p.dalibi && p.bias_before_softcap) sum_alibi();
      for (int t = 0; p.dq && t < group_.used; ++t) {
        if (!query_products(t, careful_q)) continue;
        started[t] = true;
        if (joined)
          add_wide<V>(memory_.dq[t], group_.tiles[t].rows * width(p.d), memory_.dq_sum[t]);
      }
      memory_.dv.add(group_.p, careful || careful_q);
      memory_.dk.add(group_.ds, careful || careful_q);
    });
    for (int t = 0; p.dq && t < group_.used; ++t) {
      if (!started[t] && !joined) clear(memory_.dq[t], group_.tiles[t].rows * width(p.d));
      store_queries(t, joined);
    }
  }

  // ---- dq --------------------------------------------------------------------------------------

  // dq[row][x] = sum over the chunk's keys of ds[j][row] * k[j][x]; false if the tile sees none.
  bool query_products(int t, bool careful) noexcept {
    const Rows& tile = group_.tiles[t];
    Runs& mine = group_.runs[1];
    const T* ds = group_.ds + group_.clip(tile, mine) * group_.stride + t * kMost;
    const Chunk<T>& chunk = group_.chunk;
    for (int r = 0; r < mine.runs && !careful; ++r) {
      const Run& run = mine.run[r];
      for (int x = 0; x < run.count; x += kSlice) {
        const Operands<T> operands{.a = ds + (run.at + x) * group_.stride,
                                   .a_stride = group_.stride,
                                   .b = chunk.k + (run.key + x - chunk.from) * chunk.k_stride,
                                   .b_stride = chunk.k_stride,
                                   .c = memory_.dq[t],
                                   .c_stride = width(p.d),
                                   .depth = run.count - x < kSlice ? run.count - x : kSlice};
        const std::int64_t vectors = width(p.d) / V::kLanes;
        if (r == 0 && x == 0) product_of_features<V, Start::zero>(operands, tile.rows, vectors);
        else product_of_features<V, Start::c>(operands, tile.rows, vectors);
      }
    }
    if (careful) careful_query_products(tile, mine, ds, memory_.dq[t]);
    return mine.count > 0;
  }

  // 0 * NaN is NaN: the same sums, in which hidden pairs take no part.
  void careful_query_products(const Rows& tile, const Runs& mine, const T* ds,
                              T* dq) const noexcept {
    const Chunk<T>& chunk = group_.chunk;
    for (int n = 0; n < tile.rows; ++n, dq += width(p.d)) {
      clear(dq, width(p.d));
      for (int r = 0; r < mine.runs; ++r) {
        for (int y = 0; y < mine.run[r].count; ++y) {
          const T* pair = ds + (mine.run[r].at + y) * group_.stride + n;
          if (group_.p[pair - group_.ds] == Group::kHidden) continue;
          const T* k = chunk.k + (mine.run[r].key + y - chunk.from) * chunk.k_stride;
          for (std::int64_t x = 0; x < width(p.d); x += V::kLanes)
            fma(V::set(*pair), V::load(k + x), V::load(dq + x)).store(dq + x);
        }
      }
    }
  }

  // 1 reversed: dq = scale * the sums.
  void store_queries(int t, bool joined) noexcept {
    const Rows& tile = group_.tiles[t];
    for (int n = 0; n < tile.rows; ++n) {
      const std::int64_t at = query_row(p, call_.dq, scores_.sequence, tile.h[n], tile.i[n]);
      const std::int64_t row = n * width(p.d);
      if (joined) store_scaled<V>(call_.dq, at, p.d, memory_.dq_sum[t] + row, p.scale);
      else store_scaled<V>(call_.dq, at, p.d, memory_.dq[t] + row, p.scale);
    }
  }

  bool keys_finite() const noexcept {
    const Chunk<T>& chunk = group_.chunk;
    V check = V::set(0);
    for (std::int64_t j = 0; j < chunk.to - chunk.from; ++j) {
      const T* k = chunk.k + j * chunk.k_stride;
      std::int64_t x = 0;
      for (; x + V::kLanes <= p.d; x += V::kLanes) check = fma(V::load(k + x), V::set(0), check);
      if (x < p.d) check = fma(V::load_first(k + x, p.d - x), V::set(0), check);
    }
    return all_finite(check);
  }

  // ---- dalibi and dsinks -----------------------------------------------------------------------

  // dalibi -= ds |i + offset - j|: each row's sum first.
  void sum_alibi() noexcept {
    for (int n = 0; n < group_.rows; ++n) {
      const Rows& tile = group_.tiles[n / kMost];
      const std::int64_t position = tile.i[n % kMost] + scores_.sequence.offset;
      for (int r = 0; r < group_.runs->runs; ++r) {
        const Run& run = group_.runs->run[r];
        const T* ds = group_.ds + run.at * group_.stride + n;
        for (int y = 0; y < run.count; ++y) {
          const std::int64_t distance = position - run.key - y;
          memory_.alibi_row[n] -= static_cast<double>(ds[y * group_.stride]) *
                                  static_cast<double>(distance < 0 ? -distance : distance);
        }
      }
    }
  }

  // Then the rows', in ascending order.
  void sum_alibi_rows() noexcept {
    for (int n = 0; n < group_.rows; ++n) {
      const std::int64_t h = group_.tiles[n / kMost].h[n % kMost];
      memory_.dalibi[h - scores_.kv_head * p.group()] += memory_.alibi_row[n];
    }
  }

  // dsink += exp(sink - lse) (dlse - delta).
  void sum_sinks() noexcept {
    for (int t = 0; t < group_.used; ++t) {
      const Rows& tile = group_.tiles[t];
      for (int n = 0; n < tile.rows; ++n) {
        const double sink = load(call_.sinks, call_.sinks.offset(0, tile.h[n], 0));
        if (sink == kMinusInfinity) continue;
        memory_.dsinks[tile.h[n] - scores_.kv_head * p.group()] -=
            exp_of_difference(sink, tile.m[n]) / tile.l[n] * tile.delta[n];
      }
    }
  }

  // ---- stage 1: what segments and batch elements left, in ascending order ----------------------

  static void finish(const Problem& p, const Call& call, const Task& task) noexcept {
    Scratch scratch(task.shared);
    const Shared shared = take_shared(p, scratch);
    const std::int64_t cuts = segments(p), joins = cuts > 1 ? key_heads(p) * kJoins : 0;
    if (task.index < joins) {
      const std::int64_t head = task.index / kJoins, part = task.index % kJoins;
      const Sequence sequence = sequence_of(p, call, head / p.kv_heads);
      const std::int64_t from = sequence.k_stored * part / kJoins;
      const std::int64_t to = sequence.k_stored * (part + 1) / kJoins;
      Scratch row(task.scratch);
      double* total = row.take<double>(p.d > p.dv ? p.d : p.dv);
      const auto join = [&](const Strided& t, const T* sums, std::int64_t count, double scale) {
        const std::int64_t size = p.k_length * width(count);
        for (std::int64_t j = from; j < to; ++j) {
          clear(total, count);
          for (std::int64_t s = 0; s < cuts; ++s)
            add_wide<V>(sums + (head * cuts + s) * size + j * width(count), count, total);
          store_scaled<V>(t, key_row(p, call, t, sequence, head % p.kv_heads, j), count, total,
                          scale);
        }
      };
      if (p.dk) join(call.dk, shared.dk, p.d, p.scale);
      if (p.dv_gradient) join(call.dv, shared.dv, p.dv, 1);
      return;
    }
    const std::int64_t h = task.index - joins;
    const auto sum = [&](const Strided& t, const double* sums) {
      double total = 0;
      for (std::int64_t head = h / p.group(); head < key_heads(p); head += p.kv_heads)
        for (std::int64_t s = 0; s < cuts; ++s)
          total += sums[(head * cuts + s) * p.group() + h % p.group()];
      store(t, t.offset(0, h, 0), total);
    };
    if (p.dalibi) sum(call.dalibi, shared.dalibi);
    if (p.dsinks) sum(call.dsinks, shared.dsinks);
  }

  const Problem& p;
  const Call& call_;
  Scores<V>& scores_;
  Group& group_;
  Memory& memory_;
};

}  // namespace
}  // namespace attend
