// Scales of keys and values (k_scales, v_scales). A row is multiplied by its scale as a whole, so
// the scale need not touch the row:
//
//   s = (q . k) * k_scale        one multiplication with each score, beside d multiply-adds
//   o = sum of (p * v_scale) v   one with each weight, after their sum has been taken
//
// Whole numbers of 8 bits stay what they are in any operand, and a product with 2^-24 of error for
// each element becomes one with each sum. What this costs is the same for every d; decode stays
// bound by memory.
//
// A scale that is NaN or infinite multiplies the row itself, and is 1 from then on: 0 times an
// infinity is NaN in the row's own places alone, and a weight of 0 stays 0, so that what is hidden
// stays so.
#pragma once

#include "core/call.h"
#include "core/sequence.h"
#include "cpu/elements.h"

namespace attend {
namespace {

// The scales of the keys [from, to), and 0 up to `all` of them. Gives whether all are finite.
template <class Sum, class Problem, class Call>
bool load_scales(const Problem& p, const Call& call, const Strided& t, const Sequence& sequence,
                 std::int64_t kv_head, std::int64_t from, std::int64_t to, std::int64_t all,
                 Sum* scales) noexcept {
  const auto* data = reinterpret_cast<const float*>(t.data);
  Sum check = 0;
  for (std::int64_t j = from; j < to; ++j) {
    const auto scale = static_cast<Sum>(data[key_row(p, call, t, sequence, kv_head, j)]);
    scales[j - from] = scale;
    check += scale * 0;
  }
  for (std::int64_t j = to - from; j < all; ++j) scales[j] = 0;
  return check == 0;
}

// After the row has been brought.
template <class E, class Sum>
ATTEND_INLINE void take_scale(E* row, std::int64_t count, Sum& scale) noexcept {
  if (scale - scale == 0) return;  // finite
  for (std::int64_t x = 0; x < count; ++x)
    row[x] = static_cast<E>(widened(row[x]) * static_cast<double>(scale));
  scale = 1;
}

}  // namespace
}  // namespace attend
