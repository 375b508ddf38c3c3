#include "view/single.h"

#include "core/text.h"

#include <attend/attention.h>
#include <attend/option_list.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace attend::view {
namespace {

std::int64_t whole_at(const ConstTensorView& view, std::int64_t n) {
  return load_integer(strided(view), n * view.strides()[0]);
}

// [batch or 1, heads or 1, rows or 1, columns] as 4 dimensions, of one batch element, cut to the
// rows and columns that this sequence has.
ConstTensorView of_element(const ConstTensorView& view, std::int64_t batch, std::int64_t rows,
                           std::int64_t columns) {
  if (!view) return view;
  Shape four{1, 1, 1, 1};
  for (int dim = 0; dim < view.rank(); ++dim) four[4 - view.rank() + dim] = view.size(dim);
  ConstTensorView all = view.broadcast_to(four);
  if (all.size(0) > 1) all = all.slice(0, batch, batch + 1);
  if (all.size(2) > rows) all = all.slice(2, 0, rows);
  return all.size(3) > columns ? all.slice(3, 0, columns) : all;
}

// Keys j of one sequence from pages [pages, heads, page size, d] into [1, heads, keys, d].
Tensor from_pages(const ConstTensorView& pages, const ConstTensorView& table, std::int64_t batch,
                  std::int64_t keys) {
  const std::int64_t heads = pages.size(1), page_size = pages.size(2), d = pages.size(3);
  Tensor dense = Tensor::uninitialized({1, heads, keys, d}, pages.dtype());
  const std::int64_t row = d * size_of(pages.dtype());
  auto* to = static_cast<std::byte*>(dense.view().data());
  for (std::int64_t j = 0; j < keys; j += page_size) {
    const std::int64_t page =
        load_integer(strided(table), strided(table).offset(0, 0, batch, j / page_size));
    const std::int64_t count = std::min(page_size, keys - j);
    const Tensor part = Tensor::copy_of(pages.slice(0, page, page + 1).slice(2, 0, count));
    const auto* from = static_cast<const std::byte*>(part.view().data());
    for (std::int64_t h = 0; h < heads; ++h)
      std::memcpy(to + (h * keys + j) * row, from + h * count * row,
                  static_cast<std::size_t>(count * row));
  }
  return dense;
}

// The numbers of each row of x [1, heads, length, d], in another type, times the row's scale
// [1, heads, length, 1] if there are scales.
Tensor scaled(const ConstTensorView& x, const ConstTensorView& scales, DType type) {
  Tensor made = Tensor::uninitialized(x.shape(), type);
  const Strided from = strided(x), factor = strided(scales), to = strided(made);
  const auto number = [&](std::int64_t at) {
    return from.type == DType::i8 ? static_cast<double>(load_integer(from, at)) : load(from, at);
  };
  for (std::int64_t h = 0; h < x.size(1); ++h)
    for (std::int64_t i = 0; i < x.size(2); ++i) {
      const double scale = scales ? load(factor, factor.offset(0, h, i)) : 1;
      for (std::int64_t c = 0; c < x.size(3); ++c)
        store(to, to.offset(0, h, i, c), number(from.offset(0, h, i, c)) * scale);
    }
  return made;
}

}  // namespace

Strided strided(const ConstTensorView& view) {
  Strided t{static_cast<std::byte*>(const_cast<void*>(view.data())),
            view.dtype(),
            static_cast<bool>(view),
            {}};
  for (int dim = 0; dim < view.rank(); ++dim)
    if (view.size(dim) != 1)
      t.stride[std::size_t{4} - static_cast<std::size_t>(view.rank() - dim)] = view.strides()[dim];
  return t;
}

