// A chunk of keys and values, and products of their rows.
#pragma once

#include "core/softmax_state.h"
#include "cpu/product.h"

namespace attend {
namespace {

// The keys and values at hand, as the products read them.
template <class V>
struct Chunk {
  using Operand = OperandOf<V>;
  std::int64_t from, to;
  const Operand *k = nullptr, *v = nullptr;
  std::int64_t k_stride, v_stride;
  bool cold = false;             // nobody has read it yet
  Operand *packed_k, *packed_v;  // [256][d] and [256][width of v], for what does not lie ready
  // Of the keys from `from` on (scales.h); null: none. And the memory for them, [256] each.
  const SumOf<V>*k_scales = nullptr, *v_scales = nullptr;
  SumOf<V>*scales_of_k = nullptr, *scales_of_v = nullptr;
  bool k_takes = false, v_takes = false;  // some of these rows take their scales themselves
  SumOf<V>* taken_by_k() const noexcept { return k_takes ? scales_of_k : nullptr; }
  SumOf<V>* taken_by_v() const noexcept { return v_takes ? scales_of_v : nullptr; }
  const SumOf<V>* scales_from(std::int64_t key) const noexcept {
    return k_scales == nullptr ? nullptr : k_scales + key;
  }
  // Rows of 8 or 16 bits as they lie, which nobody has packed yet: k and v are to come. Or null.
  const std::byte *raw_k = nullptr, *raw_v = nullptr;
  std::int64_t raw_k_stride = 0, raw_v_stride = 0;
  // Of a matrix instruction: rows of the last group of keys, if that is not a whole one. What is
  // read in pairs of keys lies in packed_v (forward: values) or packed_k (backward: keys).
  const Operand *k_last = nullptr, *v_last = nullptr;
  bool arranged_k = false, arranged_v = true;  // else rows
  bool waits = false;  // few rows bring keys and values group by group (matrix_few_rows.h)
  // The same as panels (product.h) or strips (pack.h): see arrange().
  const Operand *k_panels = nullptr, *v_panels = nullptr, *k_strips = nullptr, *v_strips = nullptr;
  Operand *paneled_k = nullptr, *paneled_v = nullptr, *stripped_k = nullptr, *stripped_v = nullptr;
};

// Rows of a chunk, from `row` on, times kVectors vectors of lanes: as they lie, x.a, or, if that is
// a whole tile, as panels of rows that have `width` features, if there are any. `feature` is the
// first.
template <class V, int kVectors, Layout kLayout, class Finish = Store>
void chunk_products(Operands<V> x, std::int64_t rows, const OperandOf<V>* panels, std::int64_t row,
                    std::int64_t width, std::int64_t feature = 0, Finish finish = {}) noexcept {
  if constexpr (TilesOf<V>::kPanels && kVectors == kTileVectors<V>) {
    if (panels != nullptr && row % kPanelRows<V> == 0) {
      x.a = panels + row * width + feature * kPanelRows<V>;
      x.a_stride = kPanelRows<V>;
      x.a_panel = kPanelRows<V> * width;
      return product<V, kVectors, Layout::panels>(x, rows, finish);
    }
  }
  product<V, kVectors, kLayout>(x, rows, finish);
}

// Rows of keys or values as operand b: as they lie, or as strips.
template <class V>
struct KeyRows {
  const OperandOf<V>* at;
  std::int64_t stride;
  const OperandOf<V>* strips;  // null: none
  std::int64_t count, width;
};

// c[rows][width] of a that lies across, from `first` on, a row with every step of the depth.
template <class V, class Finish = Store>
void rows_product(Operands<V> x, int rows, const KeyRows<V>& b, std::int64_t first,
                  Finish finish = {}) noexcept {
  constexpr std::int64_t kStrip = kFeatureVectors<V> * V::kLanes;
  x.b = b.strips == nullptr ? b.at + first * b.stride : b.strips + first * kStrip;
  x.b_stride = b.strips == nullptr ? b.stride : kStrip;
  const std::int64_t each = b.strips == nullptr ? b.width : kStrip;
  for (std::int64_t left = b.width; left > 0; left -= each) {
    product_of_features<V>(x, rows, (left < each ? left : each) / V::kLanes, finish);
    x.b += b.count * kStrip;
    x.c += kStrip;
  }
}

}  // namespace
}  // namespace attend
