// What the host hands to the forward kernels of Hopper (forward_sm90.cu).
#pragma once

#include "key_range.h"
#include "tensor_map.h"

#include "core/call.h"

namespace attend::cuda {

// Rows of queries that one block of threads takes at a time, and rows of keys: by d alone.
struct ForwardTiles {
  int queries, keys;
};
constexpr ForwardTiles forward_tiles(int d) {
  return d == 64    ? ForwardTiles{192, 128}
         : d == 128 ? ForwardTiles{128, 128}
                    : ForwardTiles{128, 80};
}

// A warpgroup for every 64 queries, and one that copies; of 8 bits at d 128 another one that
// widens.
constexpr int forward_threads(const ForwardTiles& tiles, int d, bool bytes) {
  return 128 * (1 + tiles.queries / 64 + (bytes && d == 128 ? 1 : 0));
}
// Rows of the boxes in which the bytes of a tile so wide come, on pages or dense ones of `piece`
// keys: where the tile is 64 bytes wide, or less, those that are widened at a time.
constexpr int byte_box_rows(int columns, int piece) {
  return columns >= 128 ? piece : 512 / columns;
}
// The kernel with options: by two warpgroups, whose threads have registers for them.
constexpr ForwardTiles general_tiles(int d) { return {128, forward_tiles(d).keys}; }

// How blocks are launched: no bit depends on these.
// Blocks of queries are taken head by head. Where later ones see more keys, the longest are first
// within a section of heads, so much of K and V as the L2 holds beside what passes through it.
constexpr long long forward_section_bytes(bool longest_first, long long k_length) {
  if (!longest_first) return 0;
  return k_length < 1024 ? 16LL << 20 : 32LL << 20;
}
constexpr bool forward_takes_turns(int d, bool longest_first) {
  return d == 256 || (d == 64 && !longest_first);
}

inline constexpr int kForwardSharedBytes = 232448;  // all that a block can have

struct ForwardParameters {
  // [d, length, heads, batch], the innermost first, in boxes of 64 x rows of a tile (out: 64).
  // Fewer features than the kernel's d are padded with zeros.
  TensorMap q, k, v, out;
  Rows out_rows;           // used if packed
  Rows lse;                // float, or data is null
  unsigned* counter;       // of the items taken: 0 before and after the launch
  const int* key_lengths;  // [batch], or null
  const int* offsets;      // [batch], or null: query i stands where key i + offset does
  // [batch + 1], or null. Packed: sequence b has queries [q_starts[b], q_starts[b + 1]) of tensors
  // whose batch is 1, and keys likewise; the lengths below are the longest.
  const int *q_starts, *k_starts;
  KeyPages pages;             // with packed queries or others
  ByteKeys k_bytes, v_bytes;  // of 8 bits: instead of k and v
  int heads, group;           // query heads, and of these for one key head
  int q_length, k_length;
  int left, right;          // visible: i + offset - left <= j <= i + offset + right
  int offset;               // if given for all
  int offset_given;         // 0: the last query stands at the last key
  int query_blocks, items;  // blocks of queries in a head, in all
  int section;              // heads whose blocks are taken together, the longest first
  int turns;    // whether warpgroups take turns at the matrix units: no bit depends on it
  int value_d;  // features of v, a multiple of 8
  float scale;  // above 0
};

// And to the kernel with options (forward_options.cuh). Mask and blocks are of bytes, the bias is
// of 32 or 16 bits.
struct GeneralParameters : ForwardParameters {
  Strided mask, bias, alibi, sinks, blocks;
  Draws draws;
  double positions_begin;  // with offset_given: query i stands at i + it
  int key_limit;           // keys from there on are hidden: short masks
  int block_queries, block_keys;
  int bias_before_softcap;
  std::uint32_t drop_below;
  float kept;                      // what dropout multiplies by
  float softcap, part_of_softcap;  // 0, or the reciprocal in the second
};

}  // namespace attend::cuda
