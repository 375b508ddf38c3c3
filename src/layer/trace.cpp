// Traces: the calls of attention() that write down what a fused call never keeps.
#include <attend/trace.h>

#include "api/tensor_memory.h"
#include "core/reporting.h"
#include "core/text.h"
#include "layer/check.h"
#include "layer/matmul.h"
#include "layer/multi_head_attention.h"

#include <algorithm>

namespace attend {
namespace {

constexpr const char* kScoreAxes = "batch, head, query, key";

void add(Trace& trace, const char* name, std::string formula, const char* axes, Tensor value) {
  trace.steps.push_back({name, std::move(formula), axes, std::move(value)});
}

// Scores and weights are shown with at least 32 bits.
DType shown(DType type) { return size_of(type) == 2 ? DType::f32 : type; }

const char* formula_of_heads(const AttentionOptions& options) {
  return options.v_scales ? "weights (v_scales V)" : "weights V";
}

// The scores of one stage, computed by a call of their own.
Tensor scores_at(ScoreStage stage, const ConstTensorView& q, const ConstTensorView& k,
                 const ConstTensorView& v, const AttentionOptions& options, const Where& where) {
  Tensor scores = where.context().make_tensor(weights_shape(q, k, v, options), shown(q.dtype()));
  Tensor out = where.context().make_tensor({q.size(0), q.size(1), q.size(2), v.size(3)}, q.dtype());
  attention(q, k, v, out, options, {.scores = scores, .stage = stage}, where);
  return scores;
}

// Everything but the results of the heads, which go to `out`.
void trace_into(Trace& trace, const ConstTensorView& q, const ConstTensorView& k,
                const ConstTensorView& v, const TensorView& out, const AttentionOptions& options,
                const Where& where) {
  AttentionOptions unscaled = options;
  unscaled.scale = 1;
  unscaled.softcap = 0;
  unscaled.bias_before_softcap = false;
  add(trace, "scores", options.k_scales ? "Q (k_scales K)^T" : "Q K^T", kScoreAxes,
      scores_at(ScoreStage::raw, q, k, v, unscaled, where));
  add(trace, "scaled_scores", options.scale ? "scale * scores" : "scores / sqrt(d_k)", kScoreAxes,
      scores_at(ScoreStage::raw, q, k, v, options, where));
  if (options.softcap > 0)
    add(trace, "softcapped_scores", "softcap * tanh(scaled_scores / softcap)", kScoreAxes,
        scores_at(ScoreStage::softcapped, q, k, v, options, where));
  const Shape square = weights_shape(q, k, v, options);
  Tensor masked = where.context().make_tensor(square, shown(q.dtype()));
  Tensor weights = where.context().make_tensor(square, shown(q.dtype()));
  Tensor lse = where.context().make_tensor({q.size(0), q.size(1), q.size(2)}, shown(q.dtype()));
  attention(q, k, v, out, options, {.lse = lse, .weights = weights, .scores = masked}, where);
  add(trace, "masked_scores", "with bias; -inf where hidden", kScoreAxes, std::move(masked));
  add(trace, "lse", "log sum exp(masked_scores)", "batch, head, query", std::move(lse));
  add(trace, "weights", "softmax(masked_scores)", kScoreAxes, std::move(weights));
}

constexpr const char* kRowAxes = "batch, token, feature";
constexpr const char* kHeadAxes = "batch, head, token, feature";

// The names of the axes without the batch, where there is none.
const char* row_axes(const Tensor& x) { return x.view().rank() == 3 ? kRowAxes : "token, feature"; }

}  // namespace

const Tensor* Trace::find(std::string_view name) const noexcept {
  const auto step =
      std::find_if(steps.begin(), steps.end(), [&](const TraceStep& s) { return s.name == name; });
  return step == steps.end() ? nullptr : &step->value;
}

const Tensor& Trace::at(std::string_view name) const {
  return *reporting("trace", [&] {
    if (const Tensor* tensor = find(name)) return tensor;
    std::string names;
    for (const TraceStep& step : steps) names += " " + step.name;
    throw InvalidArgument(text("trace: there is no step ", name, "; there are:", names));
  });
}

std::vector<NamedView> Trace::tensors() const {
  return reporting("trace", [&] {
    std::vector<NamedView> list;
    for (const TraceStep& step : steps) list.push_back({step.name, step.value});
    return list;
  });
}

void Trace::save(const std::filesystem::path& path) const {
  reporting("trace", [&] {
    Metadata metadata{{"format", "attend.trace"}};
    for (const TraceStep& step : steps) {
      metadata[step.name + ".formula"] = step.formula;
      metadata[step.name + ".axes"] = step.axes;
    }
    save_safetensors(path, tensors(), metadata);
  });
}

Trace trace_attention(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                      const AttentionOptions& options, const Where& where) {
  return reporting("trace", [&] {
    weights_shape(q, k, v, options);  // throws where a shape is not even of four dimensions
    check_on_host("trace", "trace_attention()", q.device());
    Trace trace;
    Tensor heads =
        where.context().make_tensor({q.size(0), q.size(1), q.size(2), v.size(3)}, q.dtype());
    trace_into(trace, q, k, v, heads, options, where);
    add(trace, "heads", formula_of_heads(options), kHeadAxes, std::move(heads));
    return trace;
  });
}

Trace MultiHeadAttention::trace(const ConstTensorView& x, const AttentionOptions& options,
                                const Where& where) const {
  return trace(x, x, x, options, where);
}

Trace MultiHeadAttention::trace(const ConstTensorView& query, const Required<ConstTensorView>& key,
                                const Required<ConstTensorView>& value,
                                const AttentionOptions& options, const Where& where) const {
  return reporting("trace", [&] {
    const MultiHeadAttentionOptions& o = options_;
    check_on_host("multi_head_attention", "trace()", device());
    ProjectedCall p(*this, {query, key, value, options}, where);
    const ConstTensorView q = by_heads(p.q.view(), o.heads), k = by_heads(p.k.view(), o.key_heads),
                          v = by_heads(p.v.view(), o.key_heads);
    Trace result;
    const char* rows = row_axes(p.q);
    add(result, "q", "query W^Q + b", rows, q_.forward(query, where));
    add(result, "k", "key W^K + b", rows, k_.forward(key, where));
    add(result, "v", "value W^V + b", rows, v_.forward(value, where));
    const char* turned = o.rotary ? ", rotated to its position" : "";
    add(result, "q_heads", text("Q split into heads", turned), kHeadAxes, copied(q, where));
    add(result, "k_heads", text("K split into heads", turned), kHeadAxes, copied(k, where));
    add(result, "v_heads", "V split into heads", kHeadAxes, copied(v, where));
    trace_into(result, q, k, v, by_heads(p.concat, o.heads), options, where);
    add(result, "heads", formula_of_heads(options), kHeadAxes,
        copied(by_heads(p.concat.view(), o.heads), where));
    add(result, "concat", "heads side by side", rows, copied(p.concat, where));
    if (o_) {
      add(result, "contributions", "head_h W^O_h", kHeadAxes, contributions(p.concat, where));
      add(result, "output", "concat W^O + b = sum of contributions + b", rows,
          o_.forward(p.concat, where));
    } else {
      add(result, "output", "concat", rows, std::move(p.concat));
    }
    return result;
  });
}

// head_h W^O_h [batch, heads, length, model_dim], from concat [batch, length, heads * d_v].
Tensor MultiHeadAttention::contributions(const Tensor& concat, const Where& where) const {
  const MultiHeadAttentionOptions& o = options_;
  const ConstTensorView heads = by_heads(concat.view(), o.heads);
  const std::int64_t batch = heads.size(0), length = heads.size(2);
  Tensor result = where.context().make_tensor({batch, o.heads, length, o.model_dim}, o.type);
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t h = 0; h < o.heads; ++h) {
      const std::int64_t size = size_of(o.type);
      const ConstTensorView head(static_cast<const std::byte*>(heads.data()) +
                                     size * (b * heads.strides()[0] + h * heads.strides()[1]),
                                 o.type, {length, o.d_v}, {heads.strides()[2], 1});
      const TensorView to(static_cast<std::byte*>(result.view().data()) +
                              size * (b * o.heads + h) * length * o.model_dim,
                          o.type, {length, o.model_dim});
      const ConstTensorView w = o_.weight().view().slice(1, h * o.d_v, (h + 1) * o.d_v);
      const Multiplication one[] = {{.a = head,
                                     .b = w.permute({1, 0}),
                                     .row_bias = {},
                                     .c = to,
                                     .scales = o_.weight_scales()}};
      matmul(one, where);
    }
  return result;
}

}  // namespace attend
