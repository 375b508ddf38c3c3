// The tensors of a layer as blobs: with them every cell can be computed on the page.
#pragma once

#include "view/blobs.h"
#include "view/single.h"

namespace attend::view {

// [1, heads, length, d] in its own type; f64 as f32.
Json add_tensor(const ConstTensorView& x, Blobs& blobs);

// What mask, blocks and bias leave visible, as bits.
Json add_mask(const Single& s, Blobs& blobs);

// Every row as long as the keys; what stands behind the end of a shorter bias is hidden anyway.
Json add_bias(const Single& s, Blobs& blobs);

// How many numbers of x [1, heads, length, d] are not finite.
std::int64_t not_finite(const ConstTensorView& x);

}  // namespace attend::view
