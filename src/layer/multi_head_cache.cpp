// Multi-head attention over a cache. Keys are kept as attention reads them: projected, and turned
// to their positions if the layer is rotary.
#include "core/reporting.h"
#include "layer/check.h"
#include "layer/kv_cache.h"
#include "layer/linear.h"
#include "layer/multi_head_attention.h"
#include "layer/rotary.h"
#include "layer/rows.h"
#include "layer/scratch.h"
#include "layer/tensors.h"

namespace attend {
namespace {

using multi_head::fail;

void check_cache(const MultiHeadAttention& of, const KvCache& cache) {
  check_made("multi_head_attention", static_cast<bool>(of));
  check_on_host("multi_head_attention", "a KvCache", of.device());
  if (!cache.keys()) fail("the cache was moved from; make another");
  const MultiHeadAttentionOptions& layer = of.options();
  const KvCacheOptions& c = cache.options();
  if (c.key_heads != layer.key_heads || c.d_k != layer.d_k || c.d_v != layer.d_v ||
      (c.type != layer.type && c.type != DType::i8))
    fail("the cache is for ", c.key_heads, " key heads, d_k ", c.d_k, ", d_v ", c.d_v, ", ", c.type,
         "; the layer has ", layer.key_heads, ", ", layer.d_k, ", ", layer.d_v, ", ", layer.type);
}

// [batch, n, width], with the cache's batch.
void check_new_tokens(const char* name, const ConstTensorView& x, const KvCache& cache,
                      std::int64_t width, DType type) {
  const std::int64_t batch = cache.options().batch;
  check_readable("multi_head_attention", name, x);
  if (x.rank() != 3 || x.size(0) != batch || x.size(2) != width)
    fail(name, " is ", x.shape(), "; with this cache it must be [", batch, ", n, ", width, "]");
  if (x.dtype() != type)
    fail(name, " is ", x.dtype(), ", the layer is ", type, "; convert it, or the layer with to()");
}

// The options with the cache's lengths, pages and scales.
AttentionOptions over_cache(const KvCache& cache, AttentionOptions options) {
  if (options.key_lengths || options.block_table || options.cu_seqlens_q || options.cu_seqlens_k)
    fail("key_lengths, block_table or cu_seqlens is given; with a cache they come from it");
  if (options.key_offset) fail("key_offset is given; with a cache key 0 is at position 0");
  if (cache.k_scales() && (options.k_scales || options.v_scales))
    fail("k_scales or v_scales is given; a cache of i8 has its own");
  options.key_lengths = cache.key_lengths();
  options.block_table = cache.block_table();
  if (cache.k_scales()) options.k_scales = cache.k_scales(), options.v_scales = cache.v_scales();
  return options;
}

// The shape of the output, for these tokens.
Shape checked_shape(const MultiHeadAttention& layer, const char* name, const ConstTensorView& x,
                    const KvCache& cache) {
  const MultiHeadAttentionOptions& o = layer.options();
  check_cache(layer, cache);
  check_new_tokens(name, x, cache, o.model_dim, o.type);
  return output_shape(o, x);
}

}  // namespace

KvCache MultiHeadAttention::make_cache(std::int64_t batch, std::int64_t capacity,
                                       std::int64_t page_size, std::int64_t pages,
                                       std::optional<DType> type) const {
  check_made("multi_head_attention", static_cast<bool>(*this));
  check_on_host("multi_head_attention", "a KvCache", device());
  if (type && *type != options_.type && *type != DType::i8)
    fail("a cache of ", *type, " is asked for; the layer takes ", options_.type, " or ", DType::i8);
  return KvCache({.batch = batch,
                  .key_heads = options_.key_heads,
                  .d_k = options_.d_k,
                  .d_v = options_.d_v,
                  .capacity = capacity,
                  .page_size = page_size,
                  .pages = pages,
                  .type = type.value_or(options_.type)});
}

void MultiHeadAttention::append(const ConstTensorView& key, const ConstTensorView& value,
                                KvCache& cache, const ConstTensorView& lengths,
                                const Where& where) const {
  reporting("multi_head_attention", [&] {
    const MultiHeadAttentionOptions& o = options_;
    check_cache(*this, cache);
    check_new_tokens("key", key, cache, o.key_dim, o.type);
    check_new_tokens("value", value, cache, o.value_dim, o.type);
    const Scratch scratch(where, {{with_last(key.shape(), o.key_heads * o.d_k), o.type},
                                  {with_last(value.shape(), o.key_heads * o.d_v), o.type}});
    const auto& [k, v] = scratch.tensors;
    linear_forward({{k_, key, k}, {v_, value, v}}, where);
    if (o.rotary) {
      const TensorView heads = by_heads(k, o.key_heads);
      rotate(*o.rotary, places_after(heads, cache.key_lengths()), heads, false, where);
    }
    cache.append(by_heads(k, o.key_heads), by_heads(v, o.key_heads), lengths);
  });
}

void attention_over_cache(const MultiHeadAttention& layer, const ConstTensorView& query,
                          const KvCache& cache, const AttentionOptions& options, const AddedTo& to,
                          const Where& where) {
  const MultiHeadAttentionOptions& o = layer.options();
  checked_shape(layer, "query", query, cache);
  const AttentionOptions all = over_cache(cache, options);
  const Scratch scratch(where, {{with_last(query.shape(), o.heads * o.d_k), o.type}});
  const TensorView& q = scratch.tensors[0];
  const TensorView heads = by_heads(q, o.heads);
  linear_forward({{layer.q(), query, q}}, where);
  if (o.rotary) {
    weights_shape(heads, cache.keys(), cache.values(), all);  // throws if unsound
    rotate(*o.rotary, query_places(heads, cache.keys(), all), heads, false, where);
  }
  attend_and_project(layer, heads, cache.keys(), cache.values(), all, {}, to, where);
}

void attention_decode(const MultiHeadAttention& layer, const ConstTensorView& x, KvCache& cache,
                      const AttentionOptions& options, const ConstTensorView& lengths,
                      const AddedTo& to, const Where& where) {
  checked_shape(layer, "x", x, cache);
  if (options.query_offset.all() || options.query_offset.each())
    fail("query_offset is given; with a cache the new tokens follow those it holds");
  check_cache_apart("multi_head_attention", cache, "x", x);
  Undo undo(cache, where);
  layer.append(x, x, cache, lengths, where);
  AttentionOptions placed = options;
  placed.query_offset = undo.lengths();
  attention_over_cache(layer, x, cache, placed, to, where);
  undo.keep();
}

void MultiHeadAttention::attend_into(const ConstTensorView& query, const KvCache& cache,
                                     const TensorView& y, const AttentionOptions& options,
                                     const Where& where) const {
  reporting("multi_head_attention", [&] {
    const Shape shape = checked_shape(*this, "query", query, cache);
    check_output(*this, y, shape, options, {{"query", query}});
    check_apart_from_tensors("multi_head_attention", "y", y, cache);
    attention_over_cache(*this, query, cache, options, {y}, where);
  });
}

Tensor MultiHeadAttention::attend(const ConstTensorView& query, const KvCache& cache,
                                  const AttentionOptions& options, const Where& where) const {
  return reporting("multi_head_attention", [&] {
    Tensor y =
        where.context().make_tensor(checked_shape(*this, "query", query, cache), options_.type);
    attention_over_cache(*this, query, cache, options, {y}, where);
    return y;
  });
}

void MultiHeadAttention::forward_into(const ConstTensorView& x, KvCache& cache, const TensorView& y,
                                      const AttentionOptions& options,
                                      const ConstTensorView& lengths, const Where& where) const {
  reporting("multi_head_attention", [&] {
    const Shape shape = checked_shape(*this, "x", x, cache);
    check_output(*this, y, shape, options, {{"x", x}, {"lengths", lengths}});
    check_apart_from_tensors("multi_head_attention", "y", y, cache);
    attention_decode(*this, x, cache, options, lengths, {y}, where);
  });
}

Tensor MultiHeadAttention::forward(const ConstTensorView& x, KvCache& cache,
                                   const AttentionOptions& options, const ConstTensorView& lengths,
                                   const Where& where) const {
  return reporting("multi_head_attention", [&] {
    Tensor y = where.context().make_tensor(checked_shape(*this, "x", x, cache), options_.type);
    attention_decode(*this, x, cache, options, lengths, {y}, where);
    return y;
  });
}

}  // namespace attend
