// Attention backward, fused: five products, O(length) memory, the same bits on any number of
// threads.
//
// A task owns a key head (or a segment of its query rows, see segments()) and goes through the rows
// group by group. For each group score_gradients.h leaves P and dS in two strips, and three
// products are left, chunk by chunk of 256 keys, all of them product.h:
//
//            rows of the group                      dQ^T [d][rows]  += K^T dS^T      tile by tile
//          +-------------------+                    dV [keys][dv]   += P^T dO        whole group
//    chunk |   P^T   and dS^T  |                    dK [keys][d]    += dS^T Q        whole group
//   of 256 |                   |
//    keys  +-------------------+                    q and dout also lie packed
//    [panel][row][vectors]
//
// Sums: dq of a chunk in f32, chunks in f64, ascending. dk and dv: a group of rows in one chain,
// 1024 rows' groups added in f32, those sums in f64: the error of a sum of 64 + 16 is less than
// that of one chain of 256. Registers as in product.h. What limits it is the multiplier: 5 products
// of 2 d flop a pair, beside some 25 instructions a vector of pairs for softmax and dS; from T =
// 2048 on also the caches, since K, V, dK and dV pass by once a group. It declines nothing but the
// machine. `attend bench --suite backward --threads 1` on a core with neighbours (AVX-512 Xeon,
// 2026-11-15, five products counted, 2048 keys): 49 % of the peak at d = 64, 56 % at d = 128,
// causal.
//
// dalibi and dsinks are summed on the way. dbias, which is of any broadcast shape, has tasks of its
// own (bias_gradient.h).
#pragma once

#include "cpu/bias_gradient.h"

namespace attend {
namespace {

template <class V>
class FlashBackward {
  using T = typename V::T;
  using D = typename V::Double;
  using Group = ScoreGradients<V>;
  using Rows = typename Group::Rows;
  static constexpr int kMost = Group::kMost, kTiles = Group::kTiles;
  static constexpr int kPanel = kTileVectors * V::kLanes;
  static constexpr int kSlice = 64;    // keys whose rows stay in the nearest cache
  static constexpr int kStep = 48;     // keys that are tested together for the tiles that see them
  static constexpr int kFlush = 1024;  // rows whose sums are f32

  // A group's sums are added to those of the rows before.
  struct Add {
    template <int kRows, int kVectors>
    ATTEND_INLINE void operator()(const Operands<T>& x, V (&sum)[kRows][kVectors]) const {
      unrolled<kRows>(ATTEND_EACH(r) {
        unrolled<kVectors>(ATTEND_EACH(n) {
          T* to = x.c + r * x.c_stride + n * V::kLanes;
          (V::load(to) + sum[r][n]).store(to);
        });
      });
    }
  };

  // A tensor of keys whose gradient is wanted: f32 sums of up to kFlush rows, and f64 sums of
  // those. Rows of f32 sums are whole vectors. Where they would be much longer than the features,
  // only the keys of one chunk have them, and each group of rows joins the f64 sums at once.
  struct KeySums {
    std::int64_t count = 0, width = 0;  // features, and as whole vectors
    T* panels = nullptr;                // [panel][group rows][kPanel]  q or dout
    bool finite = true;                 // these
    T* part = nullptr;                  // [keys][width]
    double* total = nullptr;            // [stored keys][count]
    void take(std::int64_t features, const Problem& p, Scratch& scratch) {
      count = features;
      width = whole(features);
      const std::int64_t wide = (features + kPanel - 1) / kPanel * kPanel;
      panels = scratch.take<T>(wide * Group::kRows);
      part = scratch.take<T>(saturating_count(narrow(p) ? kChunk : p.k_length, width));
    }
  };

  struct Memory {
    KeySums dk, dv;
    T* row;                   // [d or dv], a row that does not lie ready
    T* dq[kTiles];            // [d][lanes]  of the chunk at hand
    double* dq_sum[kTiles];   // [d][lanes]
    double *dalibi, *dsinks;  // [heads of the group]
    double alibi_row[Group::kRows];
    Memory(const Problem& p, Scratch& scratch) {
      if (p.dk) dk.take(p.d, p, scratch);
      if (p.dv_gradient) dv.take(p.dv, p, scratch);
      if (segments(p) == 1 && needs_totals(p)) {
        if (p.dk) dk.total = scratch.take<double>(saturating_count(stored_keys(p), p.d));
        if (p.dv_gradient) dv.total = scratch.take<double>(saturating_count(stored_keys(p), p.dv));
      }
      row = scratch.take<T>(whole(p.d > p.dv ? p.d : p.dv));
      for (int t = 0; t < kTiles; ++t) {
        dq[t] = scratch.take<T>(p.dq ? p.d * kMost : 0);
        dq_sum[t] = scratch.take<double>(p.dq && p.k_length > kChunk ? p.d * kMost : 0);
      }
      dalibi = scratch.take<double>(p.group());
      dsinks = scratch.take<double>(p.group());
    }
  };

