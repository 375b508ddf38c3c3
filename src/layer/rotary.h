// Rotary positions: pairs of features are turned by an angle that grows with the position, so that
// q . k depends on the distance of the two alone (Su et al., "RoFormer", 2021).
#pragma once

#include <attend/multi_head_attention.h>

#include <vector>

namespace attend {

// Where each row of q, of k stands: position[b * rows + row], for [batch, heads, rows, d]. By the
// rules of attention: query i at i + query_offset, key j at j, inside its sequence. q and k as
// attention() gets them; the options must have passed its check.
std::vector<std::int64_t> query_positions(const ConstTensorView& q, const ConstTensorView& k,
                                          const AttentionOptions& options);
std::vector<std::int64_t> key_positions(const ConstTensorView& k, const AttentionOptions& options);

// Turns the rows of x [batch, heads, rows, d] in place; `backward` turns them back, which is the
// gradient too.
//   (a, b) <- (a cos t - b sin t, a sin t + b cos t),   t = position * base^(-2c / dim)
void rotate(const Rotary& rotary, const std::vector<std::int64_t>& positions, const TensorView& x,
            bool backward, const Where& where);

}  // namespace attend
