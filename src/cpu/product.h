// The one product of matrices that everything here is made of: c = a b, or c += a b.
//
//                       b [depth][kVectors vectors]
//                       +-----------+        kRows x kVectors sums stay in registers while k runs
//                     k |  ===  === |        over the depth. Each step loads kVectors vectors of
//     a [rows][depth]   +-----------+        b and kRows elements of a, for kRows * kVectors
//     +-----+           +-----------+        multiply-adds, at most two a cycle:
//     |  k  |         r |           |          AVX-512  12 x 2: 20 loads, 12 cycles, 27 registers
//   r |  .  |           |   sums    |          AVX2      6 x 2:  8 loads,  6 cycles, 15 registers
//     |  .  |           |           |          NEON      8 x 3:  5 loads, 12 cycles, 29 registers
//     +-----+           +-----------+          (AVX-512: half of the elements twice, see steps();
//                                              NEON: also 12 x 2; by lane, see tiles.h)
//
// Every sum is one ascending chain of fused multiply-adds over k: how the rows are cut into tiles
// changes no bit. a is read as it lies, with its depth contiguous (scores: a row is a key) or with
// its rows contiguous ("across"; values: a row is a query). Products by lane are at their best
// across, with nothing between the operands of a step: there, keys that many tiles read are first
// brought into panels (a: [panel][depth][kPanelRows]) and values into strips (b: as wide as a
// tile).
#pragma once

#include "cpu/tiles.h"

#include <limits>

namespace attend {
namespace {

// Rows in memory, asked for line by line while something else is computed: those close by for the
// nearest cache and, if that is asked for, those so many rows later for the second, in which more
// requests can be on their way at the same time.
template <class T, bool kTwice>
class Lines {
  static constexpr std::int64_t kLine = 64 / sizeof(T);
  const T* row_ = nullptr;
  std::int64_t stride_ = 0, length_ = 0, at_ = 0, later_ = 0;

 public:
  Lines() = default;
  Lines(const T* row, std::int64_t stride, std::int64_t length, std::int64_t later = 0)
      : row_(row), stride_(stride), length_(length), later_(later * stride) {}
  ATTEND_INLINE void prefetch_next() {
    __builtin_prefetch(row_ + at_);
    if constexpr (kTwice)
      if (later_ != 0) __builtin_prefetch(row_ + at_ + later_, 0, 2);
    at_ += kLine;
    if (at_ >= length_) at_ = 0, row_ += stride_;
  }
};

template <class V, class E = OperandOf<V>>
using LinesOf = Lines<E, (kLaterBytes<V> > 0)>;

enum class Start { zero, c };

template <class V>
struct Operands {
  using Operand = OperandOf<V>;
  using Sum = SumOf<V>;
  static_assert(std::is_same_v<Sum, typename V::T>);
  const Operand* a;
  std::int64_t a_stride;  // from row to row; across: from step to step
  const Operand* b;
  std::int64_t b_stride;
  Sum* c;
  std::int64_t c_stride;
  std::int64_t depth;
  std::int64_t a_panel = 0;  // panels: from one to the next
  // Across: strips of c, as wide as a tile and side by side, and how far theirs of b are apart.
  std::int64_t strips = 1, b_strip = 0;
  Start start = Start::zero;   // what the sums begin with
  LinesOf<V>* soon = nullptr;  // what will be read after this product
};

// What is contiguous in a: the depth, or the rows. Streamed is along, where a comes from memory;
// panels are across, the rows of each register tile side by side (kPanelRows of them).
enum class Layout { along, streamed, across, panels };
constexpr bool is_along(Layout layout) {
  return layout == Layout::along || layout == Layout::streamed;
}

// sum += a[0] b[0] + a[1] b[1] + ..., in this order, for as many elements of a as V has lanes.
template <class V>
ATTEND_INLINE void add_products_of_lanes(const typename V::T* a, const V (&b)[V::kLanes], V& sum) {
  if constexpr (V::kByLane) {
    const V lanes = V::load(a);
    unrolled<V::kLanes>(ATTEND_EACH(n) { sum = fma_lane<n>(lanes, b[n], sum); });
  } else {
    unrolled<V::kLanes>(ATTEND_EACH(n) { sum = fma(V::set(a[n]), b[n], sum); });
  }
}

// Where the sums go: to c. Others may look at them on the way.
struct Store {
  template <class V, int kRows, int kVectors>
  ATTEND_INLINE void operator()(const Operands<V>& x, V (&sum)[kRows][kVectors]) const {
    SumOf<V>* c = x.c;  // neither x nor its strides are read again after a store
    const std::int64_t stride = x.c_stride;
    unrolled<kRows>(ATTEND_EACH(r) {
      store(sum[r], c);
      c += stride;
    });
  }
};

// 1 / x of every lane, as a sum of two numbers, so that a product with it is rounded once; 0 of 0.
// The lower is positive: infinities stay what they are. Small against the higher, but no product
// with it is subnormal that the result is not: such are slow. x is 0, NaN, or at least 1, as the
// largest weight is.
template <class V>
struct Inverse {
  using T = typename V::T;
  V high, low;

