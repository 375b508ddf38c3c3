// Cutting a trial into parts that are trials of their own.
#include "property_compare.h"
#include "property_trial.h"

#include "cases/arena.h"
#include "cases/random.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

namespace attend::test {
namespace {

std::int64_t round_up_divide(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

Tensor first_of_repeated(const Tensor& tensor, int dim, std::int64_t count) {
  if (!tensor || tensor.size(dim) <= std::max<std::int64_t>(count, 1)) return tensor;
  return take(tensor, dim, range(0, count));
}

// Keys and values, with their scales, as cut(tensor) gives each.
template <class Cut>
void cut_keys(Trial& part, const Cut& cut) {
  for (Tensor* t : {&part.k, &part.v, &part.k_scales, &part.v_scales})
    if (*t) *t = cut(*t);
}

void cut_masks(Trial& trial, std::int64_t keys) {
  trial.mask = first_of_repeated(trial.mask, 3, keys);
  trial.bias = first_of_repeated(trial.bias, 3, keys);
  if (trial.blocks)
    trial.blocks =
        first_of_repeated(trial.blocks, 3, round_up_divide(keys, trial.plain.blocks.key_size));
}

}  // namespace

Tensor take(const Tensor& tensor, int dim, const std::vector<std::int64_t>& order) {
  if (!tensor) return {};
  Shape shape = tensor.shape();
  std::int64_t outer = 1, inner = size_of(tensor.dtype());
  for (int n = 0; n < dim; ++n) outer *= shape[n];
  for (int n = dim + 1; n < shape.rank(); ++n) inner *= shape[n];
  const std::int64_t size = shape[dim];
  shape[dim] = static_cast<std::int64_t>(order.size());
  Tensor taken(shape, tensor.dtype());
  const auto* from = static_cast<const std::byte*>(tensor.view().data());
  auto* to = static_cast<std::byte*>(taken.view().data());
  for (std::int64_t n = 0; n < outer; ++n)
    for (const std::int64_t at : order) {
      std::memcpy(to, from + (n * size + at) * inner, static_cast<std::size_t>(inner));
      to += inner;
    }
  return taken;
}

Tensor take_of_repeated(const Tensor& tensor, int dim, const std::vector<std::int64_t>& order) {
  return !tensor || tensor.size(dim) == 1 ? tensor : take(tensor, dim, order);
}

std::vector<std::int64_t> range(std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> list(static_cast<std::size_t>(end - begin));
  std::iota(list.begin(), list.end(), begin);
  return list;
}

std::vector<std::int64_t> shuffled(std::int64_t count, std::uint64_t seed) {
  std::vector<std::int64_t> list = range(0, count);
  const cases::Random random(seed, 78);
  for (std::int64_t n = count - 1; n > 0; --n)
    std::swap(list[static_cast<std::size_t>(n)],
              list[static_cast<std::size_t>(random.below(n + 1, static_cast<std::uint64_t>(n)))]);
  return list;
}

Tensor gather_rows(const Tensor& tensor, const std::vector<RowAddress>& rows) {
  if (!tensor) return {};
  Shape shape = tensor.shape();
  const std::int64_t length = shape[2];
  shape[0] = 1;
  shape[2] = static_cast<std::int64_t>(rows.size());
  Tensor gathered(shape, tensor.dtype());
  std::int64_t inner = size_of(tensor.dtype());
  for (int dim = 3; dim < shape.rank(); ++dim) inner *= shape[dim];
  const auto* from = static_cast<const std::byte*>(tensor.view().data());
  auto* to = static_cast<std::byte*>(gathered.view().data());
  for (std::int64_t h = 0; h < shape[1]; ++h)
    for (const RowAddress& row : rows) {
      std::memcpy(to, from + ((row.b * shape[1] + h) * length + row.t) * inner,
                  static_cast<std::size_t>(inner));
      to += inner;
    }
  return gathered;
}

Trial element_of(const Trial& trial, std::int64_t b, std::int64_t keys_kept) {
  SequenceRows rows = rows_of(trial.arguments(), b);
  const bool cut = keys_kept < static_cast<std::int64_t>(rows.keys.size());
  if (cut) rows.keys.resize(static_cast<std::size_t>(keys_kept));
  const auto queries = static_cast<std::int64_t>(rows.queries.size());
  const auto keys = static_cast<std::int64_t>(rows.keys.size());

  Trial part = trial;
  part.line += " element=" + std::to_string(b);
  part.q = gather_rows(trial.q, rows.queries);
  part.dout = gather_rows(trial.dout, rows.queries);
  part.dlse = gather_rows(trial.dlse, rows.queries);
  cut_keys(part, [&](const Tensor& t) { return gather_rows(t, rows.keys); });
  part.cu_seqlens_q = part.cu_seqlens_k = part.block_table = part.key_lengths = {};
  if (rows.key_length < keys) part.key_lengths = integers_of({rows.key_length});
  if (trial.query_offset)
    part.plain.query_offset = rows.offset + trial.plain.key_offset.value_or(0);
  part.query_offset = {};
  for (Tensor* t : {&part.mask, &part.bias})
    *t = first_of_repeated(take_of_repeated(*t, 0, {b}), 2, queries);
  if (part.blocks)
    part.blocks = first_of_repeated(take_of_repeated(part.blocks, 0, {b}), 2,
                                    round_up_divide(queries, trial.plain.blocks.query_size));
  cut_masks(part, keys);
  Dropout::Origin& origin = part.plain.dropout.origin;
  if (origin.heads == 0) origin.heads = trial.q.size(1);
  origin.b += b;
  return part;
}

Trial queries_of(const Trial& trial, std::int64_t begin, std::int64_t end) {
  Trial part = trial;
  part.line += " queries=" + std::to_string(begin) + ".." + std::to_string(end);
  const std::vector<std::int64_t> order = range(begin, end);
  part.q = take(trial.q, 2, order);
  part.dout = take(trial.dout, 2, order);
  part.dlse = take(trial.dlse, 2, order);
  part.mask = take_of_repeated(trial.mask, 2, order);
  part.bias = take_of_repeated(trial.bias, 2, order);
  part.plain.query_offset =
      rows_of(trial.arguments(), 0).offset + begin + trial.plain.key_offset.value_or(0);
  part.query_offset = {};
  if (trial.blocks) {  // a block for each query, so that the cut may fall anywhere
    std::vector<std::int64_t> blocks = order;
    for (std::int64_t& i : blocks) i /= trial.plain.blocks.query_size;
    part.blocks = take_of_repeated(trial.blocks, 2, blocks);
    part.plain.blocks.query_size = 1;
  }
  part.plain.dropout.origin.i += begin;
  return part;
}

Trial keys_of(const Trial& trial, std::int64_t begin, std::int64_t end) {
  const std::vector<std::int64_t> order = range(begin, end);
  Trial part = trial;
  part.line += " keys=" + std::to_string(begin) + ".." + std::to_string(end);
  cut_keys(part, [&](const Tensor& t) { return take(t, 2, order); });
  part.mask = take_of_repeated(with_all_keys(trial.mask, trial.k.size(2)), 3, order);
  part.bias = take_of_repeated(with_all_keys(trial.bias, trial.k.size(2)), 3, order);
  if (trial.blocks) {  // blocks of one key, so that the cut may fall anywhere
    std::vector<std::int64_t> blocks = order;
    for (std::int64_t& j : blocks) j /= trial.plain.blocks.key_size;
    part.blocks = take_of_repeated(trial.blocks, 3, blocks);
    part.plain.blocks.key_size = 1;
  }
  // Where the whole says by an origin where its keys begin, the part says it by its key_offset.
  const std::int64_t first = trial.plain.key_offset.value_or(trial.plain.dropout.origin.j);
  part.plain.key_offset = first + begin;
  part.plain.dropout.origin.j = 0;
  std::vector<std::int64_t> offsets, lengths;
  for (std::int64_t b = 0; b < trial.q.size(0); ++b) {
    const SequenceRows rows = rows_of(trial.arguments(), b);
    offsets.push_back(rows.offset + first);
    lengths.push_back(std::clamp<std::int64_t>(rows.key_length - begin, 0, end - begin));
  }
  part.query_offset = integers_of(offsets);
  part.plain.query_offset = {};
  if (trial.key_lengths) part.key_lengths = integers_of(lengths);
  return part;
}

Trial keys_up_to(const Trial& trial, std::int64_t end) {
  Trial part = trial;
  part.line += " keys=0.." + std::to_string(end);
  cut_keys(part, [&](const Tensor& t) { return take(t, 2, range(0, end)); });
  cut_masks(part, end);
  return part;
}

Trial head_of(const Trial& trial, std::int64_t h) {
  Trial part = trial;
  part.line += " head=" + std::to_string(h);
  const std::int64_t heads = trial.q.size(1), kv_head = h / (heads / trial.k.size(1));
  part.q = take(trial.q, 1, {h});
  part.dout = take(trial.dout, 1, {h});
  part.dlse = take(trial.dlse, 1, {h});
  cut_keys(part, [&](const Tensor& t) { return take(t, 1, {kv_head}); });
  for (Tensor* t : {&part.mask, &part.bias, &part.blocks}) *t = take_of_repeated(*t, 1, {h});
  part.alibi = take(trial.alibi, 0, {h});
  part.sinks = take(trial.sinks, 0, {h});
  Dropout::Origin& origin = part.plain.dropout.origin;
  if (origin.heads == 0) origin.heads = heads;
  origin.h += h;
  return part;
}

Tensor with_all_keys(const Tensor& tensor, std::int64_t keys) {
  if (!tensor || tensor.size(3) == keys) return tensor;
  Shape shape = tensor.shape();
  const bool repeated = shape[3] == 1;
  shape[3] = keys;
  Tensor whole(shape, tensor.dtype());
  const double hidden = is_floating_point(tensor.dtype()) ? -INFINITY : 0;
  cases::for_each_index(shape, [&](const Shape& index) {
    Shape from = index;
    if (repeated) from[3] = 0;
    cases::store(whole, index, from[3] < tensor.size(3) ? value_at(tensor, from) : hidden);
  });
  return whole;
}

std::vector<SeenRow> seen_rows(const Trial& trial) {
  const Reader reader(trial.arguments());
  const Extents e = reader.extents();
  std::vector<SeenRow> list;
  for (std::int64_t b = 0; b < e.batch; ++b) {
    const SequenceRows rows = rows_of(trial.arguments(), b);
    for (std::int64_t h = 0; h < e.heads; ++h)
      for (std::size_t i = 0; i < rows.queries.size(); ++i) {
        SeenRow row{
            b,  h, static_cast<std::int64_t>(i), h / (e.heads / e.kv_heads), rows.queries[i],
            {}, {}};
        for (std::size_t j = 0; j < rows.keys.size(); ++j)
          if (reader.pair_visible(rows, b, h, row.i, static_cast<std::int64_t>(j))) {
            row.keys.push_back(rows.keys[j]);
            row.numbers.push_back(static_cast<std::int64_t>(j));
          }
        list.push_back(std::move(row));
      }
  }
  return list;
}

}  // namespace attend::test
