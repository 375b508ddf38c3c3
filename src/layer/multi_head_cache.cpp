// Multi-head attention over a cache. Keys are kept as attention reads them: projected, and turned
// to their positions if the layer is rotary.
#include "core/reporting.h"
#include "core/text.h"
#include "layer/check.h"
#include "layer/multi_head_attention.h"
#include "layer/rotary.h"

namespace attend {
namespace {

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw InvalidArgument(text("multi_head_attention: ", parts...));
}

void check_cache(const MultiHeadAttentionOptions& layer, const KvCache& cache) {
  check_made("multi_head_attention", layer.model_dim > 0);
  const KvCacheOptions& c = cache.options();
  if (c.key_heads != layer.key_heads || c.d_k != layer.d_k || c.d_v != layer.d_v ||
      c.type != layer.type)
    fail("the cache is for ", c.key_heads, " key heads, d_k ", c.d_k, ", d_v ", c.d_v, ", ", c.type,
         "; the layer has ", layer.key_heads, ", ", layer.d_k, ", ", layer.d_v, ", ", layer.type);
}

// [batch, n, width], with the cache's batch.
void check_tokens(const char* name, const ConstTensorView& x, const KvCache& cache,
                  std::int64_t width, DType type) {
  const std::int64_t batch = cache.options().batch;
  check_readable("multi_head_attention", name, x);
  if (x.rank() != 3 || x.size(0) != batch || x.size(2) != width)
    fail(name, " is ", x.shape(), "; with this cache it must be [", batch, ", n, ", width, "]");
  if (x.dtype() != type) fail(name, " is ", x.dtype(), ", the layer ", type);
}

// The options with the cache's lengths and pages.
AttentionOptions over_cache(const KvCache& cache, AttentionOptions options) {
  if (options.key_lengths || options.block_table || options.cu_seqlens_q || options.cu_seqlens_k)
    fail("key_lengths, block_table or cu_seqlens is given; with a cache they come from it");
  if (options.key_offset) fail("key_offset is given; with a cache key 0 is at position 0");
  options.key_lengths = cache.key_lengths();
  options.block_table = cache.block_table();
  return options;
}

// Where the tokens go that are appended next: [batch].
Tensor lengths_of(const KvCache& cache) { return Tensor::copy_of(cache.key_lengths()); }

// Forgets what was appended, unless it is to stay.
class Undo {
 public:
  explicit Undo(KvCache& cache) : cache_(cache), lengths_(lengths_of(cache)) {}
  ~Undo() {
    if (!keep_)
      for (std::int64_t b = 0; b < lengths_.size(0); ++b)
        cache_.truncate(b, lengths_.at<std::int64_t>({b}));
  }
  Undo(const Undo&) = delete;
  Undo& operator=(const Undo&) = delete;
  const Tensor& lengths() const noexcept { return lengths_; }
  void keep() noexcept { keep_ = true; }

 private:
  KvCache& cache_;
  Tensor lengths_;
  bool keep_ = false;
};

}  // namespace

KvCache MultiHeadAttention::make_cache(std::int64_t batch, std::int64_t capacity,
                                       std::int64_t page_size, std::int64_t pages) const {
  check_made("multi_head_attention", static_cast<bool>(*this));
  return KvCache({.batch = batch,
                  .key_heads = options_.key_heads,
                  .d_k = options_.d_k,
                  .d_v = options_.d_v,
                  .capacity = capacity,
                  .page_size = page_size,
                  .pages = pages,
                  .type = options_.type});
}

void MultiHeadAttention::append(const ConstTensorView& key, const ConstTensorView& value,
                                KvCache& cache, const ConstTensorView& lengths,
                                const Where& where) const {
  reporting("multi_head_attention", [&] {
    const MultiHeadAttentionOptions& o = options_;
    check_cache(o, cache);
    check_tokens("key", key, cache, o.key_dim, o.type);
    check_tokens("value", value, cache, o.value_dim, o.type);
    Tensor k = k_.forward(key, where);
    const Tensor v = v_.forward(value, where);
    if (o.rotary) {
      std::vector<std::int64_t> positions;
      for (std::int64_t b = 0; b < key.size(0); ++b)
        for (std::int64_t i = 0; i < key.size(1); ++i) positions.push_back(cache.length(b) + i);
      rotate(*o.rotary, positions, by_heads(k, o.key_heads), false, where);
    }
    cache.append(by_heads(k.view(), o.key_heads), by_heads(v.view(), o.key_heads), lengths);
  });
}

Tensor MultiHeadAttention::attend(const ConstTensorView& query, const KvCache& cache,
                                  const AttentionOptions& options, const Where& where) const {
  return reporting("multi_head_attention", [&]() -> Tensor {
    const MultiHeadAttentionOptions& o = options_;
    check_cache(o, cache);
    check_tokens("query", query, cache, o.model_dim, o.type);
    const AttentionOptions all = over_cache(cache, options);
    Tensor q = q_.forward(query, where);
    if (o.rotary) {
      const ConstTensorView heads = by_heads(q.view(), o.heads);
      weights_shape(heads, cache.keys(), cache.values(), all);  // throws if unsound
      rotate(*o.rotary, query_positions(heads, cache.keys(), all), by_heads(q, o.heads), false,
             where);
    }
    Tensor concat =
        where.context().make_tensor({query.size(0), query.size(1), o.heads * o.d_v}, o.type);
    attention(by_heads(q.view(), o.heads), cache.keys(), cache.values(), by_heads(concat, o.heads),
              all, {}, where);
    return o_ ? o_.forward(concat, where) : std::move(concat);
  });
}

Tensor MultiHeadAttention::forward(const ConstTensorView& x, KvCache& cache,
                                   const AttentionOptions& options, const ConstTensorView& lengths,
                                   const Where& where) const {
  return reporting("multi_head_attention", [&]() -> Tensor {
    check_cache(options_, cache);
    check_tokens("x", x, cache, options_.model_dim, options_.type);
    if (options.query_offset.all() || options.query_offset.each())
      fail("query_offset is given; with a cache the new tokens follow those it holds");
    Undo undo(cache);
    append(x, x, cache, lengths, where);
    AttentionOptions placed = options;
    placed.query_offset = undo.lengths();
    Tensor y = attend(x, cache, placed, where);
    undo.keep();
    return y;
  });
}

}  // namespace attend