 public:
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
    if (key_heads(p) > 0) Memory(p, scratch);
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
    Memory memory(p, scratch);
    FlashBackward f{p, call, scores, group, memory};
    const std::int64_t index = own - 1 - task.index;  // causal: the last rows see the most keys
    f.head(index / cuts, index % cuts, task.shared);
  }

 private:
  FlashBackward(const Problem& problem, const Call& call, Scores<V>& scores, Group& group,
                Memory& memory)
      : p(problem), call_(call), scores_(scores), group_(group), memory_(memory) {}

  static constexpr std::int64_t whole(std::int64_t count) {
    return (count + V::kLanes - 1) / V::kLanes * V::kLanes;
  }

  // Keys on pages may be shared by several sequences: there one task takes a key head of the whole
  // batch.
  static bool paged(const Problem& p) { return p.keys == KeyAddressing::paged; }
  static std::int64_t key_heads(const Problem& p) {
    if (!p.dq && !p.dk && !p.dv_gradient && !p.dalibi && !p.dsinks) return 0;
    return paged(p) ? p.kv_heads : p.batch * p.kv_heads;
  }
  static std::int64_t stored_keys(const Problem& p) {
    return paged(p) ? saturating_count(p.pages, p.page_size) : p.k_length;
  }
  static bool needs_totals(const Problem& p) {
    return paged(p) || narrow(p) || p.group() * p.q_length > kFlush;
  }
  static bool narrow(const Problem& p) { return whole(p.d) + whole(p.dv) > 2 * (p.d + p.dv); }

  // Into how many segments the rows of a key head are cut, where heads alone would leave processors
  // idle. By the shape alone. Every segment has its own sums of dk and dv, so narrow heads, whose
  // strips are large beside them, stay whole.
  static std::int64_t segments(const Problem& p) {
    constexpr std::int64_t kTasks = 8, kRowsAtLeast = 1024, kNarrow = 32;
    const std::int64_t heads = key_heads(p), rows = p.group() * p.q_length;
    if (heads == 0 || heads >= kTasks || paged(p) || p.d + p.dv < kNarrow) return 1;
    const std::int64_t most = rows / kRowsAtLeast, wanted = (kTasks + heads - 1) / heads;
    return most < 1 ? 1 : most < wanted ? most : wanted;
  }
  static std::int64_t segment_rows(const Problem& p) {
    constexpr std::int64_t kUnit = Group::kRows;
    const std::int64_t blocks = (p.group() * p.q_length + kUnit - 1) / kUnit, cuts = segments(p);
    return (blocks + cuts - 1) / cuts * kUnit;
  }
  static constexpr std::int64_t kJoins = 4;  // tasks of a key head that join its segments

  // What stage 0 leaves to stage 1.
  struct Shared {
    double *dk, *dv;          // [key heads][segments][keys][count], where there are segments
    double *dalibi, *dsinks;  // [key heads][segments][group]
  };
  static Shared take_shared(const Problem& p, Scratch& scratch) {
    const std::int64_t each = key_heads(p) * segments(p);
    const std::int64_t keys = segments(p) > 1 ? saturating_count(each, p.k_length) : 0;
    Shared shared;
    shared.dk = scratch.take<double>(p.dk ? saturating_count(keys, p.d) : 0);
    shared.dv = scratch.take<double>(p.dv_gradient ? saturating_count(keys, p.dv) : 0);
    shared.dalibi = scratch.take<double>(p.dalibi ? each * p.group() : 0);
    shared.dsinks = scratch.take<double>(p.dsinks ? each * p.group() : 0);
    return shared;
  }

  // ---- a task ----------------------------------------------------------------------------------

