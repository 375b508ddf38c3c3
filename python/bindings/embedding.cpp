// From token numbers to vectors, and where each token stands.
#include "layer.h"

#include <attend/embedding.h>

namespace attend::python {
namespace {

using namespace nb::literals;

// Positions that are added to x: forward and forward_train know where the first row stands.
template <class Layer>
void bind_positions(nb::class_<Layer>& type, const char* name, const char* parameters) {
  using Saved = typename Layer::Saved;
  const auto no_context = "context"_a = nb::none();
  nb::class_<Saved>(type, "Saved", "What backward() needs from forward_train().");
  type.def(
          "forward",
          [name](const Layer& self, nb::handle x, std::int64_t offset, GivenContext context) {
            const Array in = read(x, {name, "x", Kind::floating});
            return to_python(
                unlocked([&] { return self.forward(in, offset, context_or_default(context)); }), x);
          },
          "x"_a.none(), nb::kw_only(), "offset"_a = 0, no_context,
          nb::sig("def forward(self, x: ArrayT, *, offset: int = 0, "
                  "context: Context | None = None) -> ArrayT"),
          "x with the positions from `offset` on added.")
      .def(
          "forward_train",
          [name](const Layer& self, nb::handle x, std::int64_t offset, GivenContext context) {
            const Array in = read(x, {name, "x", Kind::floating});
            auto [y, saved] = unlocked(
                [&] { return self.forward_train(in, offset, context_or_default(context)); });
            return nb::make_tuple(to_python(std::move(y), x), nb::cast(std::move(saved)));
          },
          "x"_a.none(), nb::kw_only(), "offset"_a = 0, no_context,
          nb::sig("def forward_train(self, x: ArrayT, *, offset: int = 0, "
                  "context: Context | None = None) -> tuple[ArrayT, Saved]"),
          "(y, saved); backward() takes saved.")
      .def(
          "backward",
          [name](const Layer& self, nb::handle dy, const Saved& saved, GivenContext context) {
            const Array in = read(dy, {name, "dy", Kind::floating});
            return make_gradients(
                unlocked([&] { return self.backward(in, saved, context_or_default(context)); }),
                dy);
          },
          "dy"_a.none(), "saved"_a, nb::kw_only(), no_context,
          nb::sig("def backward(self, dy: ArrayT, saved: Saved, *, "
                  "context: Context | None = None) -> LayerGradients"),
          "Gradients at x and at the parameters, given dy at y.")
      .def("parameters", show_parameters<Layer>, nb::sig("def parameters(self) -> dict[str, Any]"),
           parameters);
  bind_manners(type);
}

}  // namespace

void bind_embedding(nb::module_& m) {
  nb::class_<Embedding> type(m, "Embedding", R"(A vector for each token id.

    tokens [...] (int64 or int32)   weight [vocabulary, dim]   y [..., dim]

>>> attend.Embedding(100, 8).forward(numpy.array([[1, 2, 3]])).shape
(1, 3, 8)
)");
  type.def(
      "__init__",
      [](Embedding* self, std::int64_t vocabulary, std::int64_t dim, nb::handle dtype,
         std::uint64_t seed, double deviation) {
        new (self) Embedding({.vocabulary = vocabulary,
                              .dim = dim,
                              .type = to_dtype(dtype, "Embedding"),
                              .seed = seed,
                              .deviation = deviation});
      },
      "vocabulary"_a, "dim"_a, nb::kw_only(), "type"_a = "f32", "seed"_a = 0, "deviation"_a = 1.0,
      nb::sig("def __init__(self, vocabulary: int, dim: int, *, type: Any = 'f32', seed: int = 0, "
              "deviation: float = 1.0) -> None"));
  bind_calls(type, "Embedding",
             {.kind = Kind::whole,
              .name = "tokens",
              .forward = "def forward(self, tokens: ArrayT, *, context: Context | None = None) -> "
                         "ArrayT",
              .forward_train = "def forward_train(self, tokens: ArrayT, *, "
                               "context: Context | None = None) -> tuple[ArrayT, Saved]"});

  nb::class_<LearnedPositions> learned(m, "LearnedPositions",
                                       R"(Adds a trained vector to each position.

    y[..., i, :] = x[..., i, :] + weight[i + offset, :]     x, y [..., length, dim]

>>> attend.LearnedPositions(16, 4).forward(numpy.zeros((2, 3, 4), 'float32'), offset=5).shape
(2, 3, 4)
)");
  learned.def(
      "__init__",
      [](LearnedPositions* self, std::int64_t length, std::int64_t dim, nb::handle dtype,
         std::uint64_t seed, double deviation) {
        new (self) LearnedPositions({.length = length,
                                     .dim = dim,
                                     .type = to_dtype(dtype, "LearnedPositions"),
                                     .seed = seed,
                                     .deviation = deviation});
      },
      "length"_a, "dim"_a, nb::kw_only(), "type"_a = "f32", "seed"_a = 0, "deviation"_a = 1.0,
      nb::sig("def __init__(self, length: int, dim: int, *, type: Any = 'f32', seed: int = 0, "
              "deviation: float = 1.0) -> None"));
  bind_positions(learned, "LearnedPositions", "weight [length, dim].");
  bind_to(learned, "LearnedPositions");

  nb::class_<SinusoidalPositions> fixed(
      m, "SinusoidalPositions",
      R"(Adds sines and cosines of the position. It has no parameters.

    y[..., i, 2c]     = x[..., i, 2c]     + sin((i + offset) / base^(2c / dim))
    y[..., i, 2c + 1] = x[..., i, 2c + 1] + cos((i + offset) / base^(2c / dim))

>>> attend.SinusoidalPositions(2).forward(numpy.zeros((1, 2), 'float32'))
array([[0., 1.]], dtype=float32)
)");
  fixed.def(
      "__init__",
      [](SinusoidalPositions* self, std::int64_t dim, double base) {
        new (self) SinusoidalPositions({.dim = dim, .base = base});
      },
      "dim"_a, nb::kw_only(), "base"_a = 10000.0);
  bind_positions(fixed, "SinusoidalPositions", "None: an empty dict.");
}

}  // namespace attend::python