  ATTEND_INLINE explicit Inverse(V x) {
    constexpr T kHalf = std::numeric_limits<T>::epsilon() / 2;
    const V one = V::set(1), zero = V::set(0), minus = zero - x;
    high = one / x;
    low = fma(minus, high, one);
    high = select(less(low, zero), high * V::set(1 - kHalf), high);  // the number below it
    low = larger(high * V::set(static_cast<T>(0x1p-60)), fma(minus, high, one) * high);
    const auto nothing = less(x, V::set(std::numeric_limits<T>::min()));
    high = select(nothing, zero, high);
    low = select(nothing, zero, low);
  }
};

// y / x for rows of y, as Inverse has it. Where nothing is fused, by way of f64. -0 becomes +0: the
// sign of a sum that has vanished would tell which keys the other rows of a tile see.
template <class V, int kCount>
class Divisors {
  using T = typename V::T;
  using D = typename V::Double;
  T high_[V::kFused ? kCount : 1], low_[V::kFused ? kCount : 1];
  double whole_[V::kFused ? 1 : kCount];

 public:
  static constexpr int kMostRows = kCount;
  void set(const T* x, int lanes) {  // whole vectors
    if constexpr (V::kFused) {
      for (int n = 0; n < lanes; n += V::kLanes) {
        const Inverse<V> inverse(V::load(x + n));
        inverse.high.store(high_ + n);
        inverse.low.store(low_ + n);
      }
    } else {
      for (int n = 0; n < lanes; ++n) whole_[n] = x[n] == 0 ? 0 : 1 / static_cast<double>(x[n]);
    }
  }
  ATTEND_INLINE V divided(V y, std::int64_t row) const {
    if constexpr (V::kFused) {
      return fma(y, V::set(high_[row]), fma(y, V::set(low_[row]), V::set(0)));
    } else {
      D wider[V::kDoubles];
      unrolled<V::kDoubles>(
          ATTEND_EACH(k) { wider[k] = (wide<k>(y) + D::set(0)) * D::set(whole_[row]); });
      return V::narrowed(wider);
    }
  }
  template <int kVectors>
  ATTEND_INLINE void divide(V (&y)[kVectors], std::int64_t row) const {
    unrolled<kVectors>(ATTEND_EACH(n) { y[n] = divided(y[n], row); });
  }
};

// The same, each row divided, if there are divisors. kRow: from row to row of a, an element where
// it lies across.
template <class By, class V, std::int64_t kRow = TilesOf<V>::kDepth>
struct StoreDivided {
  static constexpr int kMostRows = By::kMostRows;
  static constexpr bool kDepthNonZero = true;  // the depth is not 0
  const OperandOf<V>* a;                       // the first row
  const By* by;                                // null: none, or not yet
  template <int kRows, int kVectors>
  ATTEND_INLINE void operator()(const Operands<V>& x, V (&sum)[kRows][kVectors]) const {
    if (by == nullptr) return Store{}(x, sum);
    const std::int64_t first = (x.a - a) / kRow, stride = x.c_stride;
    SumOf<V>* c = x.c;
    unrolled<kRows>(ATTEND_EACH(r) {
      by->divide(sum[r], first + r);
      store(sum[r], c);
      c += stride;
    });
  }
};

// Elements of the rows of a, kSteps steps of the depth at a time. Twelve pointers would not fit the
// registers: along, there is one for every two rows, across, one for each step; and the compiler is
// kept from seeing through them.
template <bool kAlong, int kSteps, int kRows, class T>
class Elements {
  static constexpr int kCount = kAlong ? (kRows + 1) / 2 : kSteps;
  const T* at_[kCount];
  const std::int64_t stride_;

