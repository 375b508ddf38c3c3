// From arguments to Problem and Call. Checks run in the order in which a reader would ask: is each
// tensor sound, do q, k and v fit together, then the options one by one, then what is written.
#include "api/check.h"

#include "api/overlap.h"
#include "core/text.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string>
#include <string_view>

namespace attend {
namespace {

constexpr std::int64_t kMaxOffset = std::int64_t{1} << 62;
constexpr std::int64_t kMaxElements = std::int64_t{1}
                                      << 60;  // keeps every sum of positions in 64 bits

struct Named {
  std::string name;
  ConstTensorView view;
};

class Checker {
 public:
  Checker(std::string_view function, Request& request)
      : function_(function), p_(request.problem), call_(request.call) {}

  void inputs(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
              const AttentionOptions& options);
  void options(const AttentionOptions& options);
  void out(const ConstTensorView& out);
  void outputs(const TensorView& out, const AttentionOutputs& outputs);
  void backward(const BackwardArguments& arguments);
  void merge(const MergeArguments& arguments, std::vector<Part>& parts);

 private:
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw InvalidArgument(text(function_, ": ", parts...));
  }

  // ---- One tensor ----
  Strided sound(std::string_view name, const ConstTensorView& view);
  void rank_is_4(std::string_view name, const ConstTensorView& view, std::string_view form) const;
  void shape_is(std::string_view name, const ConstTensorView& view, const Shape& shape) const;
  void type_is(std::string_view name, DType found, std::initializer_list<DType> allowed) const;
  void type_is_tensors_or_wider(std::string_view name, DType found) const;
  void type_is_statistic(std::string_view name, DType found) const;
  Strided per_head(std::string_view name, const ConstTensorView& view);
  Strided integers(std::string_view name, const ConstTensorView& view, std::int64_t count);
  Strided broadcast(std::string_view name, const ConstTensorView& view, bool keys_may_be_fewer,
                    const Shape& full, std::string_view of);

  // ---- Groups of options ----
  void packed(const ConstTensorView& q, const ConstTensorView& k, const AttentionOptions& options);
  std::int64_t starts(std::string_view name, const Strided& t, std::string_view of,
                      std::int64_t total) const;
  void paged(const ConstTensorView& k, const ConstTensorView& v, const AttentionOptions& options);
  void key_lengths(const AttentionOptions& options);
  void pages(const AttentionOptions& options) const;
  void query_offset(const QueryOffset& offset);
  void mask(const AttentionOptions& options);
  void bias(const AttentionOptions& options);
  void blocks(const Blocks& blocks);
  void dropout(const Dropout& dropout);
  void no_overlap() const;

  Strided written(std::string_view name, const TensorView& view) {
    written_.push_back({std::string(name), view});
    return sound(name, view);
  }
  Strided read(std::string_view name, const ConstTensorView& view) {
    read_.push_back({std::string(name), view});
    return sound(name, view);
  }

