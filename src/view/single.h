// One sequence of a layer, as a problem of its own: batch 1, dense keys, and the options that are
// left. Packed and paged tensors, lengths and offsets of a batch end here; the rest of the writer
// knows nothing of them.
#pragma once

#include "core/mask.h"

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
  std::int64_t group() const noexcept { return heads() / key_heads(); }  // heads of a key head
  std::int64_t queries() const noexcept { return q.size(2); }
  std::int64_t keys() const noexcept { return k.size(2); }

  // What hides a key is core/mask.h's. The keys that query i may see by its position:
  KeyRange positions(std::int64_t i) const noexcept {
    return attend::positions(problem_, sequence_, i);
  }
  // Whether a mask, blocks or a bias hide keys, beside positions; and for which pairs. What they
  // say may be the same for all heads.
  bool masked() const noexcept { return problem_.mask || problem_.blocks || problem_.bias; }
  bool masked_by_head() const;
  bool allowed(std::int64_t h, std::int64_t i, std::int64_t j) const noexcept {
    return block_visible(problem_, call_, 0, h, i, j) && !masked_out(problem_, call_, 0, h, i, j);
  }

  // Heads [from, from + count) as a problem of their own: groups that share a key head, or a part
  // of one such group.
  struct Part {
    std::int64_t from, count;
    ConstTensorView q, k;
    AttentionOptions options;
  };
  Part part(std::int64_t from, std::int64_t count) const;

  ConstTensorView q, k, v;     // [1, heads, length, d]; q and k of one type
  AttentionOptions options{};  // scale and query_offset are given
  std::int64_t key_length = 0, query_offset = 0;

 private:
  void set_visibility();

  Tensor wide_q_, key_pages_, value_pages_, key_lengths_;
  // As much of the sequence's problem as says what is hidden.
  Problem problem_;
  Call call_;
  Sequence sequence_;
};

// A tensor of up to four dimensions, aligned at the last one; a dimension of size 1 is repeated.
Strided strided(const ConstTensorView& view);

}  // namespace attend::view
