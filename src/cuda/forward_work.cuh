// What one block of threads does at a time: a block of one head's queries against the tiles of keys
// that they see.
#pragma once

#include "forward_sm90.h"

namespace attend::cuda {

struct Item {
  int batch, head, row;  // the first of its queries; below 0 are none
  int q_length, k_length, offset;
  int q_begin, tensor_batch;  // where its queries are in the tensors
  int k_begin;                // its keys likewise; on pages: its row of the table

  Item() = default;
  template <class Parameters>
  __device__ __forceinline__ Item(const Parameters& p, int index, int queries) {
    const int in_section = p.section * p.query_blocks, section = index / in_section;
    const int heads = min(p.section, p.items / p.query_blocks - section * p.section);
    const int rest = index % in_section;
    const int any_head = section * p.section + rest % heads;
    batch = any_head / p.heads;
    head = any_head % p.heads;
    q_length = p.q_length;
    k_length = p.k_length;
    q_begin = k_begin = 0;
    tensor_batch = batch;
    if (p.q_starts != nullptr) {
      q_begin = p.q_starts[batch];
      q_length = p.q_starts[batch + 1] - q_begin;
      tensor_batch = 0;
    }
    // Causal: the last see the most keys. Counted from the end, so that warpgroups without queries
    // are in the block that sees the fewest.
    row = (q_length + 63) / 64 * 64 - (rest / heads + 1) * queries;
    if (p.k_starts != nullptr) {
      k_begin = p.k_starts[batch];
      k_length = p.k_starts[batch + 1] - k_begin;
    }
    if (p.pages.table != nullptr) k_begin = batch;
    if (p.key_lengths != nullptr) k_length = p.key_lengths[batch];
    offset = p.offset_given         ? p.offset
             : p.offsets != nullptr ? p.offsets[batch]
                                    : k_length - q_length;
    if constexpr (requires { p.key_limit; }) k_length = min(k_length, p.key_limit);
  }

  // Keys that query i sees.
  __device__ __forceinline__ KeyRange seen_by(const ForwardParameters& p, int i) const {
    return {max(0, i + offset - p.left), min(k_length, i + offset + p.right + 1)};
  }
  // Tiles that some of the rows see.
  __device__ __forceinline__ KeyRange tiles(const ForwardParameters& p, int first, int rows,
                                            int keys) const {
    const int last = min(first + rows, q_length) - 1;
    const int begin = seen_by(p, max(0, first)).begin, end = seen_by(p, last).end;
    if (last < max(0, first) || end <= begin) return {0, 0};
    return {begin / keys, (end + keys - 1) / keys};
  }
  // Tiles that all of the rows see whole.
  __device__ __forceinline__ KeyRange whole_tiles(const ForwardParameters& p, int first, int rows,
                                                  int keys) const {
    const int begin = seen_by(p, first + rows - 1).begin, end = seen_by(p, first).end;
    return {(begin + keys - 1) / keys, max(0, end) / keys};
  }
};

// What the copying thread tells the computing ones with a tile of queries.
struct Work {
  enum Kind : int { none, plain, careful, stop };
  Kind kind;
  int not_finite;  // their answer
  Item item;
};

}  // namespace attend::cuda
