// Every layer with one floating-point input, as one table, so that a question is put to all of
// them.
#pragma once

#include "support/layer_numbers.h"

#include <attend/embedding.h>
#include <attend/feed_forward.h>
#include <attend/linear.h>
#include <attend/norm.h>

#include <functional>
#include <memory>
#include <ostream>

namespace attend::test {

// Numbers for every parameter: first values such as zeros and ones would hide mistakes.
inline void fill(const std::vector<Parameter>& parameters, unsigned seed) {
  for (const Parameter& p : parameters) {
    const Tensor from = numbers(p.value.shape(), p.value.dtype(), seed++);
    with_type(p.value.dtype(), [&]<class T>(T) {
      std::copy_n(from.data<T>(), from.count(), static_cast<T*>(p.value.data()));
    });
  }
}

struct Trained {
  Tensor y;
  LayerGradients gradients;
};

struct LayerCase {
  std::string name;
  std::int64_t in, out;  // features
  bool positions;        // rows are told apart by their place in the sequence
  std::function<Tensor(const ConstTensorView& x, Context&)> forward;
  std::function<Trained(const ConstTensorView& x, const ConstTensorView& dy, Context&)> train;
  std::function<std::vector<Parameter>()> parameters;
};
inline std::ostream& operator<<(std::ostream& os, const LayerCase& c) { return os << c.name; }

template <class Layer>
LayerCase layer_case(const std::string& name, Layer made, std::int64_t in, std::int64_t out) {
  const auto layer = std::make_shared<Layer>(std::move(made));
  fill(layer->writable_parameters(), 7);
  const std::shared_ptr<const Layer> fixed = layer;
  LayerCase c{name, in, out, std::is_same_v<Layer, LearnedPositions>, {}, {}, {}};
  c.parameters = [=] { return layer->writable_parameters(); };
  if constexpr (std::is_same_v<Layer, LearnedPositions>) {
    c.forward = [=](const auto& x, Context& context) { return fixed->forward(x, 2, context); };
    c.train = [=](const auto& x, const auto& dy, Context& context) {
      auto [y, saved] = fixed->forward_train(x, 2, context);
      return Trained{std::move(y), fixed->backward(dy, saved, context)};
    };
  } else {
    c.forward = [=](const auto& x, Context& context) { return fixed->forward(x, context); };
    c.train = [=](const auto& x, const auto& dy, Context& context) {
      auto [y, saved] = fixed->forward_train(x, context);
      return Trained{std::move(y), fixed->backward(dy, saved, context)};
    };
  }
  return c;
}

inline std::vector<LayerCase> layer_cases(DType type) {
  std::vector<LayerCase> cases = {
      layer_case("linear", Linear({.in = 6, .out = 9, .type = type}), 6, 9),
      layer_case("linear_no_bias", Linear({.in = 5, .out = 1, .bias = false, .type = type}), 5, 1),
      layer_case("layer_norm", LayerNorm({.dim = 7, .type = type}), 7, 7),
      layer_case("layer_norm_no_bias",
                 LayerNorm({.dim = 3, .epsilon = 0.1, .bias = false, .type = type}), 3, 3),
      layer_case("rms_norm", RMSNorm({.dim = 7, .type = type}), 7, 7),
      layer_case("learned_positions", LearnedPositions({.length = 70, .dim = 4, .type = type}), 4,
                 4),
  };
  const std::pair<const char*, Activation> activations[] = {{"relu", Activation::relu},
                                                            {"gelu", Activation::gelu},
                                                            {"gelu_tanh", Activation::gelu_tanh},
                                                            {"swiglu", Activation::swiglu}};
  for (const auto& [name, activation] : activations)
    for (const bool bias : {true, false})
      cases.push_back(layer_case(std::string("feed_forward_") + name + (bias ? "" : "_no_bias"),
                                 FeedForward({.model_dim = 5,
                                              .hidden_dim = 11,
                                              .activation = activation,
                                              .bias = bias,
                                              .type = type}),
                                 5, 5));
  return cases;
}

}  // namespace attend::test
