#include "bench.h"

#include "cases/instance.h"

#include <attend/multi_head_attention.h>
#include <attend/plan.h>

#include <memory>

namespace attend::cli {
namespace {

using cases::BenchCase;
using cases::Operation;

Work described(const Plan& plan, std::function<void()> run) {
  return {std::move(run), plan.kernel(), plan.describe(), plan.workspace_bytes()};
}

Work forward(const BenchCase& measured, Context& context) {
  const auto made = std::make_shared<cases::Instance>(cases::make(measured.problem));
  const cases::Instance& m = *made;
  return described(Plan::attention(m.q, m.k, m.v, m.out, m.options, {}, {}, context),
                   [made, &context] {
                     const cases::Instance& i = *made;
                     attention(i.q, i.k, i.v, i.out, i.options, {}, context);
                   });
}

Work backward(const BenchCase& measured, Context& context) {
  const auto made = std::make_shared<cases::Instance>(cases::make(measured.problem));
  cases::Instance& m = *made;
  attention(m.q, m.k, m.v, m.out, m.options, m.outputs_with_lse(), context);
  const BackwardInputs inputs = m.backward_inputs();
  return described(Plan::attention_backward(inputs, m.options, m.gradients, {}, context),
                   [made, inputs, &context] {
                     attention_backward(inputs, made->options, made->gradients, context);
                   });
}

Work inspected(const BenchCase& measured, Context& context) {
  struct Inputs {
    cases::Instance instance;
    Tensor tokens;
    InspectOptions asked{.key_mass = false, .metrics = false};
  };
  const auto inputs = std::make_shared<Inputs>(
      Inputs{cases::make(measured.problem), Tensor({measured.problem.k_length}, DType::i32)});
  for (std::int64_t j = 0; j < inputs->tokens.count(); ++j)
    inputs->tokens.data<std::int32_t>()[j] = static_cast<std::int32_t>(j * 7919 % 101);
  InspectOptions& asked = inputs->asked;
  if (measured.operation != Operation::inspect_rows) asked.top_k = 8;
  if (measured.operation == Operation::inspect_all) {
    asked.key_mass = asked.metrics = true;
    asked.tokens = inputs->tokens;
    asked.tile_rows = asked.tile_columns = 128;
  }
  const cases::Instance& m = inputs->instance;
  return described(Plan::inspect(m.q, m.k, m.options, asked, {}, context), [inputs, &context] {
    const cases::Instance& i = inputs->instance;
    inspect(i.q, i.k, i.options, inputs->asked, context);
  });
}

template <class Element>
void fill(Tensor& tensor) {
  Element* const x = tensor.data<Element>();
  for (std::int64_t i = 0; i < tensor.count(); ++i)
    x[i] = Element(static_cast<float>(i * 7919 % 2001 - 1000) / 1000);
}

// Anything but zeros.
Tensor numbers(const Shape& shape, DType type) {
  Tensor tensor(shape, type);
  if (type == DType::f64) fill<double>(tensor);
  else if (type == DType::f32) fill<float>(tensor);
  else if (type == DType::bf16) fill<bf16>(tensor);
  else fill<f16>(tensor);
  return tensor;
}

// The plan is that of the attention inside, on heads that lie side by side in each row.
Work layer(const BenchCase& measured, Context& context) {
  const cases::Case& p = measured.problem;
  const std::int64_t width = p.heads * p.d;
  struct Inputs {
    MultiHeadAttention layer;
    Tensor x, dy;
    std::vector<Parameter> written;  // as an optimizer has them: they change with every step
  };
  const Shape rows{p.batch, p.q_length, width};
  const auto inputs = std::make_shared<Inputs>(
      Inputs{MultiHeadAttention({.model_dim = width, .heads = p.heads, .type = p.type}),
             numbers(rows, p.type),
             numbers(rows, p.type),
             {}});
  const auto heads = [&](Tensor& tensor) {
    return TensorView(tensor.view().data(), p.type, {p.batch, p.q_length, p.heads, p.d})
        .permute({0, 2, 1, 3});
  };
  const TensorView x = heads(inputs->x);
  const bool train = measured.operation == Operation::layer_train;
  if (train) inputs->written = inputs->layer.writable_parameters();
  return described(Plan::attention(x, x, x, heads(inputs->dy), {}, {}, {}, context),
                   [inputs, train, &context] {
                     if (!train) {
                       inputs->layer.forward(inputs->x, {}, {}, context);
                     } else {
                       const auto [y, saved] = inputs->layer.forward_train(inputs->x, {}, context);
                       inputs->layer.backward(inputs->dy, saved, context);
                     }
                   });
}

}  // namespace

Work prepare(const BenchCase& measured, Context& context) {
  switch (measured.operation) {
    case Operation::forward: return forward(measured, context);
    case Operation::backward: return backward(measured, context);
    case Operation::layer:
    case Operation::layer_train: return layer(measured, context);
    case Operation::inspect_rows:
    case Operation::inspect_top:
    case Operation::inspect_all: return inspected(measured, context);
  }
  return {};
}

}  // namespace attend::cli