Single::Single(const ViewLayer& layer, std::int64_t batch, const std::string& where)
    : q(layer.q), k(layer.k), v(layer.v), options(layer.options) {
  const auto fail = [&](const auto&... parts) {
    throw InvalidArgument(text(where, ": ", parts...));
  };
  if (!q || !k) fail("there is no ", !q ? "q" : "k");
  const AttentionOptions& o = layer.options;
  if (!v) options.v_scales = options.k_scales;                   // of k, which stands in for v
  const Shape square = weights_shape(q, k, v ? v : k, options);  // throws where it does not fit
  if (batch < 0 || batch >= square[0])
    fail("there is no batch element ", batch, "; there are ", square[0]);

  std::int64_t q_begin = 0, q_end = q.size(2), k_begin = 0, k_end = k.size(2);
  if (o.cu_seqlens_q) {
    const ConstTensorView& starts = o.cu_seqlens_k ? o.cu_seqlens_k : o.cu_seqlens_q;
    q_begin = whole_at(o.cu_seqlens_q, batch), q_end = whole_at(o.cu_seqlens_q, batch + 1);
    if (!o.block_table) k_begin = whole_at(starts, batch), k_end = whole_at(starts, batch + 1);
  } else {
    q = q.slice(0, batch, batch + 1);
  }
  q = q.slice(2, q_begin, q_end);
  key_length = o.key_lengths ? whole_at(o.key_lengths, batch) : k_end - k_begin;
  // The keys of this sequence; `kept` holds what is not a part of x.
  const auto mine = [&](const ConstTensorView& x, Tensor& kept) -> ConstTensorView {
    if (!o.block_table)
      return (o.cu_seqlens_q ? x : x.slice(0, batch, batch + 1)).slice(2, k_begin, k_end);
    kept = from_pages(x, o.block_table, batch, key_length);
    return kept;
  };
  // What was scaled has at least 32 bits. q and k have one type, or no fast kernel takes them.
  const DType wide = q.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const auto dense = [&](ConstTensorView& x, const ConstTensorView& scales, bool widen,
                         Tensor& kept) {
    if (!x) return;
    x = mine(x, kept);
    if (!widen) return;
    Tensor on_pages;
    ConstTensorView factors;
    if (scales) {
      const Shape &size = scales.shape(), &stride = scales.strides();
      factors = mine({scales.data(),
                      DType::f32,
                      {size[0], size[1], size[2], 1},
                      {stride[0], stride[1], stride[2], 1}},
                     on_pages);
    }
    kept = scaled(x, factors, wide);
    x = kept;
  };
  const bool one_type = k.dtype() == q.dtype() && !o.k_scales;
  if (!one_type && q.dtype() != wide) q = wide_q_ = scaled(q, {}, wide);
  dense(k, o.k_scales, !one_type && (o.k_scales || k.dtype() != wide), key_pages_);
  dense(v, o.v_scales, v && (o.v_scales || v.dtype() == DType::i8), value_pages_);
  options.k_scales = options.v_scales = {};
  if (heads() == 0 || queries() == 0 || keys() == 0)
    fail("there is nothing to show: ", heads(), " heads, ", queries(), " queries, ", keys(),
         " keys");

  if (o.key_offset && !o.query_offset.all() && !o.query_offset.each())
    fail("key_offset is ", *o.key_offset,
         " and query_offset is not given; a part of the keys needs both, the positions of query 0 "
         "and of key 0");
  query_offset = o.query_offset.all()    ? *o.query_offset.all()
                 : o.query_offset.each() ? whole_at(o.query_offset.each(), batch)
                                         : key_length - queries();
  query_offset -= o.key_offset.value_or(0);
  options.query_offset = query_offset;
  options.key_offset = {};
  options.scale = o.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3))));
  options.dropout = {};
  options.cu_seqlens_q = options.cu_seqlens_k = options.block_table = {};
  options.max_q = options.max_k = {};
  options.mask = of_element(o.mask, batch, queries(), keys());
  options.bias = of_element(o.bias, batch, queries(), keys());
  if (options.bias && options.bias.dtype() != q.dtype() && options.bias.dtype() != DType::f32)
    options.bias = scaled(options.bias, {}, DType::f32);  // of the type that q had
  if (o.blocks.visible) {
    const auto blocks = [](std::int64_t n, std::int64_t size) { return (n + size - 1) / size; };
    options.blocks.visible =
        of_element(o.blocks.visible, batch, blocks(queries(), o.blocks.query_size),
                   blocks(keys(), o.blocks.key_size));
  }
  // A mask that is shorter than the keys hides the rest, as a length does.
  for (const ConstTensorView& x : {options.mask, options.bias})
    if (x && x.size(3) != 1) key_length = std::min(key_length, x.size(3));
  key_lengths_ = Tensor({key_length}, {1});
  options.key_lengths = key_lengths_;
  set_visibility();
}

void Single::set_visibility() {
  const auto keys_of = [&](const ConstTensorView& x) {
    return x.size(3) == 1 ? keys() : x.size(3);
  };
  problem_.causal = options.causal;
  problem_.window_left = options.window.left;
  problem_.window_right = options.window.right;
  if ((problem_.mask = static_cast<bool>(options.mask))) problem_.mask_keys = keys_of(options.mask);
  if ((problem_.bias = static_cast<bool>(options.bias))) problem_.bias_keys = keys_of(options.bias);
  problem_.blocks = static_cast<bool>(options.blocks.visible);
  problem_.block_queries = options.blocks.query_size;
  problem_.block_keys = options.blocks.key_size;
  call_.mask = strided(options.mask);
  call_.bias = strided(options.bias);
  call_.blocks = strided(options.blocks.visible);
  sequence_.k_length = key_length;
  sequence_.offset = query_offset;
}

Single::Part Single::part(std::int64_t from, std::int64_t count) const {
  const std::int64_t end = from + count, key_from = from / group(),
                     key_end = (end - 1) / group() + 1;
  Part part{from, count, q.slice(1, from, end), k.slice(1, key_from, key_end), options};
  for_each_option(part.options, [&]<class Member>(const Option& option, Member& member) {
    if constexpr (std::is_same_v<Member, TensorOrView>) {
      if (member && option.kind == OptionKind::head_tensor) member = member.slice(0, from, end);
    }
  });
  for (TensorOrView* x : {&part.options.mask, &part.options.bias, &part.options.blocks.visible})
    if (*x && x->size(1) > 1) *x = x->slice(1, from, end);
  return part;
}

bool Single::masked_by_head() const {
  for (const ConstTensorView& x : {options.mask, options.bias, options.blocks.visible})
    if (x && x.size(1) > 1) return true;
  return false;
}

}  // namespace attend::view
