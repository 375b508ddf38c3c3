// Rotary positions: pairs of features are turned by an angle that grows with the position, so that
// q . k depends on the distance of the two alone (Su et al., "RoFormer", 2021).
#pragma once

#include "core/row_operations.h"

#include <attend/multi_head_attention.h>

namespace attend {

// Of q and k as attention() gets them, by its rules: query i at i + query_offset, key j at j,
// inside its sequence. The options must have passed its check.
RowPlaces query_places(const ConstTensorView& q, const ConstTensorView& k,
                       const AttentionOptions& options);
RowPlaces key_places(const ConstTensorView& k, const AttentionOptions& options);

// Rows of x [batch, heads, rows, d] that follow so many others, [batch].
RowPlaces places_after(const ConstTensorView& x, const ConstTensorView& lengths);

// Turns the rows of x [batch, heads, rows, d] in place; `backward` turns them back, which is the
// gradient too.
//   (a, b) <- (a cos t - b sin t, a sin t + b cos t),   t = position * base^(-2c / dim)
void rotate(const Rotary& rotary, const RowPlaces& places, const TensorView& x, bool backward,
            const Where& where);

}  // namespace attend
