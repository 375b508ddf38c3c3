// Every intermediate result by name, in the order of computation. For inspection, not for speed:
// scores and weights are length x length, per head.
#pragma once

#include <attend/attention.h>
#include <attend/io.h>

#include <string>
#include <string_view>
#include <vector>

namespace attend {

struct TraceStep {
  std::string name;     // "scaled_scores"
  std::string formula;  // "scores / sqrt(d_k)"
  std::string axes;     // "batch, head, query, key": what the dimensions are
  Tensor value;
};

struct ATTEND_API Trace {
  std::vector<TraceStep> steps;

  const Tensor* find(std::string_view name) const noexcept;  // null if it is not there
  const Tensor& at(std::string_view name) const;             // the error lists what is there
  std::vector<NamedView> tensors() const;
  void save(const std::filesystem::path& path) const;  // safetensors; formulas in the metadata
};

// Attention without a layer: scores, scaled_scores, masked_scores, lse, weights, heads. heads has
// the bits of attention(q, k, v, options).
ATTEND_API Trace trace_attention(const ConstTensorView& q, const ConstTensorView& k,
                                 const ConstTensorView& v, const AttentionOptions& options = {},
                                 const Where& where = default_context());

}  // namespace attend
