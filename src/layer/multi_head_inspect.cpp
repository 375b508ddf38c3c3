// Multi-head attention, looked at: its heads' q, k and v, their statistics, and how much each head
// adds to the output.
#include "api/tensor_memory.h"
#include "core/reporting.h"
#include "core/strided.h"
#include "layer/check.h"
#include "layer/matmul.h"
#include "layer/multi_head_attention.h"

#include <cmath>

namespace attend {
namespace {

// The mean over the rows of x [rows, width] of their norms.
double mean_norm(const ConstTensorView& x) {
  const Strided t{static_cast<std::byte*>(const_cast<void*>(x.data())),
                  x.dtype(),
                  true,
                  {0, 0, x.strides()[0], x.strides()[1]}};
  std::vector<double> row(static_cast<std::size_t>(x.size(1)));
  double sum = 0;
  for (std::int64_t i = 0; i < x.size(0); ++i) {
    load_row(t, t.offset(0, 0, i), x.size(1), row.data());
    double squares = 0;
    for (const double value : row) squares += value * value;
    sum += std::sqrt(squares);
  }
  return x.size(0) == 0 ? 0 : sum / static_cast<double>(x.size(0));
}

// x [n, ...] of four dimensions at two indices: the matrix behind them.
ConstTensorView matrix_at(const ConstTensorView& x, std::int64_t b, std::int64_t h) {
  const auto* data = static_cast<const std::byte*>(x.data()) +
                     (b * x.strides()[0] + h * x.strides()[1]) * size_of(x.dtype());
  return {data, x.dtype(), {x.size(2), x.size(3)}, {x.strides()[2], x.strides()[3]}};
}

// Of each head of each sequence the mean over the tokens of |head_h W^O_h|; one head after the
// other, as all of them together are as large as `heads` outputs.
std::vector<double> contributions_of(const MultiHeadAttention& layer, const ConstTensorView& heads,
                                     const Where& where) {
  const MultiHeadAttentionOptions& o = layer.options();
  Tensor part;
  if (o.output_projection) part = where.context().make_tensor({heads.size(2), o.model_dim}, o.type);
  std::vector<double> norms;
  for (std::int64_t b = 0; b < heads.size(0); ++b)
    for (std::int64_t h = 0; h < o.heads; ++h) {
      const ConstTensorView head = matrix_at(heads, b, h);
      if (part) {
        const ConstTensorView w = layer.o().weight().view().slice(1, h * o.d_v, (h + 1) * o.d_v);
        const Multiplication one[] = {{.a = head,
                                       .b = w.permute({1, 0}),
                                       .row_bias = {},
                                       .c = part,
                                       .scales = layer.o().weight_scales()}};
        matmul(one, where);
      }
      norms.push_back(mean_norm(part ? part.view() : head));
    }
  return norms;
}

}  // namespace

MultiHeadAttention::Heads MultiHeadAttention::heads(const ConstTensorView& query,
                                                    const Required<ConstTensorView>& key,
                                                    const Required<ConstTensorView>& value,
                                                    const AttentionOptions& options,
                                                    const Where& where) const {
  return reporting("multi_head_attention", [&] {
    const MultiHeadAttentionOptions& o = options_;
    check_on_host("multi_head_attention", "heads()", device());
    ProjectedCall p(*this, {query, key, value, options}, where);
    const ConstTensorView q = by_heads(p.q.view(), o.heads), k = by_heads(p.k.view(), o.key_heads),
                          v = by_heads(p.v.view(), o.key_heads);
    const TensorView out = by_heads(p.concat, o.heads);
    attention(q, k, v, out, options, {}, where);
    return Heads{copied(q, where), copied(k, where), copied(v, where),
                 contributions_of(*this, out, where)};
  });
}

MultiHeadAttention::Heads MultiHeadAttention::heads(const ConstTensorView& x,
                                                    const AttentionOptions& options,
                                                    const Where& where) const {
  return heads(x, x, x, options, where);
}

Statistics MultiHeadAttention::inspect(const ConstTensorView& query,
                                       const Required<ConstTensorView>& key,
                                       const Required<ConstTensorView>& value,
                                       const AttentionOptions& options,
                                       const InspectOptions& inspect_options,
                                       const Where& where) const {
  return reporting("multi_head_attention", [&] {
    const Heads parts = heads(query, key, value, options, where);
    Statistics statistics = attend::inspect(parts.q, parts.k, options, inspect_options, where);
    // Packed sequences lie in one row of tokens, whose norms are one mean.
    const std::size_t known = parts.contribution.size();
    for (std::size_t n = 0; n < statistics.heads.size(); ++n)
      statistics.heads[n].contribution = parts.contribution[n % known];
    return statistics;
  });
}

Statistics MultiHeadAttention::inspect(const ConstTensorView& x, const AttentionOptions& options,
                                       const InspectOptions& inspect_options,
                                       const Where& where) const {
  return inspect(x, x, x, options, inspect_options, where);
}

}  // namespace attend
