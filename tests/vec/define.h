// Words<T> of the vector type V. Included after an instruction set's header, in a file that is
// compiled for it; all of it stays in that file.
#pragma once

#include "cpu/exp2.h"
#include "vec/words.h"

namespace attend {
namespace {

template <class V>
struct Define {
  using T = typename V::T;
  using D = typename V::Double;

  static void fma_lanes(const T* a, const T* b, const T* c, T* r) {
    if constexpr (V::kByLane) {
      unrolled<V::kLanes>(ATTEND_EACH(n) {
        fma_lane<n>(V::load(a), V::load(b), V::load(c)).store(r + n * V::kLanes);
      });
    }
  }
  template <class From>
  static void add(From a, const T* b, T* sum) {
    V s = V::load(sum);
    add_product(a, V::load(b), s);
    s.store(sum);
  }
  static void widen(const T* a, double* r) {
    unrolled<V::kDoubles>(ATTEND_EACH(n) { wide<n>(V::load(a)).store(r + n * D::kLanes); });
  }
  static void narrow(const double* a, T* r) {
    D doubles[V::kDoubles];
    unrolled<V::kDoubles>(ATTEND_EACH(n) { doubles[n] = D::load(a + n * D::kLanes); });
    V::narrowed(doubles).store(r);
  }
  static void transpose_rows(T* at) {
    V rows[V::kLanes];
    unrolled<V::kLanes>(ATTEND_EACH(n) { rows[n] = V::load(at + n * V::kLanes); });
    transpose(rows);
    unrolled<V::kLanes>(ATTEND_EACH(n) { rows[n].store(at + n * V::kLanes); });
  }

  template <class Half>
  static constexpr test::HalfWords<Half> half_words() {
    return {
        .widened = [](const Half* a, float* r) { V::widened(a).store(r); },
        .packed =
            [](const Half* a, float* r) {
              V four[4];
              load_narrow(a, four);
              store(four, r);
            },
        .rounded =
            [](const double* a, Half* r) {
              D doubles[V::kDoubles];
              unrolled<V::kDoubles>(ATTEND_EACH(n) { doubles[n] = D::load(a + n * D::kLanes); });
              V::odd(doubles).rounded(r);
            },
        .clear =
            [](const float* a, Half* r) {
              Rounder<Half> rounder;
              rounder.store(V::load(a), V::load(a + V::kLanes), r);
              return !rounder.doubtful();
            }};
  }

  static constexpr test::Words<T> words() {
    return {
        .lanes = V::kLanes,
        .lowest_power = V::kLowestPower,
        .whole = Exp2<T>::kWhole,
        .copy = [](const T* a, T* r) { V::load(a).store(r); },
        .load_first = [](const T* a, std::int64_t n, T* r) { V::load_first(a, n).store(r); },
        .store_first = [](const T* a, std::int64_t n, T* r) { V::load(a).store_first(r, n); },
        .set = [](T x, T* r) { V::set(x).store(r); },
        .add = [](const T* a, const T* b, T* r) { (V::load(a) + V::load(b)).store(r); },
        .subtract = [](const T* a, const T* b, T* r) { (V::load(a) - V::load(b)).store(r); },
        .multiply = [](const T* a, const T* b, T* r) { (V::load(a) * V::load(b)).store(r); },
        .divide = [](const T* a, const T* b, T* r) { (V::load(a) / V::load(b)).store(r); },
        .fma = [](const T* a, const T* b, const T* c,
                  T* r) { fma(V::load(a), V::load(b), V::load(c)).store(r); },
        .add_product = [](const T* a, const T* b, T* sum) { add(V::load(a), b, sum); },
        .add_product_of_first = [](const T* a, const T* b, T* sum) { add(a, b, sum); },
        .fma_lane = V::kByLane ? fma_lanes : nullptr,
        .larger = [](const T* a, const T* b, T* r) { larger(V::load(a), V::load(b)).store(r); },
        .ceiling = [](const T* a, T* r) { ceiling(V::load(a)).store(r); },
        .scaled = [](const T* a, const T* n, T* r) { scaled(V::load(a), V::load(n)).store(r); },
        .select_less =
            [](const T* a, const T* b, T* r) {
              select(less(V::load(a), V::load(b)), V::set(1), V::set(2)).store(r);
            },
        .all_finite = [](const T* a) { return all_finite(V::load(a)); },
        .wide = widen,
        .narrowed = narrow,
        .transpose = transpose_rows,
        .exp2 = [](const T* a, T* r) { exp2_of(V::load(a)).store(r); },
        .tanh = [](const T* a, T* r) { tanh_of(V::load(a)).store(r); },
    };
  }
};

}  // namespace
}  // namespace attend