  std::string_view function_;
  Problem& p_;
  Call& call_;
  std::vector<Named> written_, read_;
};

// A given tensor that is addressable: device, address, alignment, reach. Up to four dimensions
// become b, h, i and the last one, right-aligned.
Strided Checker::sound(std::string_view name, const ConstTensorView& view) {
  if (!view) fail(name, " is missing");
  if (view.device() != p_.device)
    fail(name, " is on ", view.device(), ", ", read_.front().name, " on ", p_.device,
         "; all tensors must be on one device");
  if (view.count() > kMaxElements) fail(name, " ", view.shape(), " has more than 2^60 elements");
  if (spans_too_far(view))
    fail(name, " ", view.shape(), " with strides ", view.strides(),
         " reaches further than 2^60 bytes");
  if (view.count() > 0) {
    if (view.data() == nullptr) fail(name, " ", view.shape(), " has a null address");
    if (reinterpret_cast<std::uintptr_t>(view.data()) %
            static_cast<std::uintptr_t>(size_of(view.dtype())) !=
        0)
      fail(name, " is ", view.dtype(), ", but its address is not a multiple of ",
           size_of(view.dtype()));
  }
  Strided t{.data = static_cast<std::byte*>(const_cast<void*>(view.data())),
            .type = view.dtype(),
            .given = true};
  for (int dim = 0; dim < view.rank() && dim < 4; ++dim)
    t.stride[static_cast<std::size_t>(dim + 4 - std::min(view.rank(), 4))] = view.strides()[dim];
  return t;
}

void Checker::rank_is_4(std::string_view name, const ConstTensorView& view,
                        std::string_view form) const {
  if (view && view.rank() != 4)
    fail(name, " has ", view.rank(), " dimensions ", view.shape(), "; it must be ", form);
}

void Checker::shape_is(std::string_view name, const ConstTensorView& view,
                       const Shape& shape) const {
  if (view && view.shape() != shape) fail(name, " is ", view.shape(), "; it must be ", shape);
}

void Checker::type_is(std::string_view name, DType found,
                      std::initializer_list<DType> allowed) const {
  if (std::find(allowed.begin(), allowed.end(), found) != allowed.end()) return;
  std::string list;
  for (const DType* type = allowed.begin(); type != allowed.end(); ++type) {
    if (type != allowed.begin()) list += type + 1 == allowed.end() ? " or " : ", ";
    list += name_of(*type);
  }
  fail(name, " is ", found, "; it must be ", list);
}

void Checker::type_is_tensors_or_wider(std::string_view name, DType found) const {
  if (p_.type == DType::f64) type_is(name, found, {DType::f64});
  else if (p_.type == DType::f32) type_is(name, found, {DType::f32, DType::f64});
  else type_is(name, found, {p_.type, DType::f32, DType::f64});
}

void Checker::type_is_statistic(std::string_view name, DType found) const {
  if (p_.type == DType::f64) type_is(name, found, {DType::f64});
  else type_is(name, found, {DType::f32, DType::f64});
}

Strided Checker::per_head(std::string_view name, const ConstTensorView& view) {
  Strided t = read(name, view);
  type_is(name, view.dtype(), {p_.type == DType::f64 ? DType::f64 : DType::f32});
  shape_is(name, view, {p_.heads});
  t.stride = {0, view.strides()[0], 0, 0};
  return t;
}

Strided Checker::integers(std::string_view name, const ConstTensorView& view, std::int64_t count) {
  Strided t = read(name, view);
  type_is(name, view.dtype(), {DType::i32, DType::i64});
  shape_is(name, view, {count});
  t.stride = {view.strides()[0], 0, 0, 0};
  return t;
}

// A mask-like tensor: up to four dimensions, right-aligned, each of size 1 or as in `full`.
Strided Checker::broadcast(std::string_view name, const ConstTensorView& view,
                           bool keys_may_be_fewer, const Shape& full, std::string_view of) {
  Strided t = read(name, view);
  bool fits = view.rank() <= 4;
  for (int dim = 0; fits && dim < view.rank(); ++dim) {
    const int to = dim + 4 - view.rank();
    const std::int64_t size = view.size(dim);
    fits = size == 1 || size == full[to] || (keys_may_be_fewer && to == 3 && size < full[to]);
    if (size == 1) t.stride[static_cast<std::size_t>(to)] = 0;
  }
  if (!fits)
    fail(name, " is ", view.shape(), "; each dimension must be 1 or as in ", full, ", ", of,
         keys_may_be_fewer ? " (fewer keys hide the rest)" : "");
  return t;
}

// Element n of what integers() gave.
std::int64_t entry(const Strided& t, std::int64_t n) noexcept {
  return load_integer(t, t.offset(n, 0, 0));
}

// ---- q, k, v -----------------------------------------------------------------------------------

void Checker::inputs(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                     const AttentionOptions& options) {
  const bool paged_keys = static_cast<bool>(options.block_table);
  p_.device = q.device();
  call_.q = read("q", q);
  call_.k = read("k", k);
  call_.v = read("v", v);
  rank_is_4("q", q, "[batch, heads, queries, d]");
  rank_is_4("k", k,
            paged_keys ? "[pages, key heads, page size, d]" : "[batch, key heads, keys, d]");
  rank_is_4("v", v,
            paged_keys ? "[pages, key heads, page size, dv]" : "[batch, key heads, keys, dv]");
  type_is("q", q.dtype(), {DType::f64, DType::f32, DType::bf16, DType::f16});
  for (const Named& t : {Named{"k", k}, Named{"v", v}})
    if (t.view.dtype() != q.dtype())
      fail(t.name, " is ", t.view.dtype(), ", q is ", q.dtype(), "; q, k and v must have one type");
  if (q.size(3) < 1) fail("q has d ", q.size(3), "; it must be at least 1");
  if (v.size(3) < 1) fail("v has dv ", v.size(3), "; it must be at least 1");
  if (k.size(3) != q.size(3))
    fail("k has d ", k.size(3), ", q has ", q.size(3), "; they must be equal");
  if (v.size(1) != k.size(1))
    fail("v has ", v.size(1), " heads, k has ", k.size(1), "; they must be equal");
  if (k.size(1) == 0 ? q.size(1) != 0 : q.size(1) % k.size(1) != 0)
    fail("k has ", k.size(1), " heads, q has ", q.size(1), "; heads of q must be a multiple");
  if (v.size(0) != k.size(0))
    fail("v has ", paged_keys ? "page count " : "batch size ", v.size(0), ", k has ", k.size(0),
         "; they must be equal");
  if (v.size(2) != k.size(2))
    fail("v has ", v.size(2), paged_keys ? " keys a page" : " keys", ", k has ", k.size(2),
         "; they must be equal");

  p_.type = p_.out_type = p_.bias_type = q.dtype();
  p_.batch = q.size(0);
  p_.heads = q.size(1);
  p_.kv_heads = k.size(1);
  p_.q_length = q.size(2);
  p_.k_length = k.size(2);
  p_.d = q.size(3);
  p_.dv = v.size(3);
  if (options.cu_seqlens_q || options.cu_seqlens_k) packed(q, k, options);
  if (paged_keys) paged(k, v, options);
  if (p_.keys == KeyAddressing::dense && !p_.packed_queries && k.size(0) != p_.batch)
    fail("k has batch size ", k.size(0), ", q has ", p_.batch, "; they must be equal");
  if (options.key_lengths) key_lengths(options);
  if (paged_keys) pages(options);
}

void Checker::packed(const ConstTensorView& q, const ConstTensorView& k,
                     const AttentionOptions& options) {
  if (!options.cu_seqlens_q) fail("cu_seqlens_k is given without cu_seqlens_q");
  if (q.size(0) != 1) fail("q has batch size ", q.size(0), "; packed sequences have 1");
  const ConstTensorView& starts_q = options.cu_seqlens_q;
  if (starts_q.rank() != 1 || starts_q.size(0) < 1)
    fail("cu_seqlens_q is ", starts_q.shape(), "; it must be [sequences + 1]");
  p_.packed_queries = true;
  p_.batch = starts_q.size(0) - 1;
  call_.cu_seqlens_q = integers("cu_seqlens_q", starts_q, p_.batch + 1);
  p_.q_length = starts("cu_seqlens_q", call_.cu_seqlens_q, "q", q.size(2));
  if (options.block_table) {
    if (options.cu_seqlens_k)
      fail("cu_seqlens_k and block_table are both given; keys are packed or on pages, not both");
    return;
  }
  if (k.size(0) != 1) fail("k has batch size ", k.size(0), "; packed sequences have 1");
  p_.keys = KeyAddressing::packed;
  call_.cu_seqlens_k = options.cu_seqlens_k
                           ? integers("cu_seqlens_k", options.cu_seqlens_k, p_.batch + 1)
                           : call_.cu_seqlens_q;
  p_.k_length = starts(options.cu_seqlens_k ? "cu_seqlens_k" : "cu_seqlens_q", call_.cu_seqlens_k,
                       "k", k.size(2));
}

// Checks the starts of packed sequences; returns the length of the longest.
std::int64_t Checker::starts(std::string_view name, const Strided& t, std::string_view of,
                             std::int64_t total) const {
  if (p_.device != Device{}) return total;  // cannot be read here; the kernel clamps
  std::int64_t last = entry(t, 0), longest = 0;
  if (last != 0) fail(name, " begins with ", last, "; it must begin with 0");
  for (std::int64_t n = 1; n <= p_.batch; ++n) {
    const std::int64_t next = entry(t, n);
    if (next < last)
      fail(name, " falls from ", last, " to ", next, " at ", n, "; it must rise or stay");
    longest = std::max(longest, next - last);
    last = next;
  }
  if (last != total)
    fail(name, " ends with ", last, ", ", of, " has length ", total, "; they must be equal");
  return longest;
}

void Checker::paged(const ConstTensorView& k, const ConstTensorView& v,
                    const AttentionOptions& options) {
  const ConstTensorView& table = options.block_table;
  call_.block_table = read("block_table", table);
  type_is("block_table", table.dtype(), {DType::i32, DType::i64});
  if (table.rank() != 2 || table.size(0) != p_.batch)
    fail("block_table is ", table.shape(), "; it must be [", p_.batch,
         ", pages of the longest sequence]");
  if (!options.key_lengths) fail("block_table is given without key_lengths; pages need both");
  if (k.size(2) < 1) fail("k has pages of ", k.size(2), " keys; at least 1 is needed");
  call_.block_table.stride = {table.strides()[0], 0, 0, table.strides()[1]};
  p_.keys = KeyAddressing::paged;
  p_.pages = v.size(0);
  p_.page_size = k.size(2);
  if (__builtin_mul_overflow(table.size(1), p_.page_size, &p_.k_length) ||
      p_.k_length > kMaxElements)
    fail("block_table has ", table.size(1), " pages of ", p_.page_size,
         " keys, more than 2^60 in all");
}

void Checker::key_lengths(const AttentionOptions& options) {
  call_.key_lengths = integers("key_lengths", options.key_lengths, p_.batch);
  p_.key_lengths = true;
  if (p_.device != Device{}) return;
  for (std::int64_t b = 0; b < p_.batch; ++b) {
    const std::int64_t length = entry(call_.key_lengths, b);
    const std::int64_t most = p_.keys == KeyAddressing::packed
                                  ? entry(call_.cu_seqlens_k, b + 1) - entry(call_.cu_seqlens_k, b)
                                  : p_.k_length;
    if (length < 0 || length > most)
      fail("key_lengths[", b, "] is ", length, "; it must be from 0 to ", most);
  }
}

// Every page that holds a key below key_lengths must exist.
void Checker::pages(const AttentionOptions& options) const {
  if (p_.device != Device{}) return;
  const Strided& table = call_.block_table;
  for (std::int64_t b = 0; b < options.block_table.size(0); ++b) {
    const std::int64_t length = entry(call_.key_lengths, b);
    for (std::int64_t n = 0; n * p_.page_size < length; ++n) {
      const std::int64_t page = load_integer(table, table.offset(b, 0, 0, n));
      if (page < 0 || page >= p_.pages)
        fail("block_table[", b, ", ", n, "] is ", page, "; it must be at least 0 and below ",
             p_.pages, ", the pages of k");
    }
  }
}

// ---- Options -----------------------------------------------------------------------------------

void Checker::options(const AttentionOptions& options) {
  p_.scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(p_.d)));
  if (!std::isfinite(p_.scale)) fail("scale is ", p_.scale, "; it must be finite");
  p_.softcap = options.softcap;
  if (!std::isfinite(p_.softcap) || p_.softcap < 0)
    fail("softcap is ", p_.softcap, "; it must be finite and at least 0 (0: none)");
  p_.bias_before_softcap = options.bias_before_softcap;
  p_.causal = options.causal;
  p_.window_left = options.window.left;
  p_.window_right = options.window.right;
  for (const auto& [name, value] :
       {std::pair{"window.left", p_.window_left}, std::pair{"window.right", p_.window_right}})
    if (value < 0) fail(name, " is ", value, "; it must be at least 0 (kUnlimited: no limit)");
  query_offset(options.query_offset);
  if (options.mask) mask(options);
  if (options.bias) bias(options);
  p_.alibi = static_cast<bool>(options.alibi);
  if (p_.alibi) call_.alibi = per_head("alibi", options.alibi);
  p_.sinks = static_cast<bool>(options.sinks);
  if (p_.sinks) call_.sinks = per_head("sinks", options.sinks);
  blocks(options.blocks);
  dropout(options.dropout);
}

