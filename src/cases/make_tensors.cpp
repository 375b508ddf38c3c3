// q, k, v and what has their shapes: where they lie and what is in them.
#include "make.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace attend::cases {
namespace {

// Where dout lies: never as out does.
Layout layout_of_dout(Layout out) {
  switch (out) {
    case Layout::contiguous:
    case Layout::broadcast_batch: return Layout::bthd;
    case Layout::padded: return Layout::gapped;
    case Layout::gapped: return Layout::transposed;
    case Layout::interleaved: return Layout::padded;
    default: return Layout::contiguous;
  }
}

struct QueryKeyValue {
  TensorView q, k, v;
};

// q, k and v, or their gradients.
QueryKeyValue place(const Case& c, Arena& arena, const Shape& q, const Shape& k, const Shape& v,
                    bool output) {
  const DType k_type = c.k_type.value_or(c.type), v_type = c.v_type.value_or(c.type);
  if (c.layout == Layout::interleaved && !is_paged(c)) {
    const auto views = arena.interleave(std::array{q, k, v}, c.type, output);
    return {views[0], views[1], views[2]};
  }
  if (c.layout == Layout::interleaved) {
    const auto views = arena.interleave(std::array{k, v}, c.type, output);
    return {arena.place(q, c.type, Layout::bthd, output), views[0], views[1]};
  }
  const Layout of_rows = layout_of_rows(c);
  const Layout of_keys = output ? of_rows : c.layout;
  return {arena.place(q, c.type, of_rows, output), arena.place(k, k_type, of_keys, output),
          arena.place(v, v_type, of_keys, output)};
}

// The nth number, at an index, of q, k, v, dout or dlse, by the case's distribution.
double element(const Case& c, Stream stream, const Shape& index, std::uint64_t n) {
  const double x = Random(c.seed, stream).gaussian(n);
  switch (c.values) {
    case Values::gaussian: break;
    case Values::outliers: {
      if (stream == kDlse) break;
      const Random tokens(c.seed + 7, stream);
      const double of_feature = index[3] % 7 == 3 ? 6 : 1;
      const double of_token = tokens.chance(0.05, static_cast<std::uint64_t>(index[2])) ? 4 : 1;
      return x * of_feature * of_token;
    }
    case Values::cold: {
      if (stream != kQ && stream != kK) break;
      const double d = static_cast<double>(c.d);
      const double level = std::sqrt(120 / (d * c.scale.value_or(1 / std::sqrt(d))));
      return (stream == kQ ? level : -level) + 0.15 * x;
    }
    case Values::constant: return stream == kQ ? 0.5 : stream == kK ? -0.25 : 0.75;
  }
  return x;
}

void fill(const Case& c, Stream stream, const TensorView& view) {
  std::uint64_t n = 0;
  for_each_index(view.shape(),
                 [&](const Shape& index) { store(view, index, element(c, stream, index, n++)); });
}

// As it is stored: whole numbers, where the type has no others.
void put(const TensorView& view, const Shape& index, double x) {
  if (view.dtype() == DType::i8) x = std::clamp(std::nearbyint(kWholeNumbers * x), -127.0, 127.0);
  store(view, index, x);
}

// k or v: slots of pages that are nobody's keep their NaN.
void fill_keys(const Case& c, const Sequences& sequences, Stream stream, const TensorView& view) {
  std::uint64_t n = 0;
  for_each_index(view.shape(), [&](const Shape& index) {
    const double x = element(c, stream, index, n++);
    if (!is_paged(c) ||
        sequences.addressed[static_cast<std::size_t>(index[0] * c.page_size + index[2])])
      put(view, index, x);
  });
}

// Lengths of packed sequences: one of them the longest, and, of three or more, one empty.
std::vector<std::int64_t> packed_lengths(const Random& random, std::int64_t count,
                                         std::int64_t longest, std::int64_t full,
                                         std::int64_t empty) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t n = 0; n < count; ++n) {
    if (n == full || longest == 0) lengths.push_back(longest);
    else if (n == empty && count > 2) lengths.push_back(0);
    else lengths.push_back(1 + random.below(longest, static_cast<std::uint64_t>(n)));
  }
  return lengths;
}

// Pages in shuffled order, three of them nobody's; a common prefix if the case shares it.
void make_pages(const Case& c, Sequences& s) {
  const std::int64_t width = key_extent(c) / c.page_size;
  s.pages = c.batch * width + 3;
  s.block_table.resize(static_cast<std::size_t>(s.pages));
  std::iota(s.block_table.begin(), s.block_table.end(), 0);
  const Random random(c.seed, kPages);
  for (std::size_t n = s.block_table.size() - 1; n > 0; --n) {
    const std::int64_t other = random.below(static_cast<std::int64_t>(n) + 1, n);
    std::swap(s.block_table[n], s.block_table[static_cast<std::size_t>(other)]);
  }
  s.block_table.resize(static_cast<std::size_t>(c.batch * width));
  s.addressed.assign(static_cast<std::size_t>(s.pages * c.page_size), false);
  for (std::int64_t b = 0; b < c.batch; ++b) {
    for (std::int64_t n = 0; n < width; ++n) {
      auto& page = s.block_table[static_cast<std::size_t>(b * width + n)];
      if (c.addressing == Addressing::paged_shared && n < (width + 1) / 2)
        page = s.block_table[static_cast<std::size_t>(n)];
      const std::int64_t left = s.key_lengths[static_cast<std::size_t>(b)] - n * c.page_size;
      for (std::int64_t slot = 0; slot < std::min(left, c.page_size); ++slot)
        s.addressed[static_cast<std::size_t>(page * c.page_size + slot)] = true;
    }
  }
}

}  // namespace

