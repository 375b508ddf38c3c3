#include "head.h"

#include "philox.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace attend::oracle {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

std::int64_t longest(const std::vector<std::int64_t>& cumulative) {
  std::int64_t most = 0;
  for (std::size_t n = 1; n < cumulative.size(); ++n)
    most = std::max(most, cumulative[n] - cumulative[n - 1]);
  return most;
}

const ConstTensorView& cu_seqlens_k(const AttentionOptions& options) {
  return options.cu_seqlens_k ? options.cu_seqlens_k : options.cu_seqlens_q;
}

// The row-major number of (b, h, i, j) in a tensor of up to four dimensions, those of size 1
// repeated; -1 where a last dimension other than 1 ends before j.
std::int64_t broadcast_index(const Shape& shape, std::int64_t b, std::int64_t h, std::int64_t i,
                             std::int64_t j) {
  const std::int64_t wanted[4] = {b, h, i, j};
  std::int64_t index = 0;
  for (int dim = 0; dim < shape.rank(); ++dim) {
    const std::int64_t size = shape[dim];
    const std::int64_t here = size == 1 ? 0 : wanted[4 - shape.rank() + dim];
    if (here >= size) return -1;
    index = index * size + here;
  }
  return index;
}

}  // namespace

Extents extents_of(const Arguments& a) {
  Extents e;
  e.batch = a.q.size(0);
  e.heads = a.q.size(1);
  e.queries = a.q.size(2);
  e.d = a.q.size(3);
  e.kv_heads = a.k.size(1);
  e.keys = a.k.size(2);
  e.dv = a.v.size(3);
  const AttentionOptions& options = a.options;
  if (options.cu_seqlens_q) {
    e.batch = options.cu_seqlens_q.size(0) - 1;
    e.queries = options.max_q.value_or(longest(integers(options.cu_seqlens_q)));
    e.keys = options.max_k.value_or(options.cu_seqlens_k ? longest(integers(options.cu_seqlens_k))
                                                         : e.queries);
  }
  if (options.block_table) e.keys = options.block_table.size(1) * a.k.size(2);
  return e;
}

SequenceRows rows_of(const Arguments& a, std::int64_t b) {
  const AttentionOptions& options = a.options;
  const auto entry = [b](const ConstTensorView& view, std::int64_t after = 0) {
    return integers(view)[static_cast<std::size_t>(b + after)];
  };
  const auto append = [](std::vector<RowAddress>& to, std::int64_t batch, std::int64_t begin,
                         std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) to.push_back({batch, t});
  };
  SequenceRows rows;
  if (options.cu_seqlens_q)
    append(rows.queries, 0, entry(options.cu_seqlens_q), entry(options.cu_seqlens_q, 1));
  else append(rows.queries, b, 0, a.q.size(2));
  if (options.block_table) {
    const std::vector<std::int64_t> table = integers(options.block_table);
    const std::int64_t page_size = a.k.size(2), length = entry(options.key_lengths);
    const std::int64_t first = b * options.block_table.size(1);
    for (std::int64_t j = 0; j < length; ++j)
      rows.keys.push_back({table[static_cast<std::size_t>(first + j / page_size)], j % page_size});
  } else if (options.cu_seqlens_q) {
    append(rows.keys, 0, entry(cu_seqlens_k(options)), entry(cu_seqlens_k(options), 1));
  } else {
    append(rows.keys, b, 0, a.k.size(2));
  }
  const auto stored = static_cast<std::int64_t>(rows.keys.size());
  rows.key_length = options.key_lengths ? entry(options.key_lengths) : stored;
  rows.offset = rows.key_length - static_cast<std::int64_t>(rows.queries.size());
  if (options.query_offset.all()) rows.offset = *options.query_offset.all();
  if (options.query_offset.each()) rows.offset = entry(options.query_offset.each());
  rows.offset -= options.key_offset.value_or(0);
  return rows;
}

Reader::Reader(const Arguments& arguments)
    : arguments_(arguments), extents_(extents_of(arguments)) {
  const AttentionOptions& options = arguments_.options;
  const auto read = [](const ConstTensorView& view) {
    if (!view) return std::vector<double>();
    if (is_floating_point(view.dtype())) return widen(view);
    const std::vector<std::int64_t> whole = integers(view);
    return std::vector<double>(whole.begin(), whole.end());
  };
  q_ = read(arguments_.q);
  k_ = read(arguments_.k);
  v_ = read(arguments_.v);
  dout_ = read(arguments_.dout);
  dlse_ = read(arguments_.dlse);
  bias_ = read(options.bias);
  alibi_ = read(options.alibi);
  sinks_ = read(options.sinks);
  k_scales_ = read(options.k_scales);
  v_scales_ = read(options.v_scales);
  if (options.mask) mask_ = integers(options.mask);
  if (options.blocks.visible) blocks_ = integers(options.blocks.visible);
}

std::int64_t Reader::bias_index(std::int64_t b, std::int64_t h, std::int64_t i,
                                std::int64_t j) const {
  return broadcast_index(arguments_.options.bias.shape(), b, h, i, j);
}

bool Reader::block_visible(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
  const Blocks& blocks = arguments_.options.blocks;
  if (!blocks.visible) return true;
  const std::int64_t block =
      broadcast_index(blocks.visible.shape(), b, h, i / blocks.query_size, j / blocks.key_size);
  return blocks_[static_cast<std::size_t>(block)] != 0;
}

bool Reader::pair_visible(const SequenceRows& rows, std::int64_t b, std::int64_t h, std::int64_t i,
                          std::int64_t j) const {
  const AttentionOptions& options = arguments_.options;
  const std::int64_t ahead = i + rows.offset - j;  // positions from the key up to the query
  if (j >= rows.key_length) return false;
  if (options.causal && ahead < 0) return false;
  if (ahead > options.window.left || -ahead > options.window.right) return false;
  if (!block_visible(b, h, i, j)) return false;
  if (options.mask) {
    const std::int64_t n = broadcast_index(options.mask.shape(), b, h, i, j);
    if (n < 0 || mask_[static_cast<std::size_t>(n)] == 0) return false;
  }
  if (options.bias) {
    const std::int64_t n = bias_index(b, h, i, j);
    if (n < 0 || bias_[static_cast<std::size_t>(n)] == kMinusInfinity) return false;
  }
  return true;
}

double Reader::keep_factor(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
  const Dropout& dropout = arguments_.options.dropout;
  const double threshold = std::nearbyint(dropout.p * 65536);
  const std::int64_t heads = dropout.origin.heads > 0 ? dropout.origin.heads : extents_.heads;
  const auto word = [](std::int64_t x) { return static_cast<std::uint32_t>(x); };
  const std::int64_t key = j + arguments_.options.key_offset.value_or(dropout.origin.j);
  const auto words = philox4x32_10(
      {word(key / 8), word(i + dropout.origin.i),
       word((b + dropout.origin.b) * heads + h + dropout.origin.h), dropout.offset},
      {static_cast<std::uint32_t>(dropout.seed), static_cast<std::uint32_t>(dropout.seed >> 32)});
  const std::uint32_t pair = words[static_cast<std::size_t>(key % 8 / 2)];
  const std::uint32_t draw = key % 2 == 0 ? pair & 0xffff : pair >> 16;
  return draw < threshold ? 0 : 65536 / (65536 - threshold);
}

}  // namespace attend::oracle
