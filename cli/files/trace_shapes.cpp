#include "trace_shapes.h"

#include "frame/usage_error.h"

#include <utility>

namespace attend::cli {

void check_trace_shapes(const std::string& file, const FindTensor& find) {
  const auto at = [&](const char* name) -> const Tensor& {
    const Tensor* tensor = find(name);
    if (tensor == nullptr) throw UsageError(file + ": the trace has no " + name);
    return *tensor;
  };
  const Shape square = at("weights").shape();
  const auto wrong = [&](const char* name) {
    throw UsageError(file + ": " + name + " is " + to_string(at(name).shape()) +
                     ", which does not fit weights " + to_string(square));
  };
  if (square.rank() != 4 || square[1] < 1)
    throw UsageError(file + ": weights is " + to_string(square) +
                     "; a trace has [batch, heads, queries, keys]");
  for (const char* name : {"scores", "scaled_scores", "masked_scores"})
    if (at(name).shape() != square) wrong(name);
  if (const Tensor* capped = find("softcapped_scores"); capped && capped->shape() != square)
    wrong("softcapped_scores");
  if (at("lse").shape() != Shape{square[0], square[1], square[2]}) wrong("lse");
  for (const auto& [name, length] : {std::pair{"heads", square[2]},
                                     {"q_heads", square[2]},
                                     {"k_heads", square[3]},
                                     {"v_heads", square[3]},
                                     {"contributions", square[2]}}) {
    const Tensor* tensor = find(name);
    if (tensor == nullptr) continue;
    const Shape& shape = tensor->shape();
    const bool shared = name[0] == 'k' || name[0] == 'v';  // key heads may be fewer
    const bool fits =
        shape.rank() == 4 && shape[0] == square[0] && shape[2] == length &&
        (shape[1] == square[1] || (shared && shape[1] > 0 && square[1] % shape[1] == 0));
    if (!fits) wrong(name);
  }
  for (const char* name : {"concat", "output"})
    if (const Tensor* tensor = find(name)) {
      const int rank = tensor->view().rank();
      if (rank < 2 || rank > 3 || tensor->size(rank - 2) != square[2] ||
          (rank == 3 && tensor->size(0) != square[0]))
        wrong(name);
    }
}

}  // namespace attend::cli
