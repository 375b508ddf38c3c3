// The words the kernels of this folder are written in. An instruction set's header (avx512.h,
// avx2.h, neon.h, generic.h) defines two types, F32 and F64, with all of these; the kernels are
// written once, as templates over such a type V, with plain arrays of V as register tiles.
//
//   V::T, V::kLanes                  the element, and how many of them
//   V::load(p), v.store(p)           any alignment
//   V::load_first(p, n), v.store_first(p, n)   n lanes; nothing behind them is touched, 0 is read
//   V::set(x)                        the same in every lane
//   V::pieces(p)                     16 bytes each from p(0), p(1), ... side by side
//   fma(a, b, c)                     a * b + c, fused where the instruction set can, V::kFused
//   add_product(a, b, sum)           sum = fma(a, b, sum); a may point to one element of all lanes
//   a + b, a - b, a * b, a / b
//   larger(a, b)                     the larger; NaN where b is NaN
//   ceiling(a)                       to a whole number
//   scaled(a, n)                     a * 2^n, for Exp2<T>::kWhole + n (exp2.h); NaN where a is NaN
//   V::Mask, less(a, b)
//   select(mask, a, b)               a where the mask is set, b elsewhere
//   all_finite(a)                    bool
//   V::Double, wide<n>(a)         lanes n * Double::kLanes ... as doubles; V::kDoubles of them
//   V::narrowed(doubles)             and back, rounded
//   F32::widened(p)                  bf16, f16 or i8 numbers from p, exactly
//   F32::load_pairs(p, even, odd)    bf16 numbers from p, twice as many as lanes: every second one
//   F32::odd(doubles)                narrowed by rounding to odd: rounded once more to 16 bits,
//                                    that is rounded once in all
//   v.rounded(p)                     F32 to bf16 or f16 at p, to nearest; NaN as in core/dtype.cpp
//   Rounder<E>                       two vectors of F32 to E, if they are not doubtful, below
//   V::kByLane                       whether fma_lane<n>(a, b, c) = a[n] * b + c is an instruction
//
// An instruction set also has its register tiles, V::RegisterTiles (tiles.h).
//
// All of it lives in unnamed namespaces, and so does everything that is made of it: code compiled
// for one instruction set must never serve another.
#pragma once

#include <attend/dtype.h>

#include <cstdint>
#include <type_traits>
#include <utility>

namespace attend {
namespace {

#define ATTEND_INLINE [[gnu::always_inline]] inline

template <int kIndex>
using At = std::integral_constant<int, kIndex>;

// Calls use(index) for 0 ... kCount - 1, each a constant: arrays that are indexed so stay in
// registers with every compiler.
template <int kCount, class Use>
ATTEND_INLINE void unrolled(Use use) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) __attribute__((always_inline)) {
    (use(At<kIndex>{}), ...);
  }
  (std::make_integer_sequence<int, kCount>{});
}
// NOLINTNEXTLINE(bugprone-macro-parentheses): a name
#define ATTEND_EACH(index) [&](auto index) __attribute__((always_inline))

// What an instruction set does not do better.
template <class V>
ATTEND_INLINE void add_product(V a, V b, V& sum) {
  sum = fma(a, b, sum);
}
template <class V>
ATTEND_INLINE void add_product(const typename V::T* a, V b, V& sum) {
  add_product(V::set(*a), b, sum);
}

// Rounder<E>, of each instruction set: rounds quotients in float to 16 bits, two vectors at a time,
// and knows afterwards whether one of them was doubtful, that is might be rounded otherwise than
// what it was computed from: within two units of the last place of the middle of two such numbers,
// where they have fewer digits, or no number. Of the doubtful ones anything may have been stored.
//
// The bits plus kMiddle: where the digits that are rounded away are then at most kNear, the number
// is near the middle. In bf16 the rest of that sum is what it rounds to, if it is not. A size less
// 1, so that 0 is not too small. A minimum or maximum for each number and one comparison for a row:
// with comparisons for each the test took a fifth of the time of short sequences (AVX2).
template <class E>
class Rounder;
template <class E>
struct Doubt {
  static constexpr bool kBf16 = std::is_same_v<E, bf16>;
  static constexpr int kCut = kBf16 ? 16 : 13;  // digits that are rounded away
  static constexpr std::uint32_t kMiddle = (1U << (kCut - 1)) + 2, kNear = 4;
  // Sizes times two, which have no sign, are doubtful up to kLeast: of bf16, in 16 bits, 2^-125; of
  // f16, of the float, 2^-14. And of f16 from kMost on, in 16 bits.
  static constexpr std::uint32_t kLeast = kBf16 ? 0x0200 : 0x71000000, kMost = 0xF780;
  // Of f16 the halves of a float each by itself: the digits, moved up, and twice the size.
  static constexpr int kUp = 16 - kCut;
  static constexpr std::uint32_t kToHalves = 0xFFFF0000 | (kMiddle << kUp & 0xFFFF);  // to be added
  static constexpr std::uint32_t kHalves = ((kLeast >> 16) - 1) << 16 | kNear << kUp;  // at most
};

