// The sums of a tile of queries: chunk joined to chunk, and what becomes of them.
//
//   a chunk gives      top, sum, O        its maximum, sum of weights and values, in T
//   join               top, l, o          in f64, as softmax_state.h counts: in units of 2^m, m an
//                                         integer; added in order, scaled by exact powers of two
//   close              out = o / l, lse; or all of it as a partial state, which a later call opens
//                      with (core/partial_state.h)
//
// A row that has seen one chunk alone keeps that chunk's sums as they are, and is divided in T.
// Where a whole tile sees one chunk, its products may store the results themselves (Place), to the
// same bits.
#pragma once

#include "core/partial_state.h"
#include "cpu/scores.h"

#include <atomic>

namespace attend {
namespace {

// Where the sums of a chunk go: rows of `chunk_sums` or, where it is the only one, the results.
template <class T>
struct Place {
  T* o;
  std::int64_t stride;
  bool final;
};

template <class V>
struct Sums : Tile<V> {
  using T = typename V::T;
  static constexpr int kRoom = Tile<V>::kRoom;
  double top[kRoom], l[kRoom];
  double up[kRoom];  // see join()
  bool one[kRoom];   // the row has seen one chunk
  bool sink[kRoom];  // the row's sink has been counted
  double* o;         // [rows][width]  joined chunks, in the unit of l
  bool joined;       // else all there is are the sums of one chunk, in `chunk_sums`
  T* chunk_sums;     // [rows][width]  the chunk at hand
  Place<T> to;       // where its sums go
};

// What is subtracted from scores: their maximum or, where nothing is visible, any number.
template <class V>
V base_of(const SumOf<V>* top) noexcept {
  const V most = V::load(top);
  return select(less(most, V::set(std::numeric_limits<SumOf<V>>::lowest())), V::set(0), most);
}

// Whether a row of results is.
template <class V>
bool is_finite(const SumOf<V>* o, std::int64_t width) noexcept {
  V differences = V::set(0);  // of numbers to themselves: 0, or NaN
  for (std::int64_t x = 0; x < width; x += V::kLanes) {
    const V sum = V::load(o + x);
    differences = differences + (sum - sum);
  }
  return all_finite(differences);
}

template <class V>
class Results {
  using T = typename V::T;
  static constexpr int kMost = Tile<V>::kMost, kRoom = Tile<V>::kRoom;
  static constexpr StateKind kChunkOfT =
      sizeof(T) == sizeof(double) ? StateKind::chunk_f64 : StateKind::chunk_f32;

 public:
  explicit Results(ForwardScores<V>& scores) : p(scores.p), call_(scores.call), scores_(scores) {}

  static std::int64_t width(const ForwardProblem& p) { return ForwardScores<V>::width(p.dv); }

  // The rows from `first` on: nothing summed yet, or what the partial states hold.
  void open(Sums<V>& tile, std::int64_t first, int most) noexcept {
    scores_.open(tile, first, most);
    for (int n = 0; n < tile.lanes; ++n) {
      tile.top[n] = kMinusInfinity, tile.l[n] = 0, tile.up[n] = 1;
      tile.one[n] = true;
    }
    tile.joined = false;
    tile.to = {tile.chunk_sums, width(p), false};
    if (p.sinks || p.state || p.parts != 0 || tile.begin >= tile.end ||
        tile.begin / kChunk != (tile.end - 1) / kChunk)
      expect_chunks(tile);
    if (p.state || p.parts != 0) resume(tile);
    if (p.sinks) {  // a key that everybody sees, without value
      for (int n = 0; n < tile.rows; ++n) {
        if (p.state && tile.sink[n]) continue;
        tile.sink[n] = true;
        const double sink = load(call_.sinks, call_.sinks.offset(0, tile.h[n], 0));
        if (sink == kMinusInfinity) continue;
        SoftmaxState state;
        state.add(sink);
        tile.top[n] = state.top;
        tile.l[n] = state.l;
        tile.one[n] = false;
      }
    }
    if (kMatrix<V> || tile.joined || p.group() != 1 || !is_contiguous_row<T>(call_.out) ||
        width(p) != p.dv)
      return;
    tile.to = {reinterpret_cast<T*>(call_.out.data) + at(call_.out, tile, 0), call_.out.stride[2],
               true};
  }