  void head(std::int64_t head, std::int64_t segment, std::byte* memory) noexcept {
    Scratch scratch(memory);
    const Shared shared = take_shared(p, scratch);
    const std::int64_t cuts = segments(p), place = head * cuts + segment;
    KeySums &dk = memory_.dk, &dv = memory_.dv;
    if (cuts > 1) {
      if (p.dk) dk.total = shared.dk + place * p.k_length * p.d;
      if (p.dv_gradient) dv.total = shared.dv + place * p.k_length * p.dv;
    }
    for (std::int64_t g = 0; g < p.group(); ++g) memory_.dalibi[g] = memory_.dsinks[g] = 0;
    // The sums of one sequence's rows are stored as they are, or added to those flushed before.
    const bool single = cuts == 1 && !paged(p) && !narrow(p);
    flushed_ = !single;
    if (!single) {
      if (p.dk) clear(dk.total, stored_keys(p) * p.d);
      if (p.dv_gradient) clear(dv.total, stored_keys(p) * p.dv);
    }
    scores_.kv_head = head % p.kv_heads;
    const std::int64_t first = paged(p) ? 0 : head / p.kv_heads;
    for (std::int64_t b = first; b < (paged(p) ? p.batch : first + 1); ++b) {
      scores_.sequence = sequence_of(p, call_, b);
      const std::int64_t keys = narrow(p) ? kChunk : scores_.sequence.k_stored;
      if (p.dk) clear(dk.part, keys * dk.width);
      if (p.dv_gradient) clear(dv.part, keys * dv.width);
      query_rows(segment * segment_rows(p), (segment + 1) * segment_rows(p), single);
    }
    if (cuts == 1) {
      if (p.dk) store_keys(dk, call_.dk, p.scale, single);
      if (p.dv_gradient) store_keys(dv, call_.dv, 1, single);
    }
    for (std::int64_t g = 0; g < p.group(); ++g) {
      if (p.dalibi) shared.dalibi[place * p.group() + g] = memory_.dalibi[g];
      if (p.dsinks) shared.dsinks[place * p.group() + g] = memory_.dsinks[g];
    }
  }

  template <class Number>
  static void clear(Number* from, std::int64_t count) noexcept {
    for (std::int64_t x = 0; x < count; ++x) from[x] = 0;
  }

  void query_rows(std::int64_t from, std::int64_t to, bool single) noexcept {
    to = to < scores_.rows() ? to : scores_.rows();
    for (std::int64_t first = from; first < to;) {
      group_.open(first);
      if (p.dk) pack(memory_.dk, call_.q);
      if (p.dv_gradient) pack(memory_.dv, call_.dout);
      group_.weigh();
      clear(memory_.alibi_row, group_.rows);
      gradients();
      if (p.dalibi) sum_alibi_rows();
      if (p.dsinks) sum_sinks();
      first += group_.rows;
      if (!narrow(p) && (first >= to ? !single : (first - from) % kFlush == 0))
        flush(0, scores_.sequence.k_stored);
    }
  }

  // The three products of every chunk.
  void gradients() noexcept {
    bool started[kTiles] = {};
    const bool joined =
        group_.begin < group_.end && group_.begin / kChunk != (group_.end - 1) / kChunk;
    if (p.dq && joined)
      for (int t = 0; t < group_.used; ++t) clear(memory_.dq_sum[t], p.d * group_.tiles[t].lanes);
    group_.for_gradients([&] {
      const bool hides = group_.hides();
      const bool careful = hides && !(memory_.dk.finite && memory_.dv.finite);
      const bool careful_q = hides && p.dq && !keys_finite();
      group_.differentiate(careful || careful_q);
      if (p.dalibi && !p.bias_before_softcap) sum_alibi();
      if (p.softcap != 0) group_.through_softcap();
      if (p.dalibi && p.bias_before_softcap) sum_alibi();
      for (int t = 0; p.dq && t < group_.used; ++t) {
        if (!query_products(t, careful_q)) continue;
        started[t] = true;
        if (joined) join(t);
      }
      if (careful || careful_q) {
        if (p.dv_gradient) careful_key_products(memory_.dv, group_.p);
        if (p.dk) careful_key_products(memory_.dk, group_.ds);
      } else {
        if (p.dv_gradient) key_products(memory_.dv, group_.p);
        if (p.dk) key_products(memory_.dk, group_.ds);
      }
      if (narrow(p)) flush(group_.chunk.from, group_.chunk.to);
    });
    for (int t = 0; p.dq && t < group_.used; ++t) {
      if (!started[t] && !joined) clear(memory_.dq[t], p.d * group_.tiles[t].lanes);
      store_queries(t, joined);
    }
  }

  // ---- dq --------------------------------------------------------------------------------------

