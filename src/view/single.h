// One sequence of a layer, as a problem of its own: batch 1, dense keys, and the options that are
// left. Packed and paged tensors, lengths and offsets of a batch end here; the rest of the writer
// knows nothing of them.
#pragma once

#include "core/strided.h"

#include <attend/view.h>

namespace attend::view {

struct Single {
  // `where` begins the messages: "view: run 0, layer 2". Throws where the tensors do not fit
  // together, or where the sequence has no queries or keys.
  Single(const ViewLayer& layer, std::int64_t batch, const std::string& where);
  Single(const Single&) = delete;
  Single& operator=(const Single&) = delete;

  std::int64_t heads() const noexcept { return q.size(1); }
  std::int64_t key_heads() const noexcept { return k.size(1); }
  std::int64_t queries() const noexcept { return q.size(2); }
  std::int64_t keys() const noexcept { return k.size(2); }

  // The keys that query i may see by its position, [begin, end).
  struct Range {
    std::int64_t begin, end;
  };
  Range positions(std::int64_t i) const;

  // Whether a mask, blocks or a bias hide keys, beside positions; and for which pairs. What they
  // say may be the same for all heads.
  bool masked() const noexcept { return options.mask || options.blocks.visible || options.bias; }
  bool masked_by_head() const;
  bool allowed(std::int64_t h, std::int64_t i, std::int64_t j) const noexcept;

  ConstTensorView q, k, v;     // [1, heads, length, d]
  AttentionOptions options{};  // scale and query_offset are given
  std::int64_t key_length = 0, query_offset = 0;

 private:
  Tensor key_pages_, value_pages_, key_lengths_;
  Strided mask_, bias_, blocks_;
};

// A tensor of up to four dimensions, aligned at the last one; a dimension of size 1 is repeated.
Strided strided(const ConstTensorView& view);

}  // namespace attend::view