void Checker::query_offset(const QueryOffset& offset) {
  const auto bounded = [&](std::int64_t value, const auto&... of) {
    if (value <= -kMaxOffset || value >= kMaxOffset)
      fail("query_offset", of..., " is ", value, "; it must lie between -2^62 and 2^62");
  };
  if (offset.all()) {
    bounded(*offset.all());
    p_.offset_given = true;
    p_.offset = *offset.all();
  } else if (offset.each()) {
    call_.query_offset = integers("query_offset", offset.each(), p_.batch);
    p_.offset_each = true;
    if (p_.device != Device{}) return;
    for (std::int64_t b = 0; b < p_.batch; ++b) bounded(entry(call_.query_offset, b), "[", b, "]");
  }
}

void Checker::mask(const AttentionOptions& options) {
  const ConstTensorView& mask = options.mask;
  if (is_floating_point(mask.dtype()))
    fail("mask is ", mask.dtype(), "; a mask is bool or integer (0 = hidden), give floats as bias");
  const Shape full{p_.batch, p_.heads, p_.q_length, p_.k_length};
  call_.mask = broadcast("mask", mask, true, full, "[batch, heads, queries, keys]");
  p_.mask = true;
  const std::int64_t keys = mask.rank() == 0 ? 1 : mask.size(mask.rank() - 1);
  p_.mask_keys = keys == 1 ? p_.k_length : keys;
}