  // dq[x][lane] = sum over the chunk's keys of k[j][x] * ds[j][lane]; false if the tile sees none.
  bool query_products(int t, bool careful) noexcept {
    const Rows& tile = group_.tiles[t];
    Runs& mine = group_.runs[1];
    const int first = group_.clip(tile, mine);
    if (mine.count == 0) return false;
    const std::int64_t at = first * group_.stride + t * kMost;
    if (careful) careful_query_products(tile, mine, at, memory_.dq[t]);
    else if (tile.lanes == V::kLanes) query_products<1>(mine, group_.ds + at, memory_.dq[t]);
    else query_products<kTileVectors>(mine, group_.ds + at, memory_.dq[t]);
    return true;
  }

  template <int kVectors>
  void query_products(const Runs& mine, const T* ds, T* dq) const noexcept {
    const Chunk<T>& chunk = group_.chunk;
    for (int r = 0; r < mine.runs; ++r) {
      const Run& run = mine.run[r];
      for (int x = 0; x < run.count; x += kSlice) {
        const Operands<T> operands{.a = chunk.k + (run.key + x - chunk.from) * chunk.k_stride,
                                   .a_stride = chunk.k_stride,
                                   .b = ds + (run.at + x) * group_.stride,
                                   .b_stride = group_.stride,
                                   .c = dq,
                                   .c_stride = kVectors * V::kLanes,
                                   .depth = run.count - x < kSlice ? run.count - x : kSlice};
        if (r == 0 && x == 0) product<V, kVectors, Layout::across, Start::zero>(operands, p.d);
        else product<V, kVectors, Layout::across, Start::c>(operands, p.d);
      }
    }
  }

  // 0 * NaN is NaN: the same sums, in which hidden pairs take no part.
  void careful_query_products(const Rows& tile, const Runs& mine, std::int64_t at,
                              T* dq) const noexcept {
    const Chunk<T>& chunk = group_.chunk;
    const V least = V::set(std::numeric_limits<T>::lowest());
    for (std::int64_t x = 0; x < p.d; ++x) {
      for (int n = 0; n < tile.lanes; n += V::kLanes) {
        V sum = V::set(0);
        for (int r = 0; r < mine.runs; ++r) {
          for (int y = 0; y < mine.run[r].count; ++y) {
            const std::int64_t pair = at + (mine.run[r].at + y) * group_.stride + n;
            const V k = V::set(chunk.k[(mine.run[r].key + y - chunk.from) * chunk.k_stride + x]);
            sum = select(less(V::load(group_.p + pair), least), sum,
                         fma(k, V::load(group_.ds + pair), sum));
          }
        }
        sum.store(dq + x * tile.lanes + n);
      }
    }
  }

  void join(int t) noexcept {
    const std::int64_t count = p.d * group_.tiles[t].lanes;
    const T* part = memory_.dq[t];
    double* total = memory_.dq_sum[t];
    for (std::int64_t x = 0; x < count; x += V::kLanes) {
      const V v = V::load(part + x);
      unrolled<V::kDoubles>(ATTEND_EACH(k) {
        double* sum = total + x + k * D::kLanes;
        (D::load(sum) + wide<k>(v)).store(sum);
      });
    }
  }

  // 1 reversed: dq = scale * the sums.
  void store_queries(int t, bool joined) noexcept {
    const Rows& tile = group_.tiles[t];
    const bool ready = lies_ready<T>(call_.dq);
    T* part = memory_.dq[t];
    const double* total = memory_.dq_sum[t];
    const auto at = [&](int n) {
      return query_row(p, call_.dq, scores_.sequence, tile.h[n], tile.i[n]);
    };
    if (ready) {
      const D scale = D::set(p.scale);
      for (std::int64_t x = 0; x < p.d * tile.lanes; x += V::kLanes) {
        D sum[V::kDoubles];
        unrolled<V::kDoubles>(ATTEND_EACH(k) {
          sum[k] =
              scale * (joined ? D::load(total + x + k * D::kLanes) : wide<k>(V::load(part + x)));
        });
        V::narrowed(sum).store(part + x);
      }
      T* rows[kMost];
      for (int n = 0; n < tile.rows; ++n) rows[n] = reinterpret_cast<T*>(call_.dq.data) + at(n);
      lanes_to_rows<V>(part, tile.lanes, tile.rows, p.d, rows);
      return;
    }
    with_type(call_.dq.type, [&]<class E>(E) {
      for (int n = 0; n < tile.rows; ++n) {
        E* to = reinterpret_cast<E*>(call_.dq.data) + at(n);
        for (std::int64_t x = 0; x < p.d; ++x) {
          const std::int64_t from = x * tile.lanes + n;
          const double sum = joined ? total[from] : static_cast<double>(part[from]);
          to[x * call_.dq.stride[3]] = static_cast<E>(p.scale * sum);
        }
      }
    });
  }