  // Several of them, or some that were computed elsewhere.
  void expect_chunks(Sums<V>& tile) const noexcept {
    tile.joined = true;
    tile.to = {tile.chunk_sums, width(p), false};
    clear(tile.o, tile.rows * width(p));
  }

  // Adds a chunk to what was there. As long as a row has seen one chunk alone, its sums stay as
  // they are, times `up`; with a second one both are brought to the unit of the larger score:
  //   e^top = 2^(m - rest), up = 2^-rest; far from 0 the unit is e^top, up = 1.
  void join(Sums<V>& tile, const T* top, const T* sum, const T* o) const noexcept {
    using D = typename V::Double;
    double up[kRoom], mine[kRoom], other[kRoom];
    if (!tile.joined && !p.lse && !p.weights) {  // nobody asks for the maximum
      for (int n = 0; n < tile.rows; ++n) tile.l[n] = static_cast<double>(sum[n]);
      return;
    }
    for (int n = 0; n < tile.lanes; n += V::kLanes) {
      unrolled<V::kDoubles>(ATTEND_EACH(k) {
        exp2_of(rest_of(wide<k>(V::load(top + n)))).store(up + n + k * D::kLanes);
      });
    }
    for (int n = 0; n < tile.rows; ++n) {
      const auto chunk_sum = static_cast<double>(sum[n]);
      if (chunk_sum == 0) continue;  // nothing of the chunk is visible
      const auto highest = static_cast<double>(top[n]);
      add_sum(tile, n, {highest, chunk_sum, is_far(highest) ? 1 : up[n]}, mine[n], other[n]);
    }
    if (!tile.joined) return;
    ATTEND_PATH(V, "chunks joined");
    double* total = tile.o;
    for (int n = 0; n < tile.rows; ++n, o += width(p), total += width(p)) {
      if (sum[n] == 0) continue;
      if constexpr (kMatrix<V>)
        if (n % 4 == 0) Matrix<V>::keep_awake();
      const D a = D::set(mine[n]), b = D::set(other[n]);
      const bool as_is = mine[n] == 1;  // the maximum has not changed
      for (std::int64_t x = 0; x < width(p); x += V::kLanes) {
        const V chunk = V::load(o + x);
        unrolled<V::kDoubles>(ATTEND_EACH(k) {
          double* to = total + x + k * D::kLanes;
          const D before = D::load(to);
          fma(wide<k>(chunk), b, as_is ? before : before * a).store(to);
        });
      }
    }
  }

  // out = o / l, and lse. What one chunk gave is divided in T: its sums may have gone to
  // the results already, and a row's bits do not depend on that.
  void close(Sums<V>& tile) noexcept {
    if (p.state) return close_states(tile);
    const bool ready = is_contiguous_row<T>(call_.out);
    const bool together = !tile.joined && call_.out.stride[3] == 1 &&
                          (call_.out.type == DType::bf16 || call_.out.type == DType::f16);
    for (int n = 0; n < tile.rows; ++n)
      if (tile.l[n] == 0)  // the row saw nothing: neither did `to`, which holds garbage then
        clear(tile.to.o + n * tile.to.stride, width(p));
    if (together) divide_rows_out(tile);
    for (int n = 0; n < tile.rows; ++n) {
      if (!tile.to.final && ready && !together) close_row(tile, n);
      if (!tile.to.final && !ready && !together) convert_row_out(tile, n);
      tile.l[n] *= tile.up[n];
      if (p.lse)
        store(call_.lse, at(call_.lse, tile, n), SoftmaxState{tile.top[n], tile.l[n]}.lse());
      if (p.visited_blocks) count_blocks(tile, n);
    }
  }

 private:
  // Adds the sum of other keys to row n's; what o was is to be multiplied by `mine`, theirs by
  // `other`.
  static void add_sum(Sums<V>& tile, int n, const StateRow& part, double& mine,
                      double& other) noexcept {
    if (tile.l[n] == 0) {
      mine = 0, other = 1;
      tile.l[n] = part.l, tile.top[n] = part.top, tile.up[n] = part.scale;
      return;
    }
    mine = tile.up[n], other = part.scale;
    if (part.top > tile.top[n]) {
      mine *= rescale_factor(tile.top[n], part.top);
      tile.top[n] = part.top;
    } else {
      other *= rescale_factor(part.top, tile.top[n]);
    }
    tile.l[n] = tile.l[n] * mine + part.l * other;
    tile.up[n] = 1;
    tile.one[n] = false;
  }

