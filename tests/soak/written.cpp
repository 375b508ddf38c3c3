#include "written.h"

#include "cases/oracle/statistics.h"
#include "support/head_numbers.h"
#include "support/property_compare.h"

#include <cstring>

namespace attend::test {
namespace {

Tensor filled_with_nan(const Shape& shape, DType type) {
  Tensor tensor = Tensor::uninitialized(shape, type);
  std::memset(tensor.view().data(), 0xff, static_cast<std::size_t>(tensor.count() * size_of(type)));
  return tensor;
}

WrittenList forward(const std::string& kernel, const Asked& asked, Context& context) {
  const Arguments& a = asked.arguments;
  const Shape& of_q = a.q.shape();
  const auto new_out = [&] {
    return filled_with_nan({of_q[0], of_q[1], of_q[2], a.v.size(3)}, asked.out_type);
  };
  Tensor out = new_out(), again = new_out();
  Tensor lse = filled_with_nan({of_q[0], of_q[1], of_q[2]}, asked.lse_type), lse_again = lse;
  const auto run = [&](Tensor& to, const AttentionOutputs& outputs) {
    Plan::attention(a.q, a.k, a.v, to, a.options, outputs, {kernel}, context)
        .run(a.q, a.k, a.v, to, a.options, outputs);
  };
  const Shape of_pairs = weights_shape(a.q, a.k, a.v, a.options);
  Tensor weights = filled_with_nan(of_pairs, asked.out_type),
         scores = filled_with_nan(of_pairs, asked.out_type);
  run(out, {.lse = lse});
  WrittenList list;
  try {
    run(again, {.lse = lse_again, .weights = weights, .scores = scores, .stage = asked.stage});
  } catch (const Unsupported&) {  // out and lse alone, then
    list.push_back({"out", std::move(out)});
    list.push_back({"lse", std::move(lse)});
    return list;
  }
  const bool same = same_bits(out, again) && same_bits(lse, lse_again);
  list.push_back({"out", std::move(out)});
  list.push_back({"lse", std::move(lse)});
  list.push_back({"weights", std::move(weights)});
  const char* stages[] = {"raw", "softcapped", "masked"};
  list.push_back({stages[static_cast<int>(asked.stage)], std::move(scores)});
  if (!same) list.push_back({"out again", std::move(again)});
  return list;
}

WrittenList backward(const KernelInfo& kernel, const Asked& asked, Context& context) {
  const Arguments& a = asked.arguments;
  const Shape& of_q = a.q.shape();
  Tensor out = filled_with_nan({of_q[0], of_q[1], of_q[2], a.v.size(3)}, a.q.dtype());
  Tensor lse = filled_with_nan({of_q[0], of_q[1], of_q[2]}, asked.lse_type);
  attention(a.q, a.k, a.v, out, a.options, {.lse = lse}, context);
  const auto like = [](const ConstTensorView& view) {
    const bool has_gradient = view && view.dtype() != DType::i8;
    return has_gradient ? filled_with_nan(view.shape(), view.dtype()) : Tensor();
  };
  Tensor dq = like(a.q), dk = like(a.k), dv = like(a.v);
  Tensor dbias = like(a.options.bias), dsinks = like(a.options.sinks),
         dalibi = like(a.options.alibi);
  if (kernel.only_if_forced) dbias = dsinks = dalibi = {};  // the yardstick gives dq, dk and dv
  const AttentionGradients gradients{dq, dk, dv, dbias, dsinks, dalibi};
  Plan::attention_backward(
      {.q = a.q, .k = a.k, .v = a.v, .out = out, .lse = lse, .dout = a.dout, .dlse = a.dlse},
      a.options, gradients, {kernel.name}, context)
      .run_backward(
          {.q = a.q, .k = a.k, .v = a.v, .out = out, .lse = lse, .dout = a.dout, .dlse = a.dlse},
          a.options, gradients);
  WrittenList list;
  const auto add = [&](const char* name, Tensor& tensor) {
    if (tensor) list.push_back({name, std::move(tensor)});
  };
  add("dq", dq);
  add("dk", dk);
  add("dv", dv);
  add("dbias", dbias);
  add("dsinks", dsinks);
  add("dalibi", dalibi);
  return list;
}

WrittenList inspected(const std::string& kernel, const Asked& asked, Context& context) {
  const Arguments& a = asked.arguments;
  const oracle::Inspection inspection{Reader(a)};
  Statistics s = Plan::inspect(a.q, a.k, a.options, inspection.options, {kernel}, context)
                     .run_inspect(a.q, a.k, a.options, inspection.options);
  Tensor heads({static_cast<std::int64_t>(s.heads.size()), 13}, DType::f64);
  for (std::size_t n = 0; n < s.heads.size(); ++n) {
    const std::vector<double> numbers = numbers_of(s.heads[n]);
    std::copy(numbers.begin(), numbers.end(), heads.data<double>() + numbers.size() * n);
  }
  Tensor top_keys(s.top_keys.shape(), DType::f64);
  for (std::int64_t n = 0; n < s.top_keys.count(); ++n)
    top_keys.data<double>()[n] = static_cast<double>(s.top_keys.data<std::int64_t>()[n]);
  WrittenList list;
  list.push_back({"inspect lse", std::move(s.lse)});
  list.push_back({"maximum", std::move(s.maximum)});
  list.push_back({"entropy", std::move(s.entropy)});
  list.push_back({"top_keys", std::move(top_keys)});
  list.push_back({"top_weights", std::move(s.top_weights)});
  list.push_back({"key_mass", std::move(s.key_mass)});
  list.push_back({"tile_mean", std::move(s.tile_mean)});
  list.push_back({"tile_maximum", std::move(s.tile_maximum)});
  list.push_back({"heads", std::move(heads)});
  return list;
}

}  // namespace

Asked asked_of(const Trial& trial, std::uint64_t variant) {
  return {trial.arguments(), trial.out_type, trial.lse_type, static_cast<ScoreStage>(variant % 3)};
}

std::optional<WrittenList> written_by(const KernelInfo& kernel, const Asked& asked,
                                      Context& context) {
  try {
    if (kernel.operation == "forward") return forward(kernel.name, asked, context);
    if (kernel.operation == "backward") return backward(kernel, asked, context);
    return inspected(kernel.name, asked, context);
  } catch (const Unsupported&) {
    return std::nullopt;
  }
}

std::string difference_of(const WrittenList& a, const WrittenList& b) {
  for (const WrittenList* list : {&a, &b})
    for (const NamedTensor& named : *list)
      if (named.name == "out again") return "out or lse is not the same with weights and scores";
  if (a.size() != b.size()) return "one gives more than the other";
  for (std::size_t n = 0; n < a.size(); ++n) {
    ConstTensorView other = b[n].tensor;  // a bias may have come with fewer dimensions
    if (a[n].tensor && a[n].tensor.count() == other.count())
      other = ConstTensorView(other.data(), other.dtype(), a[n].tensor.shape());
    if (const auto same = same_bits(a[n].tensor, other); !same)
      return a[n].name + ": " + same.message();
  }
  return "";
}

}  // namespace attend::test
