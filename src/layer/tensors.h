// What a layer writes into the caller's memory shares none with the layer's own tensors, nor with
// those of a cache. They are visited where they are: a list of them would cost a call of one row
// more than the rest of its checks.
#pragma once

#include "api/overlap.h"
#include "layer/check.h"

#include <attend/model.h>

namespace attend {

// Each tensor of a layer or a cache, also those that are none: visit(tensor). All are contiguous.
struct LayerTensors {
  template <class Visit>
  static void each(const Linear& layer, const Visit& visit) {
    visit(layer.weight());
    visit(layer.weight_scales());
    visit(layer.bias());
  }
  template <class Visit>
  static void each(const Norm& layer, const Visit& visit) {
    visit(layer.weight_);
    visit(layer.bias_);
  }
  template <class Visit>
  static void each(const Embedding& layer, const Visit& visit) {
    visit(layer.weight());
  }
  template <class Visit>
  static void each(const LearnedPositions& layer, const Visit& visit) {
    visit(layer.weight());
  }
  template <class Visit>
  static void each(const FeedForward& layer, const Visit& visit) {
    for (const Linear* part : {&layer.up_, &layer.gate_, &layer.down_}) each(*part, visit);
  }
  template <class Visit>
  static void each(const MultiHeadAttention& layer, const Visit& visit) {
    for (const Linear* part : {&layer.q(), &layer.k(), &layer.v(), &layer.o()}) each(*part, visit);
  }
  template <class Visit>
  static void each(const AttentionBlock& layer, const Visit& visit) {
    each(layer.attention_, visit);
    if (layer.cross_) each(layer.cross_, visit);
    if (layer.feed_forward_) each(layer.feed_forward_, visit);
    for (const Norm* part : {&layer.norm_1_, &layer.norm_2_, &layer.norm_3_}) each(*part, visit);
  }
  template <class Visit>
  static void each(const LanguageModel& layer, const Visit& visit) {
    each(layer.tokens_, visit);
    each(layer.positions_, visit);
    for (const AttentionBlock& block : layer.blocks_) each(block, visit);
    each(layer.norm_, visit);
    each(layer.head_, visit);
  }
  template <class Visit>
  static void each(const KvCache& cache, const Visit& visit) {
    visit(cache.keys());
    visit(cache.values());
    visit(cache.k_scales());
    visit(cache.v_scales());
    visit(cache.key_lengths());
    visit(cache.block_table());
  }
};

inline const void* address_of(const ConstTensorView& view) noexcept { return view.data(); }
inline const void* address_of(const Tensor& tensor) noexcept { return tensor.view().data(); }

// Whether one of the tensors lies between the view's first and last byte, or around them.
template <class Owner>
bool is_near_tensors(const ConstTensorView& view, const Owner& owner) {
  const ByteRange bytes = byte_range_of(view);
  bool near = false;
  LayerTensors::each(owner, [&](const auto& tensor) {
    if (!tensor) return;
    std::int64_t size = size_of(tensor.dtype());
    for (const std::int64_t n : tensor.shape()) size *= n;
    const auto first = reinterpret_cast<std::intptr_t>(address_of(tensor));
    near |= bytes.first < first + size && bytes.last >= first;
  });
  return near;
}

// y, which is written, overlaps no parameter of this layer.
template <class Layer>
void check_apart_from_tensors(const char* name_of_layer, const char* name, const ConstTensorView& y,
                              const Layer& layer) {
  if (!is_near_tensors(y, layer)) return;
  for (const NamedView& parameter : layer.parameters())
    check_apart(name_of_layer, name, y, parameter.name.c_str(), parameter.tensor);
}

inline void check_apart_from_tensors(const char* name_of_layer, const char* name,
                                     const ConstTensorView& y, const KvCache& cache) {
  if (!is_near_tensors(y, cache)) return;
  check_apart(name_of_layer, name, y, "cache.keys", cache.keys());
  check_apart(name_of_layer, name, y, "cache.values", cache.values());
  check_apart(name_of_layer, name, y, "cache.k_scales", cache.k_scales());
  check_apart(name_of_layer, name, y, "cache.v_scales", cache.v_scales());
  check_apart(name_of_layer, name, y, "cache.key_lengths", cache.key_lengths());
  check_apart(name_of_layer, name, y, "cache.block_table", cache.block_table());
}

// x, which is read after tokens were appended to the cache, overlaps nothing of it.
inline void check_cache_apart(const char* name_of_layer, const KvCache& cache, const char* name,
                              const ConstTensorView& x) {
  if (!is_near_tensors(x, cache)) return;
  check_apart(name_of_layer, "cache.keys", cache.keys(), name, x);
  check_apart(name_of_layer, "cache.values", cache.values(), name, x);
  if (!cache.k_scales()) return;
  check_apart(name_of_layer, "cache.k_scales", cache.k_scales(), name, x);
  check_apart(name_of_layer, "cache.v_scales", cache.v_scales(), name, x);
}

}  // namespace attend