  // The sums of the partial states, joined in their order.
  void resume(Sums<V>& tile) const noexcept {
    for (int n = 0; n < tile.rows; ++n) tile.sink[n] = false;
    for (std::int64_t s = 0; s < p.parts; ++s) {
      const Strided& state = call_.parts[s].o;
      for (int n = 0; n < tile.rows; ++n) {
        const std::int64_t from = at(state, tile, n);
        const StateRow row = load_state(state, from, p.dv);
        tile.sink[n] = tile.sink[n] || row.sink;
        if (row.kind == StateKind::empty) continue;
        double mine = 0, other = 1;
        if (tile.l[n] == 0) tile.one[n] = row.kind == kChunkOfT;
        add_sum(tile, n, row, mine, other);
        const double* o = reinterpret_cast<const double*>(state.data) + from;
        double* total = tile.o + n * width(p);
        for (std::int64_t x = 0; x < p.dv; ++x, o += state.stride[3]) {
          const double before = mine == 1 ? total[x] : total[x] * mine;
          total[x] = V::kFused ? __builtin_fma(*o, other, before) : *o * other + before;
        }
      }
    }
  }

  // One chunk of another type than T is brought to an integer maximum: its type is not carried on.
  void close_states(const Sums<V>& tile) const noexcept {
    for (int n = 0; n < tile.rows; ++n) {
      const std::int64_t to = at(call_.state, tile, n);
      const bool one = tile.one[n];
      const double factor = one ? 1 : tile.up[n];
      double* o = reinterpret_cast<double*>(call_.state.data) + to;
      for (std::int64_t x = 0; x < p.dv; ++x)
        o[x * call_.state.stride[3]] = tile.o[n * width(p) + x] * factor;
      store_state(call_.state, to, p.dv,
                  {tile.top[n], tile.l[n] * factor, one ? tile.up[n] : 1,
                   tile.l[n] == 0 ? StateKind::empty
                   : one          ? kChunkOfT
                                  : StateKind::joined,
                   tile.sink[n]});
    }
  }

  void close_row(const Sums<V>& tile, int n) const noexcept {
    using D = typename V::Double;
    const D factor = D::set(tile.l[n] == 0 ? 0 : 1 / tile.l[n]);
    Divisors<V, V::kLanes> divisor;
    divide_by(divisor, tile.l[n]);
    T* out = reinterpret_cast<T*>(call_.out.data) + at(call_.out, tile, n);
    const std::int64_t whole = width(p), dv = p.dv;
    const T* sums = tile.chunk_sums + n * whole;
    const double* o = tile.o + n * whole;
    for (std::int64_t x = 0; x < dv; x += V::kLanes) {
      D sum[V::kDoubles];
      unrolled<V::kDoubles>(ATTEND_EACH(k) {
        sum[k] = tile.joined ? D::load(o + x + k * D::kLanes) : wide<k>(V::load(sums + x));
        if (!tile.one[n]) sum[k] = sum[k] * factor;
      });
      V result = V::narrowed(sum);
      if (tile.one[n]) result = divisor.divided(result, 0);
      if (x + V::kLanes <= dv) result.store(out + x);
      else result.store_first(out + x, dv - x);
    }
  }

  void convert_row_out(const Sums<V>& tile, int n) const noexcept {
    with_type(call_.out.type, [&]<class E>(E) {
      convert_out(tile, n, reinterpret_cast<E*>(call_.out.data) + at(call_.out, tile, n));
    });
  }

