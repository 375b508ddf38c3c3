#include "layer/hidden_rows.h"

#include "api/visibility.h"
#include "core/text.h"
#include "layer/rows.h"

#include <bit>
#include <cstring>

namespace attend {
namespace {

// What may hide a row from all others, if anything does; else null. Nearly all calls can be told by
// this.
const char* hiding_option(const AttentionOptions& o, std::int64_t queries, std::int64_t keys) {
  if (queries == 0 && keys == 0) return nullptr;  // there are no rows
  if (o.mask) return "mask";
  if (o.bias) return "bias";
  if (o.blocks.visible) return "blocks";
  if (o.key_lengths) return "key_lengths";
  if (o.cu_seqlens_q) return "cu_seqlens";
  if (o.query_offset.all() || o.query_offset.each()) return "query_offset";
  if (o.window.left != kUnlimited || o.window.right != kUnlimited) return "window";
  if (o.causal && queries != keys) return "causal";
  return queries == 0 || keys == 0 ? "call" : nullptr;
}

// All of the exponent's bits: NaN or infinity.
template <class Bits, class T>
bool all_finite(const T* x, std::int64_t count, Bits exponent) noexcept {
  Bits found = 0;
  for (std::int64_t n = 0; n < count; ++n)
    found = static_cast<Bits>(found | ((std::bit_cast<Bits>(x[n]) & exponent) == exponent ? 1 : 0));
  return found == 0;
}

bool all_finite(const std::byte* row, DType type, std::int64_t count) noexcept {
  switch (type) {
    case DType::f64:
      return all_finite<std::uint64_t>(reinterpret_cast<const double*>(row), count,
                                       0x7FF0000000000000);
    case DType::f32:
      return all_finite<std::uint32_t>(reinterpret_cast<const float*>(row), count, 0x7F800000);
    case DType::bf16:
      return all_finite<std::uint16_t>(reinterpret_cast<const bf16*>(row), count, 0x7F80);
    default: return all_finite<std::uint16_t>(reinterpret_cast<const f16*>(row), count, 0x7C00);
  }
}

// Zeros in the rows of x that are not finite and for which hidden(b, row) is true.
template <class Hidden>
void clear_rows(const TensorView& x, const Where& where, const Hidden& hidden) {
  if (!x) return;
  const std::int64_t length = x.size(x.rank() - 2), features = x.size(x.rank() - 1);
  const std::int64_t bytes = features * size_of(x.dtype());
  if (x.count() == 0) return;
  for_row_blocks(x.count() / features, features, where, [&](auto, auto begin, auto end) {
    for (std::int64_t row = begin; row < end; ++row) {
      std::byte* const at = static_cast<std::byte*>(x.data()) + row * bytes;
      if (all_finite(at, x.dtype(), features) || !hidden(row / length, row % length)) continue;
      std::memset(at, 0, static_cast<std::size_t>(bytes));
    }
  });
}

}  // namespace

void check_hides_no_rows(Device device, const AttentionOptions& options, std::int64_t queries,
                         std::int64_t keys) {
  if (device == Device{}) return;
  if (const char* const found = hiding_option(options, queries, keys); found != nullptr)
    throw Unsupported(text("multi_head_attention: forward_train on ", device, " takes no ", found,
                           " with ", queries, " queries of ", keys,
                           " keys, as it may hide a row from all others; forward() does"));
}

void clear_hidden_rows(const KeptInputs& kept, const ConstTensorView& q, const ConstTensorView& k,
                       const ConstTensorView& v, const AttentionOptions& options,
                       const Where& where) {
  if (hiding_option(options, q.size(2), k.size(2)) == nullptr) return;
  const Visibility visibility(q, k, v, options);
  const auto as_query = [&](std::int64_t b, std::int64_t row) {
    return !visibility.query_sees_a_key(b, row);
  };
  const auto as_key = [&](std::int64_t b, std::int64_t row) {
    return !visibility.key_is_seen(b, row);
  };
  if (!kept.key) {
    clear_rows(kept.query, where, [&](std::int64_t b, std::int64_t row) {
      return as_query(b, row) && as_key(b, row);
    });
    return;
  }
  clear_rows(kept.query, where, as_query);
  clear_rows(kept.key, where, as_key);
  clear_rows(kept.value, where, as_key);
}

}  // namespace attend
