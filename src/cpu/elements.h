// Elements of any floating-point type as vectors, and back: 16-bit numbers in vectors of float. And
// whole numbers of 8 bits, which are only read.
#pragma once

#include "core/strided.h"
#include "cpu/vec.h"

namespace attend {
namespace {

// Whether there are vectors V of numbers of type E, of half their size or less.
template <class V, class E>
concept HasHalves = requires(E* p) {
  V::widened(p);
};

template <class V, class E>
ATTEND_INLINE V load_elements(const E* from) {
  if constexpr (HasHalves<V, E>) return V::widened(from);
  else return V::load(from);
}

template <class V, class E>
ATTEND_INLINE void store_elements(V v, E* to) {
  if constexpr (HasHalves<V, E>) v.rounded(to);
  else v.store(to);
}

// From doubles, rounded once.
template <class V, class E>
ATTEND_INLINE void store_doubles(const typename V::Double* doubles, E* to) {
  if constexpr (HasHalves<V, E>) V::odd(doubles).rounded(to);
  else V::narrowed(doubles).store(to);
}

// The first n elements, or all lanes; what is behind them is not touched, and 0.
template <class V, class E>
ATTEND_INLINE V load_elements(const E* from, std::int64_t n) {
  if (n >= V::kLanes) return load_elements<V>(from);
  E some[V::kLanes] = {};
  for (std::int64_t x = 0; x < n; ++x) some[x] = from[x];
  return load_elements<V>(some);
}

// The same of fewer than all lanes.
template <class V, class E>
ATTEND_INLINE V load_first_elements(const E* from, std::int64_t n) {
  if constexpr (HasHalves<V, E>) return load_elements<V>(from, n);
  else return V::load_first(from, n);
}

template <class V, class E>
ATTEND_INLINE void store_elements(V v, E* to, std::int64_t n) {
  if (n >= V::kLanes) return store_elements(v, to);
  E some[V::kLanes];
  store_elements(v, some);
  for (std::int64_t x = 0; x < n; ++x) to[x] = some[x];
}

template <class V, class E, class T = typename V::T>
void convert_elements(const E* from, std::int64_t stride, std::int64_t count, T* to) noexcept {
  std::int64_t x = 0;
  if constexpr (HasHalves<V, E>) {
    constexpr std::int64_t kSome = 4 * V::kLanes;
    const auto take = [&](auto n) __attribute__((always_inline)) {
      store_elements(V::widened(from + x + n * V::kLanes), to + x + n * V::kLanes);
    };
    if (stride == 1) {
      for (; x + kSome <= count; x += kSome) unrolled<4>(take);
      for (; x + V::kLanes <= count; x += V::kLanes) take(At<0>{});
    }
  }
  for (; x < count; ++x) {
    const E element = from[x * stride];
    if constexpr (std::is_integral_v<E>) to[x] = static_cast<T>(static_cast<float>(element));
    else to[x] = static_cast<T>(widened(element));
  }
}

// value(x, k): the k-th vector of doubles of elements x, x + 1, ... As many as are whole vectors
// are stored, each element rounded once to the type of `to`; gives how many. None if there are no
// such vectors.
template <class V, class E, class Value>
ATTEND_INLINE std::int64_t store_rounded(E* to, std::int64_t count, Value value) {
  std::int64_t x = 0;
  if constexpr (std::is_same_v<E, typename V::T> || HasHalves<V, E>) {
    typename V::Double doubles[V::kDoubles];
    for (; x + V::kLanes <= count; x += V::kLanes) {
      unrolled<V::kDoubles>(ATTEND_EACH(k) { doubles[k] = value(x, k); });
      store_doubles<V>(doubles, to + x);
    }
  }
  return x;
}

// Calls use(V{}, E{}) with the vectors for tensors of this type.
template <class Float, class Double, class Use>
ATTEND_INLINE void with_elements(DType type, Use use) {
  switch (type) {
    case DType::f64: return use(Double{}, double{});
    case DType::f32: return use(Float{}, float{});
    case DType::bf16: return use(Float{}, bf16{});
    default: return use(Float{}, f16{});
  }
}

}  // namespace
}  // namespace attend
