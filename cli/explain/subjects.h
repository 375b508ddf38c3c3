// What `attend explain` can tell without files, each as an Explanation.
#pragma once

#include "explanation.h"

#include <attend/context.h>

namespace attend::cli {

// The worked examples of the introductory notes, with what is wrong in them (docs/corrections.md).
Explanation explain_single_head(Context& context);
Explanation explain_two_heads(Context& context);
Explanation explain_sentence(std::int64_t head, Context& context);

struct LayerShape {
  std::int64_t batch = 32, length = 20, model_dim = 512, heads = 8;
};
Explanation explain_shapes(const LayerShape& shape);

}  // namespace attend::cli
