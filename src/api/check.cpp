// From arguments to Problem and Call. Checks run in the order in which a reader would ask: is each
// tensor sound, do q, k and v fit together, then the options one by one, then what is written.
#include "api/check.h"

#include "api/checker.h"

namespace attend {

void Checker::outputs(const TensorView& out, const AttentionOutputs& outputs) {
  const ConstTensorView q = read_.front().view;
  call_.out = written("out", out);
  shape_is("out", out, row_shape(q, p_.dv));
  type_is_tensors_or_wider("out", out.dtype());
  p_.out_type = out.dtype();
  if ((p_.lse = static_cast<bool>(outputs.lse))) {
    call_.lse = written("lse", outputs.lse);
    shape_is("lse", outputs.lse, row_shape(q));
    type_is_statistic("lse", outputs.lse.dtype());
    call_.lse = per_row(call_.lse, outputs.lse);
    p_.lse_type = outputs.lse.dtype();
  }
  const Shape square{p_.batch, p_.heads, p_.q_length, p_.k_length};
  if ((p_.weights = static_cast<bool>(outputs.weights))) {
    call_.weights = written("weights", outputs.weights);
    shape_is("weights", outputs.weights, square);
    type_is_tensors_or_wider("weights", outputs.weights.dtype());
    p_.weights_type = outputs.weights.dtype();
  }
  if ((p_.scores = static_cast<bool>(outputs.scores))) {
    call_.scores = written("scores", outputs.scores);
    shape_is("scores", outputs.scores, square);
    type_is_tensors_or_wider("scores", outputs.scores.dtype());
    p_.scores_type = outputs.scores.dtype();
  }
  if (outputs.stage > ScoreStage::masked)
    fail("stage is ", static_cast<int>(outputs.stage), "; it must be raw, softcapped or masked");
  if (p_.scores) p_.stage = outputs.stage;
  if ((p_.visited_blocks = outputs.visited_blocks != nullptr)) {
    if (!p_.blocks) fail("visited_blocks is asked for, but there are no blocks");
    written("visited_blocks", {outputs.visited_blocks, DType::i64, {1}, p_.device});
    call_.visited_blocks = outputs.visited_blocks;
  }
  no_overlap();
}

void Checker::backward(const BackwardArguments& a) {
  call_.out = read("out", a.out);
  shape_is("out", a.out, row_shape(a.q, p_.dv));
  type_is_tensors_or_wider("out", a.out.dtype());
  p_.out_type = a.out.dtype();
  call_.lse = read("lse", a.lse);
  shape_is("lse", a.lse, row_shape(a.q));
  type_is_statistic("lse", a.lse.dtype());
  call_.lse = per_row(call_.lse, a.lse);
  p_.lse_type = a.lse.dtype();
  call_.dout = read("dout", a.dout);
  shape_is("dout", a.dout, row_shape(a.q, p_.dv));
  type_is_tensors_or_wider("dout", a.dout.dtype());
  p_.dout_type = a.dout.dtype();
  if ((p_.dlse = static_cast<bool>(a.dlse))) {
    call_.dlse = read("dlse", a.dlse);
    shape_is("dlse", a.dlse, row_shape(a.q));
    type_is_statistic("dlse", a.dlse.dtype());
    call_.dlse = per_row(call_.dlse, a.dlse);
    p_.dlse_type = a.dlse.dtype();
  }

  const AttentionGradients& g = a.gradients;
  const auto gradient = [&](std::string_view name, const TensorView& view, std::string_view of_name,
                            const ConstTensorView& of, Strided& t) {
    if (!view) return false;
    if (!of) fail(name, " is asked for, but there is no ", of_name);
    t = written(name, view);
    shape_is(name, view, of.shape());
    type_is(name, view.dtype(), {of.dtype()});
    return true;
  };
  p_.dq = gradient("dq", g.dq, "q", a.q, call_.dq);
  p_.dk = gradient("dk", g.dk, "k", a.k, call_.dk);
  p_.dv_gradient = gradient("dv", g.dv, "v", a.v, call_.dv);
  p_.dbias = gradient("dbias", g.dbias, "bias", a.options.bias, call_.dbias);
  p_.dsinks = gradient("dsinks", g.dsinks, "sinks", a.options.sinks, call_.dsinks);
  p_.dalibi = gradient("dalibi", g.dalibi, "alibi", a.options.alibi, call_.dalibi);
  if (p_.dsinks) call_.dsinks.stride = {0, g.dsinks.strides()[0], 0, 0};
  if (p_.dalibi) call_.dalibi.stride = {0, g.dalibi.strides()[0], 0, 0};
  if (written_.empty())
    fail("no gradient is asked for; dq, dk, dv, dbias, dsinks or dalibi is needed");
  no_overlap();
}

Request check(const ForwardArguments& a) {
  Request request;
  request.problem.operation = Operation::forward;
  Checker checker("attention", request);
  checker.inputs(a.q, a.k, a.v, a.options);
  checker.options(a.options);
  checker.outputs(a.out, a.outputs);
  return request;
}

Request check_inputs(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                     const AttentionOptions& options) {
  Request request;
  request.problem.operation = Operation::forward;
  Checker checker("attention", request);
  checker.inputs(q, k, v, options);
  checker.options(options);
  return request;
}

Request check(const BackwardArguments& a) {
  Request request;
  request.problem.operation = Operation::backward;
  Checker checker("attention_backward", request);
  checker.inputs(a.q, a.k, a.v, a.options);
  checker.options(a.options);
  checker.backward(a);
  return request;
}

}  // namespace attend