Sequences sequences_of(const Case& c) {
  Sequences s;
  s.q_lengths.assign(static_cast<std::size_t>(c.batch), c.q_length);
  s.k_lengths.assign(static_cast<std::size_t>(c.batch), c.k_length);
  const std::int64_t last = c.batch - 1;
  if (is_packed(c))
    s.q_lengths = packed_lengths(Random(c.seed, kSequences), c.batch, c.q_length, last, 0);
  if (c.addressing == Addressing::packed_self) s.k_lengths = s.q_lengths;
  if (c.addressing == Addressing::packed)
    s.k_lengths = packed_lengths(Random(c.seed + 1, kSequences), c.batch, c.k_length,
                                 c.batch == 2 ? 0 : last, 1);
  s.key_lengths = s.k_lengths;
  if (c.key_lengths == Lengths::mixed) {
    const Random random(c.seed, kKeyLengths);
    for (std::size_t b = 0; b < s.key_lengths.size(); ++b) {
      if (b % 4 == 1) s.key_lengths[b] = 0;
      else if (b % 4 != 2 && s.k_lengths[b] > 0)
        s.key_lengths[b] -= random.below(s.k_lengths[b], b);
    }
  }
  if (is_paged(c)) make_pages(c, s);
  return s;
}

Layout layout_of_rows(const Case& c) {
  switch (c.layout) {
    case Layout::interleaved:
    case Layout::broadcast_batch:
    case Layout::broadcast_heads: return Layout::contiguous;
    default: return c.layout;
  }
}

void make_tensors(const Sequences& sequences, Instance& instance) {
  const Case& c = instance.problem;
  Arena& arena = *instance.arena;
  const auto total = [](const std::vector<std::int64_t>& lengths) {
    return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  };
  const bool packed_keys = is_packed(c) && !is_paged(c);
  const std::int64_t q_batch = is_packed(c) ? 1 : c.batch;
  const std::int64_t queries = is_packed(c) ? total(sequences.q_lengths) : c.q_length;
  const std::int64_t k_batch = is_paged(c) ? sequences.pages : packed_keys ? 1 : c.batch;
  const std::int64_t keys = is_paged(c)   ? c.page_size
                            : packed_keys ? total(sequences.k_lengths)
                                          : c.k_length;
  const Shape of_q = {q_batch, c.heads, queries, c.d}, of_out = {q_batch, c.heads, queries, c.dv};
  const Shape of_k = {k_batch, c.kv_heads, keys, c.d}, of_v = {k_batch, c.kv_heads, keys, c.dv};

  const QueryKeyValue inputs = place(c, arena, of_q, of_k, of_v, false);
  fill(c, kQ, inputs.q);
  fill_keys(c, sequences, kK, inputs.k);
  fill_keys(c, sequences, kV, inputs.v);
  instance.q = inputs.q;
  instance.k = inputs.k;
  instance.v = inputs.v;

  const bool wide = c.type != DType::f64 && c.width != Width::same;
  const DType out_type = !wide ? c.type : c.width == Width::f64 ? DType::f64 : DType::f32;
  const Layout of_rows = c.layout == Layout::interleaved ? Layout::bthd : layout_of_rows(c);
  instance.out = arena.place(of_out, out_type, of_rows, true);
  if (c.layout == Layout::broadcast_heads) {  // as the gradient of a plain sum: all strides 0
    const TensorView one = arena.place({1}, c.type, Layout::contiguous, false);
    store(one, {0}, 0.5);
    instance.dout = TensorView(one.data(), c.type, of_out, {0, 0, 0, 0});
  } else {
    const TensorView dout = arena.place(of_out, c.type, layout_of_dout(c.layout), false);
    fill(c, kDout, dout);
    instance.dout = dout;
  }

  const DType lse_type = c.lse_f64 ? DType::f64 : statistics_type(c);
  const Shape of_lse = {q_batch, c.heads, queries};
  instance.lse = arena.place(of_lse, lse_type, layout_of_rows(c), true);
  if (c.lse) instance.outputs.lse = instance.lse;
  if (c.dlse) {
    const TensorView dlse = arena.place(of_lse, lse_type, layout_of_dout(c.layout), false);
    fill(c, kDlse, dlse);
    instance.dlse = dlse;
  }
  const Shape of_pairs = {c.batch, c.heads, query_extent(c), key_extent(c)};
  const auto place_pairs = [&] { return arena.place(of_pairs, out_type, layout_of_rows(c), true); };
  if (c.weights) instance.outputs.weights = place_pairs();
  if (c.scores) instance.outputs.scores = place_pairs();

  if (c.gradients == Gradients::extras) return;
  const QueryKeyValue gradients = place(c, arena, of_q, of_k, of_v, true);
  const Gradients wanted = c.gradients;
  const bool all = wanted == Gradients::all;
  if (all || wanted == Gradients::dq) instance.gradients.dq = gradients.q;
  const auto has_gradient = [](const TensorView& view) { return is_floating_point(view.dtype()); };
  if ((all || wanted == Gradients::dkdv) && has_gradient(gradients.k))
    instance.gradients.dk = gradients.k;
  if ((all || wanted != Gradients::dq) && has_gradient(gradients.v))
    instance.gradients.dv = gradients.v;
}

}  // namespace attend::cases
