// The words the kernels of this folder are written in. An instruction set's header (avx512.h,
// avx2.h, neon.h, generic.h) defines two types, F32 and F64, with all of these; the kernels are
// written once, as templates over such a type V, with plain arrays of V as register tiles.
//
//   V::T, V::kLanes                  the element, and how many of them
//   V::load(p), v.store(p)           any alignment
//   V::load_first(p, n), v.store_first(p, n)   n lanes; nothing behind them is touched, 0 is read
//   V::set(x)                        the same in every lane
//   fma(a, b, c)                     a * b + c, fused where the instruction set can
//   a + b, a - b, a * b, a / b
//   larger(a, b)                     the larger; NaN where b is NaN
//   nearest(a), ceiling(a)           to a whole number
//   scaled(a, n)                     a * 2^n, for whole n from V::kLowestPower to 127 (1023)
//   V::Mask, less(a, b)
//   select(mask, a, b)               a where the mask is set, b elsewhere
//   all_finite(a)                    bool
//   V::Double, wide<n>(a)         lanes n * Double::kLanes ... as doubles; V::kDoubles of them
//   V::narrowed(doubles)             and back, rounded
//   V::kByLane                       whether fma_lane<n>(a, b, c) = a[n] * b + c is an instruction
//
// An instruction set also names the register tiles of its products: kTileRows x kTileVectors, and
// for few rows kWideRows x kWideVectors.
//
// All of it lives in unnamed namespaces, and so does everything that is made of it: code compiled
// for one instruction set must never serve another.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

namespace attend {
namespace {

#define ATTEND_INLINE [[gnu::always_inline]] inline

// Calls use(index) for 0 ... kCount - 1, each a constant: arrays that are indexed so stay in
// registers with every compiler.
template <int kCount, class Use>
ATTEND_INLINE void unrolled(Use use) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) __attribute__((always_inline)) {
    (use(std::integral_constant<int, kIndex>{}), ...);
  }
  (std::make_integer_sequence<int, kCount>{});
}
#define ATTEND_EACH(index) [&](auto index) __attribute__((always_inline))

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

}  // namespace
}  // namespace attend