 public:
  ATTEND_INLINE Elements(const T* a, std::int64_t stride) : stride_(stride) {
    unrolled<kCount>(ATTEND_EACH(n) { at_[n] = a + (kAlong ? 2 * n : n) * stride; });
  }
  template <int kStep, int kRow>
  ATTEND_INLINE const T* at() const {
    if constexpr (kAlong) return at_[kRow / 2] + kRow % 2 * stride_ + kStep;
    else return at_[kStep] + kRow;
  }
  ATTEND_INLINE void advance(std::int64_t steps) {
    unrolled<kCount>(ATTEND_EACH(n) {
      at_[n] += kAlong ? steps : steps * stride_;
      asm("" : "+r"(at_[n]));
    });
  }
};

// Asks for what will be read soon. Where a product streams from memory, a step in every row of a
// tile and then the next, the hardware does not guess what comes. Behind a tensor's end it does no
// harm. A few requests with every step: many at once would wait for each other.
template <class T>
ATTEND_INLINE void prefetch(const T* p) {
  __builtin_prefetch(p);
}

// At step k, a line of one row of the tile after this one; of all its rows in the steps of a line.
template <int kRows, class V>
ATTEND_INLINE void prefetch_next_tile(const Operands<V>& x, std::int64_t k) {
  constexpr std::int64_t kLine = 64 / sizeof(OperandOf<V>), kEach = (kRows + kLine - 1) / kLine;
  unrolled<static_cast<int>(kEach)>(ATTEND_EACH(n) {
    prefetch(x.a + (kRows + k % kLine * kEach + n) * x.a_stride + k / kLine * kLine);
  });
}

// Steps k to the depth of every sum, with the elements of a broadcast. What a step costs besides
// its multiply-adds is nothing to a core of one's own, but was a tenth of the time beside busy
// neighbours (docs/decisions/014-fewer-instructions.md). So kStepsTogether steps make a loop; and
// every second row, whose address is a pointer alone, is broadcast by the multiply-adds that read
// it, where the instruction set can. Each of them loads the element again: tiles wider than
// kTileVectors have no loads to spare.
template <Layout kLayout, class V, int kRows, int kVectors>
ATTEND_INLINE void steps(const Operands<V>& x, std::int64_t k, V (&sum)[kRows][kVectors]) {
  constexpr int kSteps = kStepsTogether<V>;
  static_assert(kSteps == 1 || kSteps == 2);
  using Operand = OperandOf<V>;
  const Operand* b = x.b + k * x.b_stride;
  Elements<is_along(kLayout), kSteps, kRows, Operand> a(
      x.a + k * (is_along(kLayout) ? 1 : x.a_stride), x.a_stride);
  const auto take = [&](auto count) __attribute__((always_inline)) {
    unrolled<count>(ATTEND_EACH(step) {
      V lanes[kVectors];
      load(b + step * x.b_stride, lanes);
      if constexpr (is_wide<V>(kVectors))
        unrolled<kVectors>(
            ATTEND_EACH(n) { prefetch(b + (16 + step) * x.b_stride + n * V::kLanes); });
      if constexpr (kLayout == Layout::streamed) prefetch_next_tile<kRows>(x, k + step);
      unrolled<kRows>(ATTEND_EACH(r) {
        const Operand* const element = a.template at<step, r>();
        if constexpr (r % 2 == 0 && kVectors <= kTileVectors<V>)
          add_products(element, lanes, sum[r]);
        else add_products(V::set(*element), lanes, sum[r]);
      });
    });
    b += count * x.b_stride;
    a.advance(count);
  };
  if ((x.depth - k) % kSteps != 0) {  // first, so that the loop has one way out
    take(At<1>{});
    ++k;
  }
  for (; k < x.depth; k += kSteps) take(At<kSteps>{});
}

// Products by lane, in as many whole groups of V::kLanes steps as there are; gives where it
// stopped. A vector of a row of a serves a group. Pointers that advance: computed addresses cost a
// third of the speed.
template <Layout kLayout, class V, int kRows, int kVectors>
ATTEND_INLINE std::int64_t steps_by_lane(const Operands<V>& x, V (&sum)[kRows][kVectors]) {
  using Operand = OperandOf<V>;
  constexpr std::int64_t kLine = 64 / sizeof(Operand);
  const Operand *a_at[kRows], *b_at = x.b;
  unrolled<kRows>(ATTEND_EACH(r) { a_at[r] = x.a + r * x.a_stride; });
  std::int64_t k = 0;
  for (; k + V::kLanes <= x.depth; k += V::kLanes) {
    if constexpr (kLayout == Layout::streamed) {
      if (x.soon == nullptr && k % kLine < kRows)
        unrolled<V::kLanes>(ATTEND_EACH(n) { prefetch_next_tile<kRows>(x, k + n); });
      for (std::int64_t n = 0; x.soon != nullptr && n < kRows * V::kLanes / kLine; ++n)
        x.soon->prefetch_next();
    }
    V a[kRows];
    unrolled<kRows>(ATTEND_EACH(r) {
      a[r] = V::load(a_at[r]);
      a_at[r] += V::kLanes;
      asm("" : "+r"(a_at[r]));  // a pointer, whatever the compiler thinks of sums
    });
    unrolled<V::kLanes>(ATTEND_EACH(lane) {
      V b[kVectors];
      if constexpr (kLayout == Layout::along && is_wide<V>(kVectors))
        for (int n = 0; x.soon != nullptr && n < kVectors * V::kLanes / kLine; ++n)
          x.soon->prefetch_next();
      load(b_at, b);
      b_at += x.b_stride;
      unrolled<kRows>(ATTEND_EACH(r) { add_lane_products<lane>(a[r], b, sum[r]); });
      // The registers are full: the next b comes after some of these sums. Which: by trial.
      if constexpr (kVectors > kTileVectors<V>)
        unrolled<kRows>(ATTEND_EACH(r) {
          if constexpr (r >= V::kLanes / 2) after(b_at, sum[r][2]);
        });
#ifdef __clang__  // it would load all b of a group past the prefetches, into more registers than
                  // there are
      if constexpr (kLayout == Layout::along && is_wide<V>(kVectors))
        unrolled<kRows>(
            ATTEND_EACH(r) { unrolled<kVectors>(ATTEND_EACH(n) { after(b_at, sum[r][n]); }); });
#endif
    });
  }
  return k;
}

// Steps across, by lane: a vector of a holds V::kLanes rows. The last ones may be there twice. One
// step in a loop: Neoverse N1 does 97 % of its peak so, and 86 % with four, or with addresses
// computed from k.
template <class V, int kRows, int kVectors>
ATTEND_INLINE void steps_across_by_lane(const Operands<V>& x, V (&sum)[kRows][kVectors]) {
  constexpr int kWhole = kRows / V::kLanes, kCount = (kRows + V::kLanes - 1) / V::kLanes;
  const typename Operands<V>::Operand *a_at = x.a, *b_at = x.b;
  for (std::int64_t left = x.depth; left > 0; --left, a_at += x.a_stride, b_at += x.b_stride) {
    if constexpr (is_wide<V>(kVectors))
      for (int n = 0; x.soon != nullptr && n < kVectors / kWideVectors<V>; ++n)
        x.soon->prefetch_next();
    if constexpr (kWhole == 0) {
      V a[kRows];
      unrolled<kRows>(ATTEND_EACH(r) { a[r] = V::set(a_at[r]); });
      unrolled<kVectors>(ATTEND_EACH(n) {
        const V b = V::load(b_at + n * V::kLanes);
        unrolled<kRows>(ATTEND_EACH(r) { sum[r][n] = fma(a[r], b, sum[r][n]); });
      });
    } else {
      V a[kCount], b[kVectors];
      load(b_at, b);
      unrolled<kCount>(ATTEND_EACH(r) {
        a[r] = V::load(a_at + (r < kWhole ? r * V::kLanes : kRows - V::kLanes));
      });
      unrolled<kRows>(ATTEND_EACH(r) {
        constexpr int kOf = r / V::kLanes;
        constexpr int kLane = kOf < kWhole ? r % V::kLanes : r - (kRows - V::kLanes);
        add_lane_products<kLane>(a[kOf], b, sum[r]);
      });
    }
  }
}

template <class V, int kRows, int kVectors, Layout kLayout, class Finish>
ATTEND_INLINE void strip_of_tile(const Operands<V>& x, Finish finish) {
  static_assert(kMultipliesSums<V>, "other operands need a product_tile() of their own");
  V sum[kRows][kVectors];
  if (x.start == Start::zero) {  // a tile for each would be twice as many to compile
    unrolled<kRows>(ATTEND_EACH(r) { set_zero(sum[r]); });
  } else {
    unrolled<kRows>(ATTEND_EACH(r) { load(x.c + r * x.c_stride, sum[r]); });
  }
  if constexpr (requires { finish.template ask<kRows, kVectors>(x); })
    finish.template ask<kRows, kVectors>(x);
  std::int64_t k = 0;
  if constexpr (V::kByLane && is_along(kLayout)) {
    k = steps_by_lane<kLayout>(x, sum);
  } else if constexpr (V::kByLane) {
    steps_across_by_lane(x, sum);
    k = x.depth;
  }
  if (k < x.depth) steps<kLayout>(x, k, sum);
  finish(x, sum);
}

// The tile: kRows x kVectors sums, handed to finish(), all of them or row by row. Of operands that
// are sums themselves; a tile of others is an overload that requires them, in the header of its
// instructions, which its file includes first.
template <class V, int kRows, int kVectors, Layout kLayout, class Finish>
[[gnu::noinline]] void product_tile(const Operands<V>& x, Finish finish) {
  ATTEND_PATH_OF(V, kTilePaths[static_cast<int>(kLayout)], kVectors);
  if constexpr (requires { Finish::kDepthNonZero; })
    if (x.depth < 1) __builtin_unreachable();
  if constexpr (kLayout == Layout::across) {
    Operands<V> here = x;
    for (std::int64_t left = x.strips; left > 0; --left) {
      strip_of_tile<V, kRows, kVectors, kLayout>(here, finish);
      here.b += x.b_strip;
      here.c += kVectors * V::kLanes;
    }
  } else {
    strip_of_tile<V, kRows, kVectors, kLayout>(x, finish);
  }
}

// One tile of exactly `rows` rows, or, where that is odd, an even one and a single row.
template <class V, int kVectors, Layout kLayout, int kRows, class Finish>
ATTEND_INLINE void product_exact(Operands<V>& x, std::int64_t rows, Finish finish) {
  if (rows >= kRows) {
    product_tile<V, kRows, kVectors, kLayout>(x, finish);
    if constexpr (kLayout == Layout::panels && kRows == kPanelRows<V>) x.a += x.a_panel;
    else x.a += is_along(kLayout) ? kRows * x.a_stride : kRows * TilesOf<V>::kDepth;
    x.c += kRows * x.c_stride;
    rows -= kRows;
  }
  if constexpr (kRows > 1) {
    if (rows > 0) product_exact<V, kVectors, kLayout, (kRows > 2 ? kRows - 2 : 1)>(x, rows, finish);
  }
}

// c[rows][kVectors vectors], in tiles that fit the registers (tile_rows() of the instruction set);
// finish(operands of the tile, sums). The last two tiles share what is left: two middling ones keep
// the multipliers busier than a full and a tiny one.
template <class V, int kVectors, Layout kLayout, class Finish = Store>
ATTEND_INLINE void product(Operands<V> x, std::int64_t rows, Finish finish = {}) {
  constexpr int kMost = [] {
    const int most =
        kLayout == Layout::panels ? kPanelRows<V> : TilesOf<V>::rows(kVectors, is_along(kLayout));
    if constexpr (requires { Finish::kMostRows; })
      return most < Finish::kMostRows ? most : Finish::kMostRows;
    return most;
  }();
  while (rows > 0) {
    const std::int64_t half = kLayout == Layout::panels ? kMost : (rows + 3) / 4 * 2;
    const std::int64_t now = rows >= 2 * kMost ? kMost : rows <= kMost ? rows : half;
    product_exact<V, kVectors, kLayout, kMost>(x, now, finish);
    rows -= now;
  }
}

// c[rows][features], `vectors` of them, of a that lies across, or along. Few rows would leave the
// multipliers waiting for each other: they take more features at a time.
template <class V, Layout kLayout = Layout::across, class Finish = Store>
void product_of_features(Operands<V> x, int rows, std::int64_t vectors, Finish finish = {}) {
  const auto take = [&]<int kVectors>() {
    x.b_strip = kVectors * V::kLanes;
    while (vectors >= kVectors) {
      x.strips = kLayout == Layout::across ? vectors / kVectors : 1;
      product<V, kVectors, kLayout>(x, rows, finish);
      x.b += x.strips * x.b_strip;
      x.c += x.strips * x.b_strip;
      vectors -= x.strips * kVectors;
    }
  };
  if (rows <= TilesOf<V>::rows(kWidestVectors<V>, false))
    take.template operator()<kWidestVectors<V>>();
  if (rows <= TilesOf<V>::rows(kWideVectors<V>, false)) take.template operator()<kWideVectors<V>>();
  take.template operator()<kFeatureVectors<V>>();
  take.template operator()<1>();
}

}  // namespace
}  // namespace attend