void Checker::bias(const AttentionOptions& options) {
  const ConstTensorView& bias = options.bias;
  if (!is_floating_point(bias.dtype()))
    fail("bias is ", bias.dtype(), "; a bias is floating-point, give bools and integers as mask");
  if (p_.type == DType::f32) type_is("bias", bias.dtype(), {DType::f32});
  else type_is("bias", bias.dtype(), {p_.type, DType::f32});
  const Shape full{p_.batch, p_.heads, p_.q_length, p_.k_length};
  call_.bias = broadcast("bias", bias, true, full, "[batch, heads, queries, keys]");
  p_.bias = true;
  p_.bias_type = bias.dtype();
  const auto size = [&](int from_right) {
    return bias.rank() < from_right ? 1 : bias.size(bias.rank() - from_right);
  };
  p_.dbias_batch = size(4);
  p_.dbias_heads = size(3);
  p_.dbias_queries = size(2);
  p_.dbias_keys = size(1);
  p_.bias_keys = p_.dbias_keys == 1 ? p_.k_length : p_.dbias_keys;
}

void Checker::blocks(const Blocks& blocks) {
  if (!blocks.visible) {
    if (blocks.query_size != 0 || blocks.key_size != 0)
      fail("blocks has sizes ", blocks.query_size, " and ", blocks.key_size, ", but no visible");
    return;
  }
  if (blocks.query_size < 1 || blocks.key_size < 1)
    fail("blocks has sizes ", blocks.query_size, " and ", blocks.key_size,
         "; both must be at least 1");
  if (is_floating_point(blocks.visible.dtype()))
    fail("blocks.visible is ", blocks.visible.dtype(), "; it must be bool or integer");
  const auto count = [](std::int64_t length, std::int64_t size) {
    return length / size + (length % size != 0);
  };
  const Shape full{p_.batch, p_.heads, count(p_.q_length, blocks.query_size),
                   count(p_.k_length, blocks.key_size)};
  call_.blocks = broadcast("blocks.visible", blocks.visible, false, full,
                           "[batch, heads, query blocks, key blocks]");
  p_.blocks = true;
  p_.block_queries = blocks.query_size;
  p_.block_keys = blocks.key_size;
}

