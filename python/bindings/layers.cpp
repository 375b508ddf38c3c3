// The layers that map x to y: Linear, the norms, FeedForward, Embedding, positions.
#include "layer.h"

#include <attend/embedding.h>
#include <attend/feed_forward.h>
#include <attend/linear.h>
#include <attend/norm.h>

namespace attend::python {
namespace {

using namespace nb::literals;

void bind_linear(nb::module_& m) {
  nb::class_<Linear> type(m, "Linear", R"(A linear map of the last dimension: y = x W^T + b.

    x [..., in]   W [out, in]   b [out]   y [..., out]

W is Xavier-uniform from the seed, b = 0.

>>> layer = attend.Linear(4, 3)
>>> layer.forward(numpy.ones((2, 4), 'float32')).shape
(2, 3)
>>> sorted(layer.parameters())
['bias', 'weight']
)");
  type.def(
          "__init__",
          [](Linear* self, std::int64_t in, std::int64_t out, bool bias, nb::handle dtype,
             std::uint64_t seed) {
            new (self) Linear({.in = in,
                               .out = out,
                               .bias = bias,
                               .type = to_dtype(dtype, "Linear"),
                               .seed = seed});
          },
          "in_"_a, "out"_a, nb::kw_only(), "bias"_a = true, "type"_a = "f32", "seed"_a = 0,
          nb::sig("def __init__(self, in_: int, out: int, *, bias: bool = True, "
                  "type: Any = 'f32', seed: int = 0) -> None"))
      .def_static(
          "from_weights",
          [](nb::handle weight, nb::handle bias) {
            constexpr const char* where = "Linear.from_weights";
            const Array w = read(weight, {where, "weight", Kind::floating});
            const Array b = read(bias, {where, "bias", Kind::floating, true});
            return Linear(Tensor::copy_of(w), Tensor::copy_of(b), {.unchanged = true});
          },
          "weight"_a, "bias"_a = nb::none(),
          nb::sig("def from_weights(weight: Array, bias: Array | None = None) -> Linear"),
          "A layer with copies of these: weight [out, in], bias [out].");
  bind_calls(type, "Linear");
}

void bind_norms(nb::module_& m) {
  nb::class_<Norm> norm(m, "Norm", "LayerNorm or RMSNorm, by `kind`: 'layer_norm' or 'rms_norm'.");
  norm.def(
      "__init__",
      [](Norm* self, std::int64_t dim, nb::handle kind, double epsilon, bool bias,
         nb::handle type) {
        new (self) Norm({.dim = dim,
                         .kind = choose<NormKind>(kind, kNorms, "Norm: kind"),
                         .epsilon = epsilon,
                         .bias = bias,
                         .type = to_dtype(type, "Norm")});
      },
      "dim"_a, nb::kw_only(), "kind"_a = "layer_norm", "epsilon"_a = 1e-5, "bias"_a = true,
      "type"_a = "f32",
      nb::sig("def __init__(self, dim: int, *, kind: str = 'layer_norm', epsilon: float = 1e-05, "
              "bias: bool = True, type: Any = 'f32') -> None"));
  bind_calls(norm, "Norm");

  nb::class_<LayerNorm, Norm>(
      m, "LayerNorm",
      R"(y = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias over the last dimension.

    x, y [..., dim]   weight, bias [dim]

>>> attend.LayerNorm(2).forward(numpy.array([[1.0, 3.0]], 'float32')).round(3)
array([[-1.,  1.]], dtype=float32)
)")
      .def(
          "__init__",
          [](LayerNorm* self, std::int64_t dim, double epsilon, bool bias, nb::handle type) {
            new (self) LayerNorm({.dim = dim,
                                  .epsilon = epsilon,
                                  .bias = bias,
                                  .type = to_dtype(type, "LayerNorm")});
          },
          "dim"_a, nb::kw_only(), "epsilon"_a = 1e-5, "bias"_a = true, "type"_a = "f32",
          nb::sig("def __init__(self, dim: int, *, epsilon: float = 1e-05, bias: bool = True, "
                  "type: Any = 'f32') -> None"));

  nb::class_<RMSNorm, Norm>(m, "RMSNorm",
                            R"(y = x / sqrt(mean(x^2) + epsilon) * weight over the last dimension.

    x, y [..., dim]   weight [dim]

>>> attend.RMSNorm(2).forward(numpy.array([[3.0, 3.0]], 'float32')).round(3)
array([[1., 1.]], dtype=float32)
)")
      .def(
          "__init__",
          [](RMSNorm* self, std::int64_t dim, double epsilon, nb::handle type) {
            new (self) RMSNorm({.dim = dim, .epsilon = epsilon, .type = to_dtype(type, "RMSNorm")});
          },
          "dim"_a, nb::kw_only(), "epsilon"_a = 1e-6, "type"_a = "f32",
          nb::sig("def __init__(self, dim: int, *, epsilon: float = 1e-06, type: Any = 'f32') "
                  "-> None"));
}

void bind_feed_forward(nb::module_& m) {
  nb::class_<FeedForward> type(
      m, "FeedForward",
      R"(The feed-forward network (MLP) of a transformer layer. It maps each token by itself.

    relu, gelu, gelu_tanh   y = act(x W_up^T + b_up) W_down^T + b_down
    swiglu                  y = (silu(x W_gate^T + b_gate) * (x W_up^T + b_up)) W_down^T + b_down

    x, y [..., model_dim]   W_up, W_gate [hidden_dim, model_dim]   W_down [model_dim, hidden_dim]

hidden_dim 0 is 4 * model_dim.

>>> attend.FeedForward(8, activation='swiglu').forward(numpy.ones((2, 8), 'float32')).shape
(2, 8)
)");
  type.def(
      "__init__",
      [](FeedForward* self, std::int64_t model_dim, std::int64_t hidden_dim, nb::handle activation,
         bool bias, nb::handle dtype, std::uint64_t seed) {
        new (self) FeedForward(
            {.model_dim = model_dim,
             .hidden_dim = hidden_dim,
             .activation = choose<Activation>(activation, kActivations, "FeedForward: activation"),
             .bias = bias,
             .type = to_dtype(dtype, "FeedForward"),
             .seed = seed});
      },
      "model_dim"_a, "hidden_dim"_a = 0, nb::kw_only(), "activation"_a = "gelu", "bias"_a = true,
      "type"_a = "f32", "seed"_a = 0,
      nb::sig(
          "def __init__(self, model_dim: int, hidden_dim: int = 0, *, activation: str = 'gelu', "
          "bias: bool = True, type: Any = 'f32', seed: int = 0) -> None"));
  bind_calls(type, "FeedForward");
}

}  // namespace

void bind_layers(nb::module_& m) {
  bind_linear(m);
  bind_norms(m);
  bind_feed_forward(m);
  bind_embedding(m);
}

}  // namespace attend::python
