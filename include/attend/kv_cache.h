// The KV cache: keys and values of the tokens so far, so that a new token costs one row and not the
// whole sequence. Dense: each sequence has room for `capacity` tokens from the start. Paged:
// sequences take pages of `page_size` tokens from a common pool as they grow.
//
// Of type i8, keys and values are whole numbers with one scale for each token and key head, made of
// that row alone: a quarter of f32's memory, and each number at most scale / 2 from what was given.
//
// A cache fits layers with its key heads and head sizes. One thread at a time may use it.
#pragma once

#include <attend/options.h>

#include <vector>

namespace attend {

struct KvCacheOptions {
  std::int64_t batch = 1;
  std::int64_t key_heads = 0;
  std::int64_t d_k = 0, d_v = 0;  // d_v 0: as d_k
  std::int64_t capacity = 0;      // the most tokens of a sequence
  std::int64_t page_size = 0;     // 0: dense
  std::int64_t pages = 0;         // of the common pool; 0: enough for all sequences
  DType type = DType::f32;        // f64, f32, bf16, f16 or i8
};

class ATTEND_API KvCache {
 public:
  explicit KvCache(const KvCacheOptions& options);

  const KvCacheOptions& options() const noexcept { return options_; }
  std::int64_t length(std::int64_t b) const;                        // tokens that sequence b holds
  std::int64_t free_pages() const noexcept { return free_pages_; }  // of a paged cache

  // Appends keys [batch, key_heads, n, d_k] and values [batch, key_heads, n, d_v]; with `lengths`
  // ([batch], i32 or i64), only the first lengths[b] of sequence b. Throws, with nothing changed,
  // when a sequence would exceed the capacity or no page is left. k and v are of the cache's type;
  // for i8 each of any floating-point type, and quantised: scale = max |x| / 127 of a row, 0 of a
  // row of zeros, NaN of one that holds NaN or an infinity, which is then NaN in all of its places.
  void append(const ConstTensorView& k, const ConstTensorView& v,
              const ConstTensorView& lengths = {});

  // Drops the tokens from `length` on (0: all); their pages go back to the pool.
  void truncate(std::int64_t b, std::int64_t length);

  // As attention() takes them: dense [batch, key_heads, capacity, d], or pages
  // [pages, key_heads, page_size, d] with the block table.
  ConstTensorView keys() const noexcept { return keys_; }
  ConstTensorView values() const noexcept { return values_; }
  ConstTensorView key_lengths() const noexcept { return lengths_; }  // [batch]
  ConstTensorView block_table() const noexcept;                      // none, if dense
  // f32, shaped as keys() is but for d; none, unless the type is i8.
  ConstTensorView k_scales() const noexcept { return k_scales_; }
  ConstTensorView v_scales() const noexcept { return v_scales_; }

 private:
  std::int64_t pages_of(std::int64_t length) const noexcept;

  KvCacheOptions options_;
  Tensor keys_, values_, k_scales_, v_scales_, lengths_, table_;
  std::vector<std::int64_t> free_;  // the first free_pages_ of them: pages not in use
  std::int64_t free_pages_ = 0;
};

}  // namespace attend
