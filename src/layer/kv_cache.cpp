// A dense cache is a paged one in which every sequence holds one page of full capacity for good.
#include <attend/kv_cache.h>

#include "core/reporting.h"
#include "core/text.h"
#include "layer/check.h"
#include "layer/quantise.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace attend {
namespace {

// Besides the tensors, only messages take memory.
template <class... Parts>
[[noreturn]] void fail_cache(const Parts&... parts) {
  reporting("kv_cache", [&] { throw InvalidArgument(text("kv_cache: ", parts...)); });
  __builtin_unreachable();
}

std::int64_t ceiling(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0); }

void check(const KvCacheOptions& options) {
  const auto at_least = [](const char* name, std::int64_t value, std::int64_t least) {
    if (value < least) fail_cache(name, " is ", value, "; it must be at least ", least);
  };
  at_least("batch", options.batch, 0);
  at_least("key_heads", options.key_heads, 1);
  at_least("d_k", options.d_k, 1);
  at_least("d_v", options.d_v, 1);
  at_least("capacity", options.capacity, 1);
  at_least("page_size", options.page_size, 0);
  at_least("pages", options.pages, 0);
  if (options.page_size == 0 && options.pages != 0)
    fail_cache("pages is ", options.pages, ", but page_size is 0 (dense)");
  if (!is_floating_point(options.type) && options.type != DType::i8)
    fail_cache("type is ", options.type, "; it must be f64, f32, bf16, f16 or i8");
}

KvCacheOptions filled_in(KvCacheOptions options) {
  if (options.d_v == 0) options.d_v = options.d_k;
  check(options);
  if (options.page_size == 0 || options.pages != 0) return options;
  const std::int64_t most = ceiling(options.capacity, options.page_size);
  if (__builtin_mul_overflow(options.batch, most, &options.pages))
    fail_cache("batch ", options.batch, " times ", most, " pages each is too many");
  return options;
}

// x must be [batch, key_heads, n, d] of the cache's type, or of one that it quantises, in host
// memory.
void check_rows(const KvCacheOptions& options, const char* name, const ConstTensorView& x,
                std::int64_t d) {
  check_readable("kv_cache", name, x);
  if (x.rank() != 4 || x.size(0) != options.batch || x.size(1) != options.key_heads ||
      x.size(3) != d)
    fail_cache(name, " is ", x.shape(), "; it must be [", options.batch, ", ", options.key_heads,
               ", n, ", d, "]");
  if (options.type == DType::i8 && !is_floating_point(x.dtype()))
    fail_cache(name, " is ", x.dtype(), "; a cache of i8 quantises f64, f32, bf16 or f16");
  if (options.type != DType::i8 && x.dtype() != options.type)
    fail_cache(name, " is ", x.dtype(), ", the cache ", options.type);
}

Tensor zeros(const Shape& shape, DType type) {
  try {
    return Tensor(shape, type);
  } catch (const InvalidArgument& error) {  // more than memory can be
    fail_cache(error.what());
  }
}

std::int64_t offset_of(const ConstTensorView& t, std::int64_t a, std::int64_t h, std::int64_t i) {
  return a * t.strides()[0] + h * t.strides()[1] + i * t.strides()[2];
}

// The token's row of every head, from x[b, :, i, :] to store[page, :, place, :].
void copy_token(const ConstTensorView& x, std::int64_t b, std::int64_t i, const TensorView& store,
                std::int64_t page, std::int64_t place) {
  const std::int64_t size = size_of(x.dtype());
  for (std::int64_t h = 0; h < x.size(1); ++h) {
    const auto* from = static_cast<const std::byte*>(x.data()) + size * offset_of(x, b, h, i);
    auto* to = static_cast<std::byte*>(store.data()) + size * offset_of(store, page, h, place);
    for (std::int64_t c = 0; c < x.size(3); ++c)
      std::memcpy(to + c * size, from + c * size * x.strides()[3], static_cast<std::size_t>(size));
  }
}

// The same, quantised, the scale of each row to scales[page, :, place].
void quantise_token(const ConstTensorView& x, std::int64_t b, std::int64_t i,
                    const TensorView& store, const TensorView& scales, std::int64_t page,
                    std::int64_t place) {
  with_type(x.dtype(), [&]<class E>(E) {
    for (std::int64_t h = 0; h < x.size(1); ++h)
      static_cast<float*>(scales.data())[offset_of(scales, page, h, place)] = quantise_row(
          static_cast<const E*>(x.data()) + offset_of(x, b, h, i), x.strides()[3], x.size(3),
          static_cast<std::int8_t*>(store.data()) + offset_of(store, page, h, place));
  });
}

}  // namespace

