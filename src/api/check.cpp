// From arguments to Problem and Call. Checks run in the order in which a reader would ask: is each
// tensor sound, do q, k and v fit together, then the options one by one, then what is written.
#include "api/check.h"

#include "api/checker.h"
#include "core/reporting.h"

#include <algorithm>

namespace attend {

void Checker::weight_heads(std::vector<std::int64_t> heads) const {
  for (const std::int64_t h : heads)
    if (h < 0 || h >= p_.heads)
      fail("weight_heads holds ", h, "; q has ", p_.heads, " heads, the first is 0");
  std::sort(heads.begin(), heads.end());
  if (const auto twice = std::adjacent_find(heads.begin(), heads.end()); twice != heads.end())
    fail("weight_heads holds ", *twice, " twice");
}

void Checker::outputs(const TensorView& out, const AttentionOutputs& outputs,
                      Request<Forward>& request) {
  auto& p = request.problem;
  auto& call = request.call;
  const ConstTensorView q = read_.front().view;
  call.out = written("out", out);
  shape_is("out", out, row_shape(q, p.dv));
  type_is_tensors_or_wider("out", out.dtype());
  p.out_type = out.dtype();
  if ((p.lse = static_cast<bool>(outputs.lse))) {
    call.lse = written("lse", outputs.lse);
    shape_is("lse", outputs.lse, row_shape(q));
    type_is_statistic("lse", outputs.lse.dtype());
    call.lse = per_row(call.lse, outputs.lse);
    p.lse_type = outputs.lse.dtype();
  }
  if (outputs.weights || outputs.scores) {  // all of what is asked for is written
    p.q_length = most_q_;
    p.k_length = most_k_;
  }
  if ((p.weights = static_cast<bool>(outputs.weights))) {
    call.weights = written("weights", outputs.weights);
    Shape shape = square();
    if (!outputs.weight_heads.empty()) {
      weight_heads(outputs.weight_heads);
      p.weight_heads = static_cast<std::int64_t>(outputs.weight_heads.size());
      call.weight_heads = outputs.weight_heads.data();
      shape[1] = p.weight_heads;
    }
    shape_is("weights", outputs.weights, shape);
    type_is_tensors_or_wider("weights", outputs.weights.dtype());
    p.weights_type = outputs.weights.dtype();
  } else if (!outputs.weight_heads.empty()) {
    fail("weight_heads is given, but weights are not asked for");
  }
  if ((p.scores = static_cast<bool>(outputs.scores))) {
    call.scores = written("scores", outputs.scores);
    shape_is("scores", outputs.scores, square());
    type_is_tensors_or_wider("scores", outputs.scores.dtype());
    p.scores_type = outputs.scores.dtype();
  }
  if (outputs.stage > ScoreStage::masked)
    fail("stage is ", static_cast<int>(outputs.stage), "; it must be raw, softcapped or masked");
  if (p.scores) p.stage = outputs.stage;
  if ((p.visited_blocks = outputs.visited_blocks != nullptr)) {
    if (!p.blocks) fail("visited_blocks is asked for, but there are no blocks");
    written("visited_blocks", {outputs.visited_blocks, DType::i64, {1}, p.device});
    call.visited_blocks = outputs.visited_blocks;
  }
  no_overlap();
}

void Checker::backward(const BackwardArguments& arguments, Request<Backward>& request) {
  const BackwardInputs& a = arguments.inputs;
  auto& p = request.problem;
  auto& call = request.call;
  call.out = read("out", a.out);
  shape_is("out", a.out, row_shape(a.q, p.dv));
  type_is_tensors_or_wider("out", a.out.dtype());
  p.out_type = a.out.dtype();
  call.lse = read("lse", a.lse);
  shape_is("lse", a.lse, row_shape(a.q));
  type_is_statistic("lse", a.lse.dtype());
  call.lse = per_row(call.lse, a.lse);
  p.lse_type = a.lse.dtype();
  call.dout = read("dout", a.dout);
  shape_is("dout", a.dout, row_shape(a.q, p.dv));
  type_is_tensors_or_wider("dout", a.dout.dtype());
  p.dout_type = a.dout.dtype();
  if ((p.dlse = static_cast<bool>(a.dlse))) {
    call.dlse = read("dlse", a.dlse);
    shape_is("dlse", a.dlse, row_shape(a.q));
    type_is_statistic("dlse", a.dlse.dtype());
    call.dlse = per_row(call.dlse, a.dlse);
    p.dlse_type = a.dlse.dtype();
  }

  const AttentionGradients& g = arguments.gradients;
  const auto gradient = [&](std::string_view name, const TensorView& view, std::string_view of_name,
                            const ConstTensorView& of, Strided& t) {
    if (!view) return false;
    if (!of) fail(name, " is asked for, but there is no ", of_name);
    if (!is_floating_point(of.dtype()))
      fail(name, " is asked for, but ", of_name, " is ", of.dtype(),
           "; only floating-point tensors have gradients");
    t = written(name, view);
    shape_is(name, view, of.shape());
    type_is(name, view.dtype(), {of.dtype()});
    return true;
  };
  p.dq = gradient("dq", g.dq, "q", a.q, call.dq);
  p.dk = gradient("dk", g.dk, "k", a.k, call.dk);
  p.dv_gradient = gradient("dv", g.dv, "v", a.v, call.dv);
  p.dbias = gradient("dbias", g.dbias, "bias", arguments.options.bias, call.dbias);
  p.dsinks = gradient("dsinks", g.dsinks, "sinks", arguments.options.sinks, call.dsinks);
  p.dalibi = gradient("dalibi", g.dalibi, "alibi", arguments.options.alibi, call.dalibi);
  if (p.dsinks) call.dsinks.stride = {0, g.dsinks.strides()[0], 0, 0};
  if (p.dalibi) call.dalibi.stride = {0, g.dalibi.strides()[0], 0, 0};
  if (written_.empty())
    fail("no gradient is asked for; dq, dk, dv, dbias, dsinks or dalibi is needed");
  no_overlap();
}

namespace {

// What every call on q, k and v begins with; then more(checker, request).
template <class Operation, class More>
Request<Operation> checked(const char* function, const ConstTensorView& q, const ConstTensorView& k,
                           const ConstTensorView& v, const AttentionOptions& options,
                           const More& more) {
  Request<Operation> request;
  Checker checker(function, request.problem, request.call);
  checker.inputs(q, k, v, options);
  checker.options(options);
  more(checker, request);
  return request;
}
constexpr auto kNothingMore = [](Checker&, auto&) {};

}  // namespace

Shape weights_shape(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                    const AttentionOptions& options) {
  return reporting("attention", [&] {
    Shape shape;
    checked<Forward>("attention", q, k, v, options,
                     [&](Checker& checker, auto&) { shape = checker.square(); });
    return shape;
  });
}

Request<Forward> check_inputs(const ConstTensorView& q, const ConstTensorView& k,
                              const ConstTensorView& v, const AttentionOptions& options) {
  return checked<Forward>("attention", q, k, v, options, kNothingMore);
}

Request<Backward> check_inputs(const BackwardInputs& i, const AttentionOptions& options) {
  return checked<Backward>("attention_backward", i.q, i.k, i.v, options, kNothingMore);
}

Request<Forward> check(const ForwardArguments& a) {
  return checked<Forward>("attention", a.q, a.k, a.v, a.options,
                          [&](Checker& c, auto& request) { c.outputs(a.out, a.outputs, request); });
}

Request<Backward> check(const BackwardArguments& a) {
  const BackwardInputs& i = a.inputs;
  return checked<Backward>("attention_backward", i.q, i.k, i.v, a.options,
                           [&](Checker& c, auto& request) { c.backward(a, request); });
}

}  // namespace attend
