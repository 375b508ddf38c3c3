// Rules for the options, one by one.
#include "api/checker.h"

#include <attend/option_list.h>

#include <cmath>
#include <utility>

namespace attend {
namespace {

constexpr std::int64_t kMaxOffset = std::int64_t{1} << 62;

// Whoever changes this has written a rule for the new option, here or in check_inputs.cpp, which
// takes it into the Problem and the Call: without one it would be ignored.
static_assert(kOptionCount == 21);

}  // namespace

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
  if (options.key_offset) key_offset(options);
  if (options.mask) mask(options);
  if (options.bias) bias(options);
  p_.alibi = static_cast<bool>(options.alibi);
  if (p_.alibi) call_.alibi = per_head("alibi", options.alibi);
  p_.sinks = static_cast<bool>(options.sinks);
  if (p_.sinks) call_.sinks = per_head("sinks", options.sinks);
  blocks(options.blocks);
  const auto scales = [&](std::string_view name, const ConstTensorView& given, Strided& to) {
    if (!given) return false;
    to = read(name, given);
    type_is(name, given.dtype(), {DType::f32});
    const ConstTensorView& k = read_[1].view;
    shape_is(name, given, {k.size(0), k.size(1), k.size(2)});
    to = per_row(to, given);
    return true;
  };
  p_.k_scales = scales("k_scales", options.k_scales, call_.k_scales);
  p_.v_scales = scales("v_scales", options.v_scales, call_.v_scales);
  dropout(options.dropout, options.key_offset);
}

void Checker::query_offset(const QueryOffset& offset) {
  const auto bounded = [&](std::int64_t value, const auto&... of) {
    if (value <= -kMaxOffset || value >= kMaxOffset)
      fail("query_offset", of..., " is ", value, "; it must lie between -2^62 and 2^62");
  };
  if (offset.all()) {
    bounded(*offset.all());
    p_.offset_given = true;
    call_.offset = *offset.all();
  } else if (offset.each()) {
    call_.query_offset = integers("query_offset", offset.each(), p_.batch);
    p_.offset_each = true;
    if (p_.device != Device{}) return;
    for (std::int64_t b = 0; b < p_.batch; ++b) bounded(entry(call_.query_offset, b), "[", b, "]");
  }
}

void Checker::key_offset(const AttentionOptions& options) {
  const std::int64_t value = *options.key_offset;
  if (value <= -kMaxOffset || value >= kMaxOffset)
    fail("key_offset is ", value, "; it must lie between -2^62 and 2^62");
  p_.key_offset = true;
  call_.key_offset = value;
  const bool compares = p_.causal || p_.window_left != kUnlimited ||
                        p_.window_right != kUnlimited || options.alibi || compares_positions_;
  if (compares && !p_.offset_given && !p_.offset_each)
    fail("key_offset is ", value,
         " and query_offset is not given; a part of the keys needs both, the positions of query 0 "
         "and of key 0");
  const auto apart = [&](std::int64_t offset, const auto&... of) {
    if (offset - value <= -kMaxOffset || offset - value >= kMaxOffset)
      fail("query_offset", of..., " is ", offset, " and key_offset ", value,
           "; they must be less than 2^62 apart");
  };
  if (p_.offset_given) apart(call_.offset);
  if (!p_.offset_each || p_.device != Device{}) return;
  for (std::int64_t b = 0; b < p_.batch; ++b) apart(entry(call_.query_offset, b), "[", b, "]");
}

void Checker::mask(const AttentionOptions& options) {
  const ConstTensorView& mask = options.mask;
  if (is_floating_point(mask.dtype()))
    fail("mask is ", mask.dtype(), "; a mask is bool or integer (0 = hidden), give floats as bias");
  call_.mask = broadcast("mask", mask, true, square(), "[batch, heads, queries, keys]");
  p_.mask = true;
  p_.mask_type = mask.dtype();
  const std::int64_t keys = mask.rank() == 0 ? 1 : mask.size(mask.rank() - 1);
  p_.mask_keys = keys == 1 ? p_.k_length : keys;
}

void Checker::bias(const AttentionOptions& options) {
  const ConstTensorView& bias = options.bias;
  if (!is_floating_point(bias.dtype()))
    fail("bias is ", bias.dtype(), "; a bias is floating-point, give bools and integers as mask");
  if (p_.type == DType::f32) type_is("bias", bias.dtype(), {DType::f32});
  else type_is("bias", bias.dtype(), {p_.type, DType::f32});
  call_.bias = broadcast("bias", bias, true, square(), "[batch, heads, queries, keys]");
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
  const Shape full{p_.batch, p_.heads, count(most_q_, blocks.query_size),
                   count(most_k_, blocks.key_size)};
  call_.blocks = broadcast("blocks.visible", blocks.visible, false, full,
                           "[batch, heads, query blocks, key blocks]");
  p_.blocks = true;
  p_.blocks_type = blocks.visible.dtype();
  p_.block_queries = blocks.query_size;
  p_.block_keys = blocks.key_size;
}

void Checker::dropout(const Dropout& dropout, const std::optional<std::int64_t>& key_offset) {
  if (!(dropout.p >= 0 && dropout.p <= 1))
    fail("dropout.p is ", dropout.p, "; it must be from 0 to 1");
  p_.drop_below = static_cast<std::uint32_t>(std::lround(dropout.p * 65536));
  if (p_.drop_below == 0) return;
  Dropout::Origin origin = dropout.origin;
  if (key_offset) {
    if (origin.j != 0)
      fail("key_offset is ", *key_offset, " and dropout.origin.j ", origin.j,
           "; both say where the keys begin, give one");
    if (*key_offset < 0)
      fail("key_offset is ", *key_offset, "; dropout draws for keys from position 0 on");
    origin.j = *key_offset;
  }
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
  call_.draws = {dropout.seed, dropout.offset, origin.b, origin.h, origin.i, origin.j, heads};
}

}  // namespace attend