void Checker::dropout(const Dropout& dropout) {
  if (!(dropout.p >= 0 && dropout.p <= 1))
    fail("dropout.p is ", dropout.p, "; it must be from 0 to 1");
  p_.drop_below = static_cast<std::uint32_t>(std::lround(dropout.p * 65536));
  if (p_.drop_below == 0) return;
  const Dropout::Origin& origin = dropout.origin;
  const std::int64_t heads = origin.heads == 0 ? p_.heads : origin.heads;
  if (origin.b < 0 || origin.h < 0 || origin.i < 0 || origin.j < 0 || origin.heads < 0)
    fail("dropout.origin is (", origin.b, ", ", origin.h, ", ", origin.i, ", ", origin.j, ") of ",
         origin.heads, " heads; all must be at least 0");
  if (heads - origin.h < p_.heads)
    fail("dropout.origin is head ", origin.h, " of ", heads, "; the ", p_.heads,
         " heads of q do not fit there");
  // The counter has 32 bits for each of j / 8, i and b * heads + h.
  constexpr std::int64_t kLimit = std::int64_t{1} << 32;
  std::int64_t rows = 0;
  const bool fits = origin.j <= 8 * kLimit - p_.k_length && origin.i <= kLimit - p_.q_length &&
                    origin.b <= kLimit && p_.batch <= kLimit &&
                    !__builtin_mul_overflow(origin.b + p_.batch, heads, &rows) && rows <= kLimit;
  if (!fits)
    fail("dropout draws for ", p_.batch, " x ", heads, " heads, ", p_.q_length, " queries and ",
         p_.k_length, " keys from (", origin.b, ", ", origin.h, ", ", origin.i, ", ", origin.j,
         ") on; it must not go past 2^32 heads, 2^32 queries and 2^35 keys");
  p_.dropout_seed = dropout.seed;
  p_.dropout_offset = dropout.offset;
  p_.origin_b = origin.b;
  p_.origin_h = origin.h;
  p_.origin_i = origin.i;
  p_.origin_j = origin.j;
  p_.origin_heads = heads;
}

