// What the products of whole matrices share (gemm.h, gemm_few.h, gemm_narrow.h): of which type b
// is, and where the sums go.
#pragma once

#include "core/product.h"
#include "cpu/elements.h"
#include "cpu/product.h"

namespace attend {
namespace {

// What the tiles of V multiply; c is made of their sums.
template <class V>
using MatricesOf = Matrices<OperandOf<V>>;

// Calls use(E{}) with the type of a b of fewer bits than V's.
template <class V, class Use>
ATTEND_INLINE auto with_narrow(DType type, Use use) {
  if constexpr (HasHalves<V, bf16>) {
    if (type == DType::bf16) return use(bf16{});
    if (type == DType::f16) return use(f16{});
  }
  return use(std::int8_t{});
}

// Calls use(b) with a b that is not packed, in its type.
template <class V, class Use>
ATTEND_INLINE auto with_b(const MatricesOf<V>& p, Use use) {
  if (!p.is_narrow()) return use(p.b);
  return with_narrow<V>(p.b_type, [&]<class E>(E) { return use(static_cast<const E*>(p.narrow)); });
}

// The sums of a tile go to c: stored or, after the first block of the depth, added; with the bias
// after the last one: before it the scales of the columns, if b has them. `columns` of c are there.
template <class V>
struct AddToC {
  using Sum = SumOf<V>;
  bool first;
  const Sum* bias;  // of the panel, all its columns; null: none, or not yet
  std::int64_t columns;
  const Sum* scales = nullptr;  // likewise

  template <int kRows, int kVectors>
  ATTEND_INLINE void operator()(const Operands<V>& x, V (&sum)[kRows][kVectors]) const {
    if (columns < kVectors * V::kLanes) {  // not all of them: by way of memory
      alignas(64) Sum sums[kRows][kVectors * V::kLanes];
      unrolled<kRows>(ATTEND_EACH(r) { store(sum[r], sums[r]); });
      for (int r = 0; r < kRows; ++r) some(sums[r], x.c + r * x.c_stride);
      return;
    }
    if (!first) unrolled<kRows>(ATTEND_EACH(r) { add_to(x.c + r * x.c_stride, sum[r]); });
    if (scales != nullptr) {
      V by[kVectors];
      load(scales, by);
      unrolled<kRows>(ATTEND_EACH(r) {
        unrolled<kVectors>(ATTEND_EACH(n) { sum[r][n] = sum[r][n] * by[n]; });
      });
    }
    if (bias != nullptr) {
      V b[kVectors];
      load(bias, b);
      unrolled<kRows>(ATTEND_EACH(r) { add_row(sum[r], b); });
    }
    Store{}(x, sum);
  }

 private:
  template <int kVectors>
  ATTEND_INLINE static void add_to(const Sum* c, V (&sum)[kVectors]) {
    unrolled<kVectors>(ATTEND_EACH(n) { sum[n] = V::load(c + n * V::kLanes) + sum[n]; });
  }

  // One row of fewer columns than a tile has.
  [[gnu::noinline]] void some(const Sum* sums, Sum* c) const {
    for (std::int64_t n = 0; n < columns; n += V::kLanes) {
      const std::int64_t left = columns - n;
      const bool all = left >= V::kLanes;
      V sum = V::load(sums + n);
      if (!first) sum = (all ? V::load(c + n) : V::load_first(c + n, left)) + sum;
      if (scales != nullptr) sum = sum * V::load(scales + n);
      if (bias != nullptr) sum = sum + V::load(bias + n);
      if (all) sum.store(c + n);
      else sum.store_first(c + n, left);
    }
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

// Only sums of many blocks make a task last long.
[[gnu::always_inline]] inline bool stops_at(const MatrixRange& range, std::int64_t k) noexcept {
  return k != 0 && k % (16 * kSumBlock) == 0 && must_stop(range.interrupt);
}

}  // namespace
}  // namespace attend
