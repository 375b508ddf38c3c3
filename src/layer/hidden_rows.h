// Hidden means hidden in layers too. A layer's weights get the gradient x^T dk; a hidden row has
// dk = 0, but 0 * NaN is NaN. So rows that hold NaN or infinity and that nobody sees are zeros in
// what a layer keeps for its backward pass.
#pragma once

#include "layer/multi_head_attention.h"

namespace attend {

// The layer's inputs [batch, T, features] or [T, features], contiguous, to be cleared in place.
// Self-attention has the query alone; a row of it is hidden if it is so as a key and as a query.
// q, k and v are as attention() gets them.
struct KeptInputs {
  TensorView query, key, value;
};

// On a device rows are not cleared yet: throws where one might have to be.
void check_hides_no_rows(Device device, const AttentionOptions& options, std::int64_t queries,
                         std::int64_t keys);

void clear_hidden_rows(const KeptInputs& kept, const ConstTensorView& q, const ConstTensorView& k,
                       const ConstTensorView& v, const AttentionOptions& options,
                       const Where& where);

}  // namespace attend