  // ---- dk and dv -------------------------------------------------------------------------------

  // The group's rows of q or dout, [panel][row][kPanel], 0 behind the last feature.
  void pack(KeySums& sums, const Strided& from) noexcept {
    const bool ready = lies_ready<T>(from);
    V check = V::set(0);  // becomes NaN if anything is not finite
    int r = 0;
    for (int t = 0; t < group_.used; ++t) {
      const Rows& tile = group_.tiles[t];
      for (int n = 0; n < tile.rows; ++n, ++r) {
        const std::int64_t at = query_row(p, from, scores_.sequence, tile.h[n], tile.i[n]);
        const T* row = memory_.row;
        if (ready) row = reinterpret_cast<const T*>(from.data) + at;
        else convert_row(from, at, sums.count, memory_.row);
        for (std::int64_t x = 0; x < sums.count; x += V::kLanes) {
          const V v = sums.count - x >= V::kLanes ? V::load(row + x)
                                                  : V::load_first(row + x, sums.count - x);
          check = fma(v, V::set(0), check);
          v.store(sums.panels + x / kPanel * (Group::kRows * kPanel) + r * kPanel + x % kPanel);
        }
      }
    }
    sums.finite = all_finite(check);
  }

  // part[j][x] += sum over the group's rows of pairs[j][row] * panels[row][x], pairs = P or dS.
  void key_products(const KeySums& sums, const T* pairs) const noexcept {
    for (std::int64_t x = 0; x < sums.width; x += kPanel) {
      for (int r = 0; r < group_.runs->runs; ++r) {
        const Run& run = group_.runs->run[r];
        for (int y = 0; y < run.count; y += kStep) {
          const int count = run.count - y < kStep ? run.count - y : kStep;
          int from = 0, to = group_.used;  // tiles that may see these keys
          while (from < to && !sees(from, run.key + y, count)) ++from;
          while (from < to && !sees(to - 1, run.key + y, count)) --to;
          if (from == to) continue;
          const int rows = (to * kMost < group_.rows ? to * kMost : group_.rows) - from * kMost;
          const Operands<T> operands{.a = pairs + (run.at + y) * group_.stride + from * kMost,
                                     .a_stride = group_.stride,
                                     .b = sums.panels + x * Group::kRows + from * kMost * kPanel,
                                     .b_stride = kPanel,
                                     .c = part_of(sums, run.key + y) + x,
                                     .c_stride = sums.width,
                                     .depth = rows};
          if (sums.width - x <= V::kLanes)
            product<V, 1, Layout::streamed, Start::zero>(operands, count, Add{});
          else product<V, kTileVectors, Layout::streamed, Start::zero>(operands, count, Add{});
        }
      }
    }
  }

  T* part_of(const KeySums& sums, std::int64_t j) const noexcept {
    return sums.part + (narrow(p) ? j - group_.chunk.from : j) * sums.width;
  }

  bool sees(int t, std::int64_t key, int count) const noexcept {
    return group_.tiles[t].begin < key + count && group_.tiles[t].end > key;
  }