// A few vectors side by side: one row of a register tile. Functions of their own, since a lambda in
// a lambda is compiled anew for every row of every tile, which was most of the time of compiling.
template <class V, int kCount>
ATTEND_INLINE void load(const typename V::T* p, V (&row)[kCount]) {
  unrolled<kCount>(ATTEND_EACH(n) { row[n] = V::load(p + n * V::kLanes); });
}
template <class V, int kCount>
ATTEND_INLINE void store(const V (&row)[kCount], typename V::T* p) {
  unrolled<kCount>(ATTEND_EACH(n) { row[n].store(p + n * V::kLanes); });
}
template <class V, int kCount>
ATTEND_INLINE void set_zero(V (&row)[kCount]) {
  unrolled<kCount>(ATTEND_EACH(n) { row[n] = V::set(0); });
}
template <class V, int kCount>
ATTEND_INLINE void add_row(V (&row)[kCount], const V (&b)[kCount]) {
  unrolled<kCount>(ATTEND_EACH(n) { row[n] = row[n] + b[n]; });
}
template <class V, int kCount>
ATTEND_INLINE void multiply_row(V (&row)[kCount], V by) {
  unrolled<kCount>(ATTEND_EACH(n) { row[n] = row[n] * by; });
}
template <class V, int kCount>
ATTEND_INLINE void larger_row(const V (&row)[kCount], V (&most)[kCount]) {
  unrolled<kCount>(ATTEND_EACH(n) { most[n] = larger(row[n], most[n]); });
}
// row += a b for one element a of all lanes, or a pointer to it; fma_lane: the element is a lane of
// a.
template <class A, class V, int kCount>
ATTEND_INLINE void add_products(A a, const V (&b)[kCount], V (&row)[kCount]) {
  unrolled<kCount>(ATTEND_EACH(n) { add_product(a, b[n], row[n]); });
}
template <int kLane, class V, int kCount>
ATTEND_INLINE void add_lane_products(V a, const V (&b)[kCount], V (&row)[kCount]) {
  unrolled<kCount>(ATTEND_EACH(n) { row[n] = fma_lane<kLane>(a, b[n], row[n]); });
}

// The square of V::kLanes rows, transposed in registers: log2(kLanes) rounds, each swapping the
// off-diagonal squares of twice the size.
template <int kStep, class Native, int... kIndex>
ATTEND_INLINE void exchange(Native& a, Native& b, std::integer_sequence<int, kIndex...>) {
  constexpr int kLanes = sizeof...(kIndex);
  const Native low =
      __builtin_shufflevector(a, b, ((kIndex & kStep) != 0 ? kLanes + kIndex - kStep : kIndex)...);
  b = __builtin_shufflevector(a, b, ((kIndex & kStep) != 0 ? kLanes + kIndex : kIndex + kStep)...);
  a = low;
}

template <class V, int kStep = 1>
ATTEND_INLINE void transpose(V (&rows)[V::kLanes]) {
  if constexpr (kStep < V::kLanes) {
    unrolled<V::kLanes>(ATTEND_EACH(r) {
      if constexpr ((r & kStep) == 0)
        exchange<kStep>(rows[r].v, rows[r + kStep].v, std::make_integer_sequence<int, V::kLanes>{});
    });
    transpose<V, kStep * 2>(rows);
  }
}

// Two vectors interleaved, kStep elements at a time, within each 16 bytes (kPer elements): of the
// lower halves of these (kHalf 0), or the upper (1).
template <int kStep, int kHalf, int kPer, class Native, int... kIndex>
ATTEND_INLINE Native interleaved(Native a, Native b, std::integer_sequence<int, kIndex...>) {
  constexpr int kLanes = sizeof...(kIndex);
  return __builtin_shufflevector(
      a, b,
      (kIndex / kPer * kPer + kHalf * kPer / 2 + kIndex % kPer / (2 * kStep) * kStep +
       kIndex % kStep + (kIndex / kStep % 2) * kLanes)...);
}

