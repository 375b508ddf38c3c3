// Rules for q, k and v: do they fit together, and does every query and key have a place.
#include "api/checker.h"

#include <algorithm>

namespace attend {

void Checker::inputs(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                     const AttentionOptions& options) {
  const bool paged_keys = static_cast<bool>(options.block_table);
  p_.device = device_ = q.device();
  call_.q = read("q", q);
  call_.k = read("k", k);
  call_.v = read("v", v);
  rank_is_4("q", q, "[batch, heads, queries, d]");
  rank_is_4("k", k,
            paged_keys ? "[pages, key heads, page size, d]" : "[batch, key heads, keys, d]");
  rank_is_4("v", v,
            paged_keys ? "[pages, key heads, page size, dv]" : "[batch, key heads, keys, dv]");
  types(q, k, v, options);
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
    fail("v has ", v.size(2), paged_keys ? " keys per page" : " keys", ", k has ", k.size(2),
         "; they must be equal");

  p_.batch = q.size(0);
  p_.heads = q.size(1);
  p_.kv_heads = k.size(1);
  p_.q_length = q.size(2);
  p_.k_length = k.size(2);
  p_.d = q.size(3);
  p_.dv = v.size(3);
  if (options.cu_seqlens_q || options.cu_seqlens_k) packed(q, k, options);
  if (options.max_q && !p_.packed_queries)
    fail("max_q is ", *options.max_q,
         ", but there is no cu_seqlens_q; max_q is for packed sequences");
  if (options.max_k && paged_keys)
    fail("max_k is ", *options.max_k,
         ", but keys are on pages; block_table says how many there can be");
  if (options.max_k && !p_.packed_queries)
    fail("max_k is ", *options.max_k,
         ", but there is no cu_seqlens_q; max_k is for packed sequences");
  if (paged_keys) paged(k, v, options);
  if (!p_.packed_queries) most_q_ = p_.q_length;
  if (p_.keys != KeyAddressing::packed) most_k_ = p_.k_length;
  if (p_.keys == KeyAddressing::dense && !p_.packed_queries && k.size(0) != p_.batch)
    fail("k has batch size ", k.size(0), ", q has ", p_.batch, "; they must be equal");
  for (const Shape& rows :
       {Shape{p_.batch, p_.heads, most_q_}, Shape{p_.batch, p_.kv_heads, most_k_}})
    if (product_of(rows) > kMaxElements)
      fail("batch, heads and length ", rows, " multiply to more than 2^60");
  if (options.key_lengths) key_lengths(options);
  if (paged_keys) pages(options);
}

// k and v may each be stored in fewer bits than q; whole numbers mean something by their scales.
// f32 beside f64 is more often a mistake than wanted, and no fast kernel would take it.
void Checker::types(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                    const AttentionOptions& options) {
  type_is("q", q.dtype(), {DType::f64, DType::f32, DType::bf16, DType::f16});
  p_.type = p_.bias_type = q.dtype();
  const auto take = [&](std::string_view name, DType type, const ConstTensorView& scales, bool& own,
                        DType& to) {
    if (type != p_.type && type != DType::bf16 && type != DType::f16 && type != DType::i8) {
      if (size_of(p_.type) == 2)
        fail(name, " is ", type, " and q ", p_.type, "; ", name, " must be bf16, f16 or i8");
      fail(name, " is ", type, " and q ", p_.type, "; ", name, " must be ", p_.type,
           ", bf16, f16 or i8");
    }
    if (type == DType::i8 && !scales)
      fail(name, " is i8, but ", name, "_scales is missing; it says what the numbers mean");
    if ((own = type != p_.type)) to = type;
  };
  take("k", k.dtype(), options.k_scales, p_.own_k_type, p_.k_type);
  if (has_values_) take("v", v.dtype(), options.v_scales, p_.own_v_type, p_.v_type);
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
  const auto most = [&](std::string_view of, std::string_view name,
                        const std::optional<std::int64_t>& given, std::int64_t longest) {
    if (p_.device != Device{} && !given)
      fail(of, " is missing; ", name, " is on ", p_.device,
           ", where the host cannot read the length of the longest sequence");
    if (given && *given < 0) fail(of, " is ", *given, "; it must be at least 0");
    if (given && *given < longest)
      fail(of, " is ", *given, "; the longest sequence of ", name, " has length ", longest,
           ", and it must be at least that");
    return given.value_or(longest);
  };
  // No sequence has more than all of them: how the work is cut does not follow a size that is far
  // too large.
  most_q_ = most("max_q", "cu_seqlens_q", options.max_q,
                 starts("cu_seqlens_q", call_.cu_seqlens_q, "q", q.size(2)));
  p_.q_length = std::min(most_q_, q.size(2));
  call_.packed_queries = q.size(2);
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
  const std::string_view name = options.cu_seqlens_k ? "cu_seqlens_k" : "cu_seqlens_q";
  most_k_ =
      most("max_k", name, options.max_k || options.cu_seqlens_k ? options.max_k : options.max_q,
           starts(name, call_.cu_seqlens_k, "k", k.size(2)));
  p_.k_length = std::min(most_k_, k.size(2));
  call_.packed_keys = k.size(2);
}

// Checks the starts of packed sequences; returns the length of the longest, on a device 0.
std::int64_t Checker::starts(std::string_view name, const Strided& t, std::string_view of,
                             std::int64_t total) const {
  if (p_.device != Device{}) return 0;  // cannot be read here; the kernel clamps
  std::int64_t last = entry(t, 0), longest = 0;
  if (last != 0) fail(name, " begins with ", last, "; it must begin with 0");
  for (std::int64_t n = 1; n <= p_.batch; ++n) {
    const std::int64_t next = entry(t, n);
    if (next < last)
      fail(name, " falls from ", last, " to ", next, " at ", n, "; it must not decrease");
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

}  // namespace attend