// ---- Outputs and gradients ---------------------------------------------------------------------

// The sizes as q has them: packed, batch is 1 and queries are all in one row.
Shape rows_of(const ConstTensorView& q) { return {q.size(0), q.size(1), q.size(2)}; }
Shape rows_of(const ConstTensorView& q, std::int64_t last) {
  return {q.size(0), q.size(1), q.size(2), last};
}

void Checker::outputs(const TensorView& out, const AttentionOutputs& outputs) {
  const ConstTensorView q = read_.front().view;
  call_.out = written("out", out);
  shape_is("out", out, rows_of(q, p_.dv));
  type_is_tensors_or_wider("out", out.dtype());
  p_.out_type = out.dtype();
  if ((p_.lse = static_cast<bool>(outputs.lse))) {
    call_.lse = written("lse", outputs.lse);
    shape_is("lse", outputs.lse, rows_of(q));
    type_is_statistic("lse", outputs.lse.dtype());
    call_.lse.stride = {outputs.lse.strides()[0], outputs.lse.strides()[1],
                        outputs.lse.strides()[2], 0};
  }
  const Shape square{p_.batch, p_.heads, p_.q_length, p_.k_length};
  if ((p_.weights = static_cast<bool>(outputs.weights))) {
    call_.weights = written("weights", outputs.weights);
    shape_is("weights", outputs.weights, square);
    type_is_tensors_or_wider("weights", outputs.weights.dtype());
  }
  if ((p_.scores = static_cast<bool>(outputs.scores))) {
    call_.scores = written("scores", outputs.scores);
    shape_is("scores", outputs.scores, square);
    type_is_tensors_or_wider("scores", outputs.scores.dtype());
    p_.stage = outputs.stage;
  }
  if ((p_.visited_blocks = outputs.visited_blocks != nullptr)) {
    if (!p_.blocks) fail("visited_blocks is asked for, but there are no blocks");
    written("visited_blocks", {outputs.visited_blocks, DType::i64, {1}, p_.device});
    call_.visited_blocks = outputs.visited_blocks;
  }
  no_overlap();
}

void Checker::backward(const BackwardArguments& a) {
  const auto rows = [](Strided t, const ConstTensorView& view) {
    t.stride = {view.strides()[0], view.strides()[1], view.strides()[2], 0};
    return t;
  };
  call_.out = read("out", a.out);
  shape_is("out", a.out, rows_of(a.q, p_.dv));
  type_is_tensors_or_wider("out", a.out.dtype());
  p_.out_type = a.out.dtype();
  call_.lse = read("lse", a.lse);
  shape_is("lse", a.lse, rows_of(a.q));
  type_is_statistic("lse", a.lse.dtype());
  call_.lse = rows(call_.lse, a.lse);
  call_.dout = read("dout", a.dout);
  shape_is("dout", a.dout, rows_of(a.q, p_.dv));
  type_is_tensors_or_wider("dout", a.dout.dtype());
  if ((p_.dlse = static_cast<bool>(a.dlse))) {
    call_.dlse = read("dlse", a.dlse);
    shape_is("dlse", a.dlse, rows_of(a.q));
    type_is_statistic("dlse", a.dlse.dtype());
    call_.dlse = rows(call_.dlse, a.dlse);
  }

  const AttentionGradients& g = a.gradients;
  const auto gradient = [&](std::string_view name, const TensorView& view, std::string_view of_name,
                            const ConstTensorView& of, Strided& t) {
    if (!view) return false;
    if (!of) fail(name, " is asked for, but there is no ", of_name);
    t = written(name, view);
    shape_is(name, view, of.shape());
    type_is(name, view.dtype(), {of.dtype()});
    return true;
  };
  p_.dq = gradient("dq", g.dq, "q", a.q, call_.dq);
  p_.dk = gradient("dk", g.dk, "k", a.k, call_.dk);
  p_.dv_gradient = gradient("dv", g.dv, "v", a.v, call_.dv);
  p_.dbias = gradient("dbias", g.dbias, "bias", a.options.bias, call_.dbias);
  p_.dsinks = gradient("dsinks", g.dsinks, "sinks", a.options.sinks, call_.dsinks);
  p_.dalibi = gradient("dalibi", g.dalibi, "alibi", a.options.alibi, call_.dalibi);
  if (p_.dsinks) call_.dsinks.stride = {0, g.dsinks.strides()[0], 0, 0};
  if (p_.dalibi) call_.dalibi.stride = {0, g.dalibi.strides()[0], 0, 0};
  if (written_.empty())
    fail("no gradient is asked for; dq, dk, dv, dbias, dsinks or dalibi is needed");
  no_overlap();
}

