// Rotary positions: pairs of features are turned by an angle that grows with the position, so that
// q . k depends on the distance of the two alone (Su et al., "RoFormer", 2021).
#pragma once

#include "layer/scratch.h"

#include <attend/multi_head_attention.h>

namespace attend {

// Where each row of x [batch, heads, rows, d] stands: data()[b * rows + row].
class RowPositions {
 public:
  RowPositions(std::int64_t batch, std::int64_t rows, const Where& where)
      : scratch_(where, {{{batch, rows}, DType::i64}}) {}
  std::int64_t* data() const { return static_cast<std::int64_t*>(scratch_.tensors[0].data()); }
  std::int64_t count() const { return scratch_.tensors[0].count(); }

 private:
  Scratch<1> scratch_;
};

// Of q and k as attention() gets them, by its rules: query i at i + query_offset, key j at j,
// inside its sequence. The options must have passed its check.
RowPositions query_positions(const ConstTensorView& q, const ConstTensorView& k,
                             const AttentionOptions& options, const Where& where);
RowPositions key_positions(const ConstTensorView& k, const AttentionOptions& options,
                           const Where& where);

// Turns the rows of x [batch, heads, rows, d] in place; `backward` turns them back, which is the
// gradient too.
//   (a, b) <- (a cos t - b sin t, a sin t + b cos t),   t = position * base^(-2c / dim)
void rotate(const Rotary& rotary, const RowPositions& positions, const TensorView& x, bool backward,
            const Where& where);

}  // namespace attend