KvCache::KvCache(const KvCacheOptions& options) : options_(filled_in(options)) {
  const bool dense = options_.page_size == 0;
  const std::int64_t pages = dense ? options_.batch : options_.pages;
  const std::int64_t size = dense ? options_.capacity : options_.page_size;
  // Zeros: what was never written is hidden, but may be read along with what is not.
  keys_ = zeros({pages, options_.key_heads, size, options_.d_k}, options_.type);
  values_ = zeros({pages, options_.key_heads, size, options_.d_v}, options_.type);
  if (options_.type == DType::i8) {
    k_scales_ = zeros({pages, options_.key_heads, size}, DType::f32);
    v_scales_ = zeros({pages, options_.key_heads, size}, DType::f32);
  }
  lengths_ = zeros({options_.batch}, DType::i64);
  table_ = zeros({options_.batch, ceiling(options_.capacity, size)}, DType::i64);
  if (dense) {
    for (std::int64_t b = 0; b < options_.batch; ++b) table_.at<std::int64_t>({b, 0}) = b;
  } else {
    reporting("kv_cache", [&] { free_.resize(static_cast<std::size_t>(options_.pages)); });
    std::iota(free_.rbegin(), free_.rend(), 0);
    free_pages_ = options_.pages;
  }
}

std::int64_t KvCache::length(std::int64_t b) const {
  if (b < 0 || b >= options_.batch)
    fail_cache("there is no sequence ", b, "; there are ", options_.batch);
  if (!lengths_) fail_cache("the cache was moved from; make another");
  return lengths_.at<std::int64_t>({b});
}

ConstTensorView KvCache::block_table() const noexcept {
  return options_.page_size == 0 ? ConstTensorView() : ConstTensorView(table_);
}

// Pages that a sequence of this length holds.
std::int64_t KvCache::pages_of(std::int64_t length) const noexcept {
  return options_.page_size == 0 ? 1 : ceiling(length, options_.page_size);
}

void KvCache::append(const ConstTensorView& k, const ConstTensorView& v,
                     const ConstTensorView& lengths) {
  reporting("kv_cache", [&] {
    check_rows(options_, "k", k, options_.d_k);
    check_rows(options_, "v", v, options_.d_v);
    const std::int64_t n = k.size(2);
    if (v.size(2) != n) fail_cache("k has ", n, " tokens, v ", v.size(2));
    if (lengths) check_readable("kv_cache", "lengths", lengths);
    if (lengths && (lengths.rank() != 1 || lengths.size(0) != options_.batch ||
                    (lengths.dtype() != DType::i64 && lengths.dtype() != DType::i32)))
      fail_cache("lengths is ", lengths.shape(), " ", lengths.dtype(), "; it must be [",
                 options_.batch, "], i32 or i64");
    const auto apart = [&](const char* name, const ConstTensorView& written) {
      if (!written) return;
      check_apart("kv_cache", name, written, "k", k);
      check_apart("kv_cache", name, written, "v", v);
      check_apart("kv_cache", name, written, "lengths", lengths);
    };
    apart("cache.keys", keys_);
    apart("cache.values", values_);
    apart("cache.k_scales", k_scales_);
    apart("cache.v_scales", v_scales_);
    apart("cache.key_lengths", lengths_);
    apart("cache.block_table", table_);
    const auto added = [&](std::int64_t b) {
      if (!lengths) return n;
      return lengths.dtype() == DType::i32 ? lengths.at<std::int32_t>({b})
                                           : lengths.at<std::int64_t>({b});
    };
    std::int64_t needed = 0;
    for (std::int64_t b = 0; b < options_.batch; ++b) {
      const std::int64_t held = length(b), more = added(b);
      if (more < 0 || more > n)
        fail_cache("lengths[", b, "] is ", more, "; it must be from 0 to the ", n, " tokens given");
      if (more > options_.capacity - held)
        fail_cache("sequence ", b, " holds ", held, " tokens and ", more,
                   " more are given; the capacity is ", options_.capacity);
      needed += pages_of(held + more) - pages_of(held);
    }
    if (needed > free_pages())
      fail_cache(needed, " more pages of ", options_.page_size, " tokens are needed, ",
                 free_pages(), " of ", options_.pages, " are free");

    const std::int64_t size = keys_.size(2);
    for (std::int64_t b = 0; b < options_.batch; ++b) {
      std::int64_t& held = lengths_.at<std::int64_t>({b});
      const std::int64_t end = held + added(b);
      for (std::int64_t page = pages_of(held); page < pages_of(end); ++page) {
        table_.at<std::int64_t>({b, page}) = free_[static_cast<std::size_t>(--free_pages_)];
      }
      for (std::int64_t i = 0; held < end; ++i, ++held) {
        const std::int64_t page = table_.at<std::int64_t>({b, held / size});
        if (k_scales_) {
          quantise_token(k, b, i, keys_, k_scales_, page, held % size);
          quantise_token(v, b, i, values_, v_scales_, page, held % size);
        } else {
          copy_token(k, b, i, keys_, page, held % size);
          copy_token(v, b, i, values_, page, held % size);
        }
      }
    }
  });
}

void KvCache::truncate(std::int64_t b, std::int64_t length) {
  const std::int64_t held = this->length(b);
  if (length < 0 || length > held)
    fail_cache("sequence ", b, " holds ", held, " tokens; it cannot be cut to ", length);
  for (std::int64_t page = pages_of(held); page-- > pages_of(length);)
    free_[static_cast<std::size_t>(free_pages_++)] = table_.at<std::int64_t>({b, page});
  lengths_.at<std::int64_t>({b}) = length;
}

}  // namespace attend