void Checker::merge(const MergeArguments& a, std::vector<Part>& parts) {
  if (a.o.empty()) fail("there are no parts; at least one is needed");
  if (a.o.size() != a.lse.size())
    fail("there are ", a.o.size(), " o and ", a.lse.size(), " lse; each part has one of both");
  const auto rows = [](Strided t, const ConstTensorView& view) {
    t.stride = {view.strides()[0], view.strides()[1], view.strides()[2], 0};
    return t;
  };
  p_.device = a.o.front().device();
  p_.parts = static_cast<std::int64_t>(a.o.size());
  for (std::size_t n = 0; n < a.o.size(); ++n) {
    const std::string o_name = text("o[", n, "]"), lse_name = text("lse[", n, "]");
    const Strided o = read(o_name, a.o[n]), lse = read(lse_name, a.lse[n]);
    rank_is_4(o_name, a.o[n], "[batch, heads, queries, dv]");
    type_is(o_name, a.o[n].dtype(), {DType::f64, DType::f32, DType::bf16, DType::f16});
    shape_is(o_name, a.o[n], a.o.front().shape());
    shape_is(lse_name, a.lse[n], rows_of(a.o.front()));
    type_is(lse_name, a.lse[n].dtype(), {DType::f32, DType::f64});
    parts.push_back({o, rows(lse, a.lse[n])});
  }
  const Shape& shape = a.o.front().shape();
  p_.type = a.o.front().dtype();
  p_.batch = shape[0];
  p_.heads = p_.kv_heads = shape[1];
  p_.q_length = shape[2];
  p_.dv = shape[3];
  call_.out = written("out", a.out);
  shape_is("out", a.out, shape);
  type_is("out", a.out.dtype(), {DType::f64, DType::f32, DType::bf16, DType::f16});
  p_.out_type = a.out.dtype();
  if ((p_.lse = static_cast<bool>(a.lse_out))) {
    call_.lse = written("lse_out", a.lse_out);
    shape_is("lse_out", a.lse_out, rows_of(a.o.front()));
    type_is("lse_out", a.lse_out.dtype(), {DType::f32, DType::f64});
    call_.lse = rows(call_.lse, a.lse_out);
  }
  call_.parts = parts.data();
  no_overlap();
}

void Checker::no_overlap() const {
  for (auto w = written_.begin(); w != written_.end(); ++w) {
    if (overlaps_itself(w->view))
      fail(w->name, " ", w->view.shape(), " with strides ", w->view.strides(),
           " has elements that share memory; what is written must not");
    const auto apart_from = [&](const Named& other) {
      if (overlap(w->view, other.view))
        fail(w->name, " overlaps ", other.name, " in memory; what is written must not");
    };
    std::for_each(written_.begin(), w, apart_from);
    std::for_each(read_.begin(), read_.end(), apart_from);
  }
}

}  // namespace

Request check(const ForwardArguments& a) {
  Request request;
  request.problem.operation = Operation::forward;
  Checker checker("attention", request);
  checker.inputs(a.q, a.k, a.v, a.options);
  checker.options(a.options);
  checker.outputs(a.out, a.outputs);
  return request;
}

Request check(const BackwardArguments& a) {
  Request request;
  request.problem.operation = Operation::backward;
  Checker checker("attention_backward", request);
  checker.inputs(a.q, a.k, a.v, a.options);
  checker.options(a.options);
  checker.backward(a);
  return request;
}

Request check(const MergeArguments& a, std::vector<Part>& parts) {
  Request request;
  request.problem.operation = Operation::merge;
  Checker("merge", request).merge(a, parts);
  return request;
}

}  // namespace attend
