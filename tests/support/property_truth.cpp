#include "property_truth.h"

#include "examination.h"

namespace attend::test {
namespace {

Tensor tensor_of(const std::vector<double>& values, const Shape& shape) {
  Tensor tensor(shape, DType::f64);
  if (static_cast<std::size_t>(tensor.count()) != values.size())
    throw std::logic_error("the oracle has another shape than " + to_string(shape));
  std::copy(values.begin(), values.end(), tensor.data<double>());
  return tensor;
}

}  // namespace

Written truth_of(const Trial& trial) {
  const Reader reader(trial.arguments());
  const Results<double> truth = oracle::truth<double>(reader);
  const Shape& of_q = trial.q.shape();
  Written written;
  written.out = tensor_of(truth.out, {of_q[0], of_q[1], of_q[2], trial.v.size(3)});
  written.lse = tensor_of(truth.lse, {of_q[0], of_q[1], of_q[2]});
  written.dq = tensor_of(truth.dq, trial.q.shape());
  written.dk = tensor_of(truth.dk, trial.k.shape());
  written.dv = tensor_of(truth.dv, trial.v.shape());
  if (trial.bias) written.dbias = tensor_of(truth.dbias, trial.bias.shape());
  if (trial.sinks) written.dsinks = tensor_of(truth.dsinks, trial.sinks.shape());
  if (trial.alibi) written.dalibi = tensor_of(truth.dalibi, trial.alibi.shape());
  return written;
}

testing::AssertionResult close_to_truth(const Trial& trial, const Written& written, double error) {
  const Written truth = truth_of(trial);
  const std::pair<const char*, Tensor Written::*> members[] = {{"out", &Written::out},
                                                               {"lse", &Written::lse},
                                                               {"dq", &Written::dq},
                                                               {"dk", &Written::dk},
                                                               {"dv", &Written::dv}};
  for (const auto& [name, member] : members) {
    if (!(written.*member)) continue;
    if (const auto result = close(truth.*member, written.*member, error, 1); !result)
      return testing::AssertionFailure() << name << ": " << result.message();
  }
  return testing::AssertionSuccess();
}

}  // namespace attend::test