// Rows that are read together: `bytes` apart, or each anywhere. at(row, byte) is where a byte of
// one is, from the element of interest on.
template <class V>
class RowsApart {
  static constexpr int kPer = 16 / sizeof(typename V::T);
  const char* quarter_[V::kLanes / kPer];
  std::int64_t bytes_;

 public:
  ATTEND_INLINE RowsApart(const void* first, std::int64_t bytes) : bytes_(bytes) {
    unrolled<V::kLanes / kPer>(ATTEND_EACH(q) {
      quarter_[q] = static_cast<const char*>(first) + q * kPer * bytes;
      asm("" : "+r"(quarter_[q]));  // else gcc keeps an address for each row, in vector registers
    });
  }
  ATTEND_INLINE const char* at(int row, int byte) const {
    return quarter_[row / kPer] + row % kPer * bytes_ + byte;
  }
};
template <class E>
struct RowsAnywhere {
  const E* const* rows;
  std::int64_t first;
  ATTEND_INLINE const char* at(int row, int byte) const {
    return reinterpret_cast<const char*>(rows[row] + first) + byte;
  }
};

// Columns of V::kLanes rows, transposed on the way from memory. The 16 bytes of four (f64: two)
// rows each are brought together by loads alone, so that half the shuffles of transpose() do.
template <class V, int kColumns, class Rows>
ATTEND_INLINE void load_columns(const Rows& rows, V (&columns)[kColumns]) {
  using T = typename V::T;
  constexpr int kPer = 16 / sizeof(T);
  static_assert(kColumns % kPer == 0);
  const auto pair = [](V & a, V & b, auto step) __attribute__((always_inline)) {
    constexpr auto kAll = std::make_integer_sequence<int, V::kLanes>{};
    const auto low = interleaved<step, 0, kPer>(a.v, b.v, kAll);
    b.v = interleaved<step, 1, kPer>(a.v, b.v, kAll);
    a.v = low;
  };
  unrolled<kColumns / kPer>(ATTEND_EACH(c) {
    V* const z = columns + c * kPer;
    unrolled<kPer>(ATTEND_EACH(p) {
      z[p] = V::pieces(
          [&](auto q) { return reinterpret_cast<const T*>(rows.at(q * kPer + p, c * 16)); });
    });
    if constexpr (kPer == 2) {
      pair(z[0], z[1], At<1>{});
    } else {
      pair(z[0], z[1], At<1>{});
      pair(z[2], z[3], At<1>{});
      pair(z[0], z[2], At<2>{});
      pair(z[1], z[3], At<2>{});
      const V other = z[1];
      z[1] = z[2];
      z[2] = other;
    }
  });
}

// A square of V::kLanes rows of numbers of type E, transposed: those of 8 or 16 bits are converted.
// An instruction set may know a shorter way.
template <class E, class V, class Rows>
ATTEND_INLINE void transposed(E, const Rows& rows, V (&square)[V::kLanes]) {
  if constexpr (sizeof(E) == sizeof(typename V::T)) {
    load_columns(rows, square);
  } else {
    unrolled<V::kLanes>(
        ATTEND_EACH(r) { square[r] = V::widened(reinterpret_cast<const E*>(rows.at(r, 0))); });
    transpose(square);
  }
}
// Of rows `stride` apart.
template <class V, class E>
ATTEND_INLINE void load_transposed(const E* rows, std::int64_t stride, V (&square)[V::kLanes]) {
  transposed(E{}, RowsApart<V>(rows, stride * static_cast<std::int64_t>(sizeof *rows)), square);
}

// Whether packed numbers of type E lie in pairs: a number of one vector beside that of the next, in
// the lower and the upper half of a lane, so that V::load_pairs() takes one instruction for each.
template <class V, class E>
concept InPairs = requires(const E* p, V& v) {
  V::load_pairs(p, v, v);
};

// Vectors of packed numbers of 8 or 16 bits. An instruction set may know a shorter way.
template <class V, class E, int kCount>
ATTEND_INLINE void load_narrow(const E* from, V (&to)[kCount]) {
  if constexpr (InPairs<V, E>) {
    static_assert(kCount % 2 == 0);
    unrolled<kCount / 2>(
        ATTEND_EACH(n) { V::load_pairs(from + 2 * n * V::kLanes, to[2 * n], to[2 * n + 1]); });
  } else {
    unrolled<kCount>(ATTEND_EACH(n) { to[n] = V::widened(from + n * V::kLanes); });
  }
}

}  // namespace
}  // namespace attend
