// Where the sums of a product of whole matrices go (gemm.h, gemm_few.h).
#pragma once

#include "core/product.h"
#include "cpu/product.h"

namespace attend {
namespace {

// What the tiles of V multiply and add up.
template <class V>
using MatricesOf = Matrices<SumOf<V>, OperandOf<V>>;

// The sums of a tile go to c: stored or, after the first block of the depth, added; with the bias
// after the last one. `columns` of c are there.
template <class V>
struct AddToC {
  using Sum = SumOf<V>;
  bool first;
  const Sum* bias;  // of the panel, all its columns; null: none, or not yet
  std::int64_t columns;

  template <int kRows, int kVectors>
  ATTEND_INLINE void operator()(const Operands<V>& x, V (&sum)[kRows][kVectors]) const {
    unrolled<kVectors>(ATTEND_EACH(n) {
      const std::int64_t left = columns - n * V::kLanes;
      if (left <= 0) return;
      const bool all = left >= V::kLanes;
      Sum* const c = x.c + n * V::kLanes;
      if (!first)
        unrolled<kRows>(ATTEND_EACH(r) {
          const Sum* from = c + r * x.c_stride;
          sum[r][n] = (all ? V::load(from) : V::load_first(from, left)) + sum[r][n];
        });
      if (bias != nullptr) {
        const V b = V::load(bias + n * V::kLanes);
        unrolled<kRows>(ATTEND_EACH(r) { sum[r][n] = sum[r][n] + b; });
      }
      unrolled<kRows>(ATTEND_EACH(r) {
        if (all) sum[r][n].store(c + r * x.c_stride);
        else sum[r][n].store_first(c + r * x.c_stride, left);
      });
    });
  }
};

// Sums of columns x rows go to c, rows x columns.
template <class V>
struct AddTurned {
  using Sum = SumOf<V>;
  bool first;       // stored, not added
  const Sum* bias;  // of all columns; null: none, or not yet
  const Sum* c;     // of the first of these rows
  std::int64_t c_row;
  std::int64_t rows;

  template <int kColumns, int kVectors>
  ATTEND_INLINE void operator()(const Operands<V>& x, V (&sum)[kColumns][kVectors]) const {
    alignas(64) Sum turned[kColumns][kVectors * V::kLanes];
    unrolled<kColumns>(ATTEND_EACH(n) {
      unrolled<kVectors>(ATTEND_EACH(r) { sum[n][r].store(turned[n] + r * V::kLanes); });
    });
    const Sum* const added = bias == nullptr ? nullptr : bias + (x.c - c);
    for (std::int64_t r = 0; r < rows && r < kVectors * V::kLanes; ++r) {
      Sum* const to = x.c + r * c_row;
      unrolled<kColumns>(ATTEND_EACH(n) {
        Sum sum_of_all = first ? turned[n][r] : to[n] + turned[n][r];
        if (added != nullptr) sum_of_all = sum_of_all + added[n];
        to[n] = sum_of_all;
      });
    }
  }
};

}  // namespace
}  // namespace attend