  // The same sums, in which hidden pairs take no part.
  void careful_key_products(const KeySums& sums, const T* pairs) const noexcept {
    for (int r = 0; r < group_.runs->runs; ++r) {
      const Run& run = group_.runs->run[r];
      for (int y = 0; y < run.count; ++y) {
        const std::int64_t pair = (run.at + y) * group_.stride;
        for (std::int64_t x = 0; x < sums.width; x += V::kLanes) {
          const T* panel = sums.panels + x / kPanel * (Group::kRows * kPanel) + x % kPanel;
          V sum = V::set(0);
          for (int n = 0; n < group_.rows; ++n)
            if (group_.p[pair + n] != Group::kHidden)
              sum = fma(V::set(pairs[pair + n]), V::load(panel + n * kPanel), sum);
          T* to = part_of(sums, run.key + y) + x;
          (V::load(to) + sum).store(to);
        }
      }
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

  // The f32 sums of the keys [from, to) join the f64 sums.
  void flush(std::int64_t from, std::int64_t to) noexcept {
    for (const KeySums* sums : {&memory_.dk, &memory_.dv}) {
      for (std::int64_t j = from; sums->part != nullptr && j < to; ++j) {
        T* part = sums->part + (narrow(p) ? j - from : j) * sums->width;
        double* total = sums->total + stored_key(j) * sums->count;
        for (std::int64_t x = 0; x < sums->count; ++x) {
          total[x] = (flushed_ ? total[x] : 0) + static_cast<double>(part[x]);
          part[x] = 0;
        }
      }
    }
    flushed_ = true;
  }

  std::int64_t stored_key(std::int64_t j) const noexcept {
    if (!paged(p)) return j;
    return page_of(p, call_, scores_.sequence, j) * p.page_size + j % p.page_size;
  }

  void store_keys(const KeySums& sums, const Strided& to, double scale, bool single) noexcept {
    const std::int64_t keys = paged(p) ? stored_keys(p) : scores_.sequence.k_stored;
    for (std::int64_t j = 0; j < keys; ++j) {
      const std::int64_t at = paged(p)
                                  ? to.offset(j / p.page_size, scores_.kv_head, j % p.page_size)
                                  : key_row(p, call_, to, scores_.sequence, scores_.kv_head, j);
      const T* part = sums.part + j * sums.width;
      double* total = sums.total + j * sums.count;
      if (single && !flushed_) {
        store_scaled(to, at, sums.count, part, scale);
        continue;
      }
      for (std::int64_t x = 0; single && x < sums.count; ++x)
        total[x] += static_cast<double>(part[x]);
      store_scaled(to, at, sums.count, total, scale);
    }
  }

  template <class From>
  static void store_scaled(const Strided& t, std::int64_t offset, std::int64_t count,
                           const From* row, double scale) noexcept {
    std::int64_t done = 0;
    if (lies_ready<T>(t)) {
      T* to = reinterpret_cast<T*>(t.data) + offset;
      const D factor = D::set(scale);
      for (; done + V::kLanes <= count; done += V::kLanes) {
        D sum[V::kDoubles];
        unrolled<V::kDoubles>(ATTEND_EACH(k) {
          if constexpr (std::is_same_v<From, double>)
            sum[k] = factor * D::load(row + done + k * D::kLanes);
          else sum[k] = factor * wide<k>(V::load(row + done));
        });
        V::narrowed(sum).store(to + done);
      }
    }
    with_type(t.type, [&]<class E>(E) {
      E* to = reinterpret_cast<E*>(t.data) + offset;
      for (std::int64_t x = done; x < count; ++x)
        to[x * t.stride[3]] = static_cast<E>(scale * static_cast<double>(row[x]));
    });
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
      const auto join = [&](const Strided& t, double* sums, std::int64_t count, double scale) {
        const std::int64_t size = p.k_length * count;
        double* total = sums + head * cuts * size;
        for (std::int64_t j = from; j < to; ++j) {
          for (std::int64_t s = 1; s < cuts; ++s)
            for (std::int64_t x = j * count; x < (j + 1) * count; ++x)
              total[x] += total[s * size + x];
          store_scaled(t, key_row(p, call, t, sequence, head % p.kv_heads, j), count,
                       total + j * count, scale);
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
  bool flushed_ = false;  // the f64 sums have begun
};

// The row of the kernel table, for vectors of float (also for 16-bit tensors) and of double.
template <class Float, class Double>
constexpr Kernel backward_row(std::string_view name, decltype(Kernel::declines) declines) {
  return {
      .name = name,
      .operation = Operation::backward,
      .only_if_forced = false,
      .stages = 2,
      .declines = declines,
      .tiles =
          [](const Problem& p, const Machine& m) {
            return p.type == DType::f64 ? FlashBackward<Double>::tiles(p, m)
                                        : FlashBackward<Float>::tiles(p, m);
          },
      .tasks =
          [](const Problem& p, const Tiles& t, int stage) {
            return p.type == DType::f64 ? FlashBackward<Double>::tasks(p, t, stage)
                                        : FlashBackward<Float>::tasks(p, t, stage);
          },
      .workspace =
          [](const Problem& p, const Tiles& t) {
            return p.type == DType::f64 ? FlashBackward<Double>::workspace(p, t)
                                        : FlashBackward<Float>::workspace(p, t);
          },
      .run =
          [](const Problem& p, const Tiles& t, const Call& call, const Task& task) noexcept {
            p.type == DType::f64 ? FlashBackward<Double>::run(p, t, call, task)
                                 : FlashBackward<Float>::run(p, t, call, task);
          },
  };
}

}  // namespace
}  // namespace attend