  template <class E>
  void convert_out(const Sums<V>& tile, int n, E* to) const noexcept {
    using D = typename V::Double;
    const std::int64_t stride = call_.out.stride[3];
    const double factor = tile.l[n] == 0 ? 0 : 1 / tile.l[n];
    const double* const o = tile.o + n * width(p);
    const T* const sums = tile.chunk_sums + n * width(p);
    Divisors<V, V::kLanes> divisor;
    if (std::is_same_v<E, T>) divide_by(divisor, tile.l[n]);
    std::int64_t x = 0;
    if (!std::is_same_v<E, T> && stride == 1)
      x = store_rounded<V>(to, p.dv, [&](std::int64_t from, auto k) {
        const D sum =
            tile.joined ? D::load(o + from + k * D::kLanes) : wide<k>(V::load(sums + from));
        return (sum + D::set(0)) * D::set(factor);
      });
    for (; x < p.dv; ++x) {
      const double sum = tile.joined ? o[x] : static_cast<double>(sums[x]);
      if (std::is_same_v<E, T> && tile.one[n])
        to[x * stride] = static_cast<E>(divided(divisor, sum));
      else to[x * stride] = static_cast<E>((sum + 0.0) * factor);
    }
  }

  // All rows of a tile that saw one chunk. A quotient in T rounds to 16 bits as one in f64 does,
  // unless it lies next to the middle of two numbers: such rows are divided in f64.
  void divide_rows_out(const Sums<V>& tile) const noexcept {
    T l[kRoom] = {};
    for (int n = 0; n < tile.rows; ++n) l[n] = static_cast<T>(tile.l[n]);
    Divisors<V, kRoom> divisors;
    divisors.set(l, tile.lanes);
    with_type(call_.out.type, [&]<class E>(E) {
      if constexpr (HasHalves<V, E>)
        for (int n = 0; n < tile.rows; ++n) {
          if constexpr (kMatrix<V>)
            if (n % 4 == 0) Matrix<V>::keep_awake();
          E* const to = reinterpret_cast<E*>(call_.out.data) + at(call_.out, tile, n);
          if (!divide_row_out(tile.chunk_sums + n * width(p), divisors, n, to))
            convert_out(tile, n, to);
        }
    });
  }

  // False if a quotient is doubtful.
  template <class E>
  ATTEND_INLINE bool divide_row_out(const T* sums, const Divisors<V, kRoom>& divisors, int n,
                                    E* to) const noexcept {
    constexpr std::int64_t kTwo = 2 * V::kLanes;
    const std::int64_t dv = p.dv;
    const auto quotient = [&](std::int64_t x) __attribute__((always_inline)) {
      return divisors.divided(V::load(sums + x), n);
    };
    Rounder<E> rounder;
    std::int64_t x = 0;
    for (; x + kTwo <= dv; x += kTwo) rounder.store(quotient(x), quotient(x + V::kLanes), to + x);
    if (x < dv) {
      E some[kTwo];
      rounder.store(quotient(x), dv - x > V::kLanes ? quotient(x + V::kLanes) : V::set(0), some);
      for (std::int64_t y = x; y < dv; ++y) to[y] = some[y - x];
    }
    return !rounder.doubtful();
  }

  // As the products do it that store results.
  static void divide_by(Divisors<V, V::kLanes>& divisor, double l) noexcept {
    T lanes[V::kLanes];
    V::set(static_cast<T>(l)).store(lanes);
    divisor.set(lanes, V::kLanes);
  }
  static T divided(const Divisors<V, V::kLanes>& divisor, double sum) noexcept {
    T lanes[V::kLanes];
    divisor.divided(V::set(static_cast<T>(sum)), 0).store(lanes);
    return lanes[0];
  }

  std::int64_t at(const Strided& t, const Sums<V>& tile, int n) const noexcept {
    return query_row(p, t, scores_.sequence, tile.h[n], tile.i[n]);
  }

  // The blocks that row n sees.
  void count_blocks(const Sums<V>& tile, int n) const noexcept {
    std::int64_t seen = 0;
    for (std::int64_t j = tile.keys[n].begin; j < tile.keys[n].end;) {
      const std::int64_t end = tile.keys[n].end;
      const std::int64_t count = p.blocks ? p.block_keys - j % p.block_keys : end - j;
      seen += block_visible(p, call_, scores_.sequence.b, tile.h[n], tile.i[n], j) ? 1 : 0;
      j = count < end - j ? j + count : end;
    }
    std::atomic_ref(*call_.visited_blocks).fetch_add(seen, std::memory_order_relaxed);
  }

  const ForwardProblem& p;
  const ForwardCall& call_;
  ForwardScores<V>& scores_;
};

}  // namespace
}  // namespace attend
