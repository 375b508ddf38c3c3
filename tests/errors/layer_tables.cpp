// Mistakes with the simple layers and with lists of parameters.
#include "errors/layer_mistakes.h"
#include "layer/check.h"

#include <attend/embedding.h>
#include <attend/feed_forward.h>
#include <attend/linear.h>
#include <attend/norm.h>

#include <cmath>

namespace attend::test {
namespace {

Tensor of(const Shape& shape, DType type = DType::f32) { return Tensor(shape, type); }

const ConstTensorView kOnDevice(nullptr, DType::f32, {2, 3}, Device{Device::Kind::cuda, 1});
const ConstTensorView kNowhere(nullptr, DType::f32, {2, 3});

// A file with w [4, 3] and b [4].
TensorFile small_file() { return {{{"w", of({4, 3})}, {"b", of({4}, DType::f64)}}, {}, "F"}; }

}  // namespace

std::vector<LayerMistake> linear_mistakes() {
  static const Linear layer({.in = 3, .out = 4});
  const auto forward = [](const ConstTensorView& x) { layer.forward(x); };
  const auto backward = [](const ConstTensorView& dy, const Tensor& x) {
    layer.backward(dy, Linear::Saved{x});
  };
  return {
      {"no_features_in", [] { Linear({.in = 0, .out = 4}); },
       "InvalidArgument: linear: in is 0; it must be at least 1"},
      {"negative_features_out", [] { Linear({.in = 3, .out = -4}); },
       "InvalidArgument: linear: out is -4; it must be at least 1"},
      {"a_layer_of_whole_numbers", [] { Linear({.in = 3, .out = 4, .type = DType::i64}); },
       "InvalidArgument: linear: the type is i64; it must be f64, f32, bf16 or f16"},
      {"no_weight", [] { Linear{Tensor()}; }, "InvalidArgument: linear: weight is missing"},
      {"a_weight_of_whole_numbers",
       [] {
         Linear(of({4, 3}, DType::i8));
       },
       "InvalidArgument: linear: the type is i8; it must be f64, f32, bf16 or f16"},
      {"a_weight_of_one_dimension", [] { Linear(of({4})); },
       "InvalidArgument: linear: weight is [4]; it must be [out, in], neither of them 0"},
      {"an_empty_weight",
       [] {
         Linear(of({4, 0}));
       },
       "InvalidArgument: linear: weight is [4, 0]; it must be [out, in], neither of them 0"},
      {"a_bias_of_another_length",
       [] {
         Linear(of({4, 3}), of({3}));
       },
       "InvalidArgument: linear: bias is [3]; it must be [4]"},
      {"a_bias_of_another_type",
       [] {
         Linear(of({4, 3}), of({4}, DType::f64));
       },
       "InvalidArgument: linear: bias is f64, the layer is f32"},
      {"scales_of_a_wide_weight",
       [] {
         Linear(of({4, 3}), of({4}), {}, DType::f32);
       },
       "InvalidArgument: linear: weight is f32; with weight_scales it must be i8"},
      {"no_scales",
       [] {
         Linear(of({4, 3}, DType::i8), {}, {}, DType::f32);
       },
       "InvalidArgument: linear: weight_scales is missing"},
      {"scales_of_another_length",
       [] {
         Linear(of({4, 3}, DType::i8), of({3}), {}, DType::f32);
       },
       "InvalidArgument: linear: weight_scales is f32 [3]; it must be f32 [4]"},
      {"scales_of_another_type",
       [] {
         Linear(of({4, 3}, DType::i8), of({4}, DType::f16), {}, DType::f16);
       },
       "InvalidArgument: linear: weight_scales is f16 [4]; it must be f32 [4]"},
      {"a_type_of_8_bits",
       [] {
         Linear(of({4, 3}, DType::i8), of({4}), {}, DType::i8);
       },
       "InvalidArgument: linear: the type is i8; it must be f64, f32, bf16 or f16"},
      {"a_bias_of_another_type_than_x",
       [] {
         Linear(of({4, 3}, DType::i8), of({4}), of({4}), DType::f16);
       },
       "InvalidArgument: linear: bias is f32, the layer is f16"},
      {"gradients_of_8_bits", [] { layer.quantize().forward_train(of({3})); },
       "Unsupported: linear: the weights are i8, of quantize(); gradients need weights of f64, "
       "f32, "
       "bf16 or f16: train the layer first, then quantize it"},
      {"a_layer_that_is_none", [] { Linear().forward(of({3})); },
       "InvalidArgument: linear: the layer is none; make it from options first"},
      {"backward_of_none", [] { Linear().backward(of({3}), of({3}).view()); },
       "InvalidArgument: linear: the layer is none; make it from options first"},
      {"no_x", [=] { forward({}); }, "InvalidArgument: linear: x is missing"},
      {"x_on_a_device", [=] { forward(kOnDevice); },
       "InvalidArgument: linear: x is on cuda:1, not in host memory"},
      {"x_without_address", [=] { forward(kNowhere); },
       "InvalidArgument: linear: x [2, 3] has no address"},
      {"x_of_another_type",
       [=] {
         forward(of({2, 3}, DType::f64));
       },
       "InvalidArgument: linear: x is f64, the layer is f32; convert it, or the layer with to()"},
      {"x_of_other_features",
       [=] {
         forward(of({3, 4}));
       },
       "InvalidArgument: linear: x is [3, 4]; it must be [..., 3]"},
      {"x_without_dimensions", [=] { forward(of(Shape{})); },
       "InvalidArgument: linear: x is []; it must be [..., 3]"},
      {"no_dy",
       [=] {
         backward({}, of({2, 3}));
       },
       "InvalidArgument: linear: dy is missing"},
      {"dy_of_another_batch",
       [=] {
         backward(of({3, 4}), of({2, 3}));
       },
       "InvalidArgument: linear: dy is [3, 4]; it must be [2, 4]"},
      {"dy_of_another_type",
       [=] {
         backward(of({2, 4}, DType::f16), of({2, 3}));
       },
       "InvalidArgument: linear: dy is f16, the layer is f32"},
      {"nothing_saved",
       [=] {
         backward(of({2, 4}), {});
       },
       "InvalidArgument: linear: x is missing"},
      {"no_memory_for_a_list", [] { reporting("linear", [] { throw std::bad_alloc(); }); },
       "OutOfMemory: linear: out of memory"},
  };
}

std::vector<LayerMistake> norm_mistakes() {
  static const LayerNorm layer({.dim = 3});
  const auto rms = [](double epsilon) { RMSNorm({.dim = 3, .epsilon = epsilon}); };
  return {
      {"norm_of_nothing", [] { LayerNorm({.dim = 0}); },
       "InvalidArgument: layer_norm: dim is 0; it must be at least 1"},
      {"norm_of_another_kind", [] { Norm({.dim = 3, .kind = static_cast<NormKind>(2)}); },
       "InvalidArgument: norm: kind is 2; it must be layer_norm or rms_norm"},
      {"norm_of_whole_numbers", [] { RMSNorm({.dim = 3, .type = DType::boolean}); },
       "InvalidArgument: rms_norm: the type is bool; it must be f64, f32, bf16 or f16"},
      {"epsilon_of_zero", [=] { rms(0); },
       "InvalidArgument: rms_norm: epsilon is 0; it must be positive and finite"},
      {"epsilon_not_a_number", [=] { rms(std::nan("")); },
       "InvalidArgument: rms_norm: epsilon is nan; it must be positive and finite"},
      {"epsilon_infinite", [=] { rms(HUGE_VAL); },
       "InvalidArgument: rms_norm: epsilon is inf; it must be positive and finite"},
      {"norm_that_is_none", [] { Norm().forward(of({3})); },
       "InvalidArgument: layer_norm: the layer is none; make it from options first"},
      {"norm_of_other_features",
       [] {
         layer.forward(of({2, 4}));
       },
       "InvalidArgument: layer_norm: x is [2, 4]; it must be [..., 3]"},
      {"norm_backward_with_nothing_saved",
       [] {
         layer.backward(of({2, 3}), {});
       },
       "InvalidArgument: layer_norm: x is missing"},
      {"norm_backward_of_another_shape",
       [] {
         layer.backward(of({2, 3}), {of({3, 3})});
       },
       "InvalidArgument: layer_norm: dy is [2, 3]; it must be [3, 3]"},
  };
}

std::vector<LayerMistake> feed_forward_mistakes() {
  static const FeedForward layer(
      {.model_dim = 3, .hidden_dim = 5, .activation = Activation::swiglu});
  const auto backward = [](Tensor up, Tensor gate) {
    layer.backward(of({2, 3}), {of({2, 3}), std::move(up), std::move(gate)});
  };
  return {
      {"feed_forward_of_nothing", [] { FeedForward({.model_dim = 0}); },
       "InvalidArgument: feed_forward: model_dim is 0; it must be at least 1"},
      {"negative_hidden_dim", [] { FeedForward({.model_dim = 3, .hidden_dim = -1}); },
       "InvalidArgument: feed_forward: hidden_dim is -1; it must be at least 1, or 0 for 4 * "
       "model_dim"},
      {"no_such_activation",
       [] { FeedForward({.model_dim = 3, .activation = static_cast<Activation>(4)}); },
       "InvalidArgument: feed_forward: activation is 4; it must be relu, gelu, gelu_tanh or "
       "swiglu"},
      {"feed_forward_of_whole_numbers", [] { FeedForward({.model_dim = 3, .type = DType::u8}); },
       "InvalidArgument: feed_forward: the type is u8; it must be f64, f32, bf16 or f16"},
      {"feed_forward_too_large", [] { FeedForward({.model_dim = std::int64_t{1} << 62}); },
       "InvalidArgument: tensor: [9223372036854775807, 4611686018427387904] has 2^63 elements or "
       "more"},
      {"feed_forward_that_is_none", [] { FeedForward().forward(of({3})); },
       "InvalidArgument: feed_forward: the layer is none; make it from options first"},
      {"feed_forward_of_other_features",
       [] {
         layer.forward(of({2, 4}));
       },
       "InvalidArgument: feed_forward: x is [2, 4]; it must be [..., 3]"},
      {"feed_forward_training_without_x", [] { layer.forward_train({}); },
       "InvalidArgument: feed_forward: x is missing"},
      {"feed_forward_dy_of_another_shape",
       [] {
         layer.backward(of({4, 3}), {of({2, 3}), of({2, 5}), of({2, 5})});
       },
       "InvalidArgument: feed_forward: dy is [4, 3]; it must be [2, 3]"},
      {"saved_up_of_another_shape",
       [=] {
         backward(of({2, 3}), of({2, 5}));
       },
       "InvalidArgument: feed_forward: up is [2, 3]; it must be [2, 5]"},
      {"saved_gate_missing",
       [=] {
         backward(of({2, 5}), {});
       },
       "InvalidArgument: feed_forward: gate is missing"},
  };
}

std::vector<LayerMistake> embedding_mistakes() {
  static const Embedding layer({.vocabulary = 24, .dim = 3});
  static const Tensor tokens({0L, 1L, 2L, 24L}, {2, 2});
  static const Tensor negative({-1, 2}, {2});
  const auto deviation = [](double d) { Embedding({.vocabulary = 24, .dim = 3, .deviation = d}); };
  return {
      {"no_vocabulary", [] { Embedding({.vocabulary = 0, .dim = 3}); },
       "InvalidArgument: embedding: vocabulary is 0; it must be at least 1"},
      {"embedding_in_no_dimension", [] { Embedding({.vocabulary = 5, .dim = 0}); },
       "InvalidArgument: embedding: dim is 0; it must be at least 1"},
      {"negative_deviation", [=] { deviation(-1); },
       "InvalidArgument: embedding: deviation is -1; it must be finite and not negative"},
      {"infinite_deviation", [=] { deviation(HUGE_VAL); },
       "InvalidArgument: embedding: deviation is inf; it must be finite and not negative"},
      {"no_tokens", [] { layer.forward({}); }, "InvalidArgument: embedding: tokens is missing"},
      {"tokens_that_are_numbers", [] { layer.forward(of({2})); },
       "InvalidArgument: embedding: tokens are f32; they must be i64 or i32"},
      {"tokens_of_eight_dimensions",
       [] {
         layer.forward(of({1, 1, 1, 1, 1, 1, 1, 1}, DType::i64));
       },
       "InvalidArgument: embedding: tokens have 8 dimensions; at most 7 are allowed"},
      {"token_beyond_the_vocabulary", [] { layer.forward(tokens); },
       "InvalidArgument: embedding: the token at [1, 1] is 24; the vocabulary has the tokens 0 to "
       "23"},
      {"negative_token", [] { layer.forward(negative); },
       "InvalidArgument: embedding: the token at [0] is -1; the vocabulary has the tokens 0 to 23"},
      {"saved_token_beyond_the_vocabulary",
       [] {
         layer.backward(of({2, 2, 3}), {tokens});
       },
       "InvalidArgument: embedding: the token at [1, 1] is 24; the vocabulary has the tokens 0 to "
       "23"},
      {"embedding_dy_of_another_shape",
       [] {
         layer.backward(of({2, 4}), {of({2}, DType::i64)});
       },
       "InvalidArgument: embedding: dy is [2, 4]; it must be [2, 3]"},
      {"embedding_that_is_none", [] { Embedding().forward(tokens); },
       "InvalidArgument: embedding: the layer is none; make it from options first"},
  };
}

std::vector<LayerMistake> position_mistakes() {
  static const LearnedPositions learned({.length = 10, .dim = 4});
  static const SinusoidalPositions sinusoidal({.dim = 4});
  const auto base = [](double b) { SinusoidalPositions({.dim = 4, .base = b}); };
  return {
      {"no_positions", [] { LearnedPositions({.length = 0, .dim = 4}); },
       "InvalidArgument: learned_positions: length is 0; it must be at least 1"},
      {"positions_that_are_none",
       [] {
         LearnedPositions().forward(of({2, 4}));
       },
       "InvalidArgument: learned_positions: the layer is none; make it from options first"},
      {"one_token_without_a_sequence", [] { learned.forward(of({4})); },
       "InvalidArgument: learned_positions: x is [4]; it must be [..., length, 4]"},
      {"more_positions_than_learned",
       [] {
         learned.forward(of({3, 4}), 8);
       },
       "InvalidArgument: learned_positions: a length of 3 from offset 8; the table has the "
       "positions 0 to 9"},
      {"a_negative_offset",
       [] {
         learned.forward(of({3, 4}), -1);
       },
       "InvalidArgument: learned_positions: a length of 3 from offset -1; the table has the "
       "positions 0 to 9"},
      {"an_enormous_offset",
       [] {
         learned.forward(of({3, 4}), INT64_MAX);
       },
       "InvalidArgument: learned_positions: a length of 3 from offset 9223372036854775807; the "
       "table has the positions 0 to 9"},
      {"positions_dy_of_other_features",
       [] {
         learned.backward(of({3, 5}), {});
       },
       "InvalidArgument: learned_positions: dy is [3, 5]; it must be [..., 4]"},
      {"positions_dy_too_long",
       [] {
         learned.backward(of({3, 4}), {8});
       },
       "InvalidArgument: learned_positions: a length of 3 from offset 8; the table has the "
       "positions 0 to 9"},
      {"sines_of_nothing", [] { SinusoidalPositions({.dim = 0}); },
       "InvalidArgument: sinusoidal_positions: dim is 0; it must be at least 1"},
      {"a_sine_without_cosine", [] { SinusoidalPositions({.dim = 3}); },
       "InvalidArgument: sinusoidal_positions: dim is 3; it must be even"},
      {"base_of_zero", [=] { base(0); },
       "InvalidArgument: sinusoidal_positions: base is 0; it must be positive and finite"},
      {"infinite_base", [=] { base(HUGE_VAL); },
       "InvalidArgument: sinusoidal_positions: base is inf; it must be positive and finite"},
      {"sines_for_whole_numbers",
       [] {
         sinusoidal.forward(of({2, 4}, DType::i32));
       },
       "InvalidArgument: sinusoidal_positions: the type is i32; it must be f64, f32, bf16 or f16"},
      {"sines_with_a_negative_offset",
       [] {
         sinusoidal.forward(of({2, 4}), -1);
       },
       "InvalidArgument: sinusoidal_positions: offset is -1; it must be from 0 to "
       "4503599627370496"},
      {"sines_too_far",
       [] {
         sinusoidal.forward(of({2, 4}), (std::int64_t{1} << 52) + 1);
       },
       "InvalidArgument: sinusoidal_positions: offset is 4503599627370497; it must be from 0 to "
       "4503599627370496"},
  };
}

std::vector<LayerMistake> parameter_mistakes() {
  static Tensor w({4, 3}), b({4}), whole({4}, DType::i64), bytes({4, 3}, DType::i8);
  const auto load = [](const TensorFile& file, const std::vector<Parameter>& parameters,
                       std::string_view prefix = {}) { load_parameters(file, parameters, prefix); };
  return {
      {"names_that_are_not_there",
       [=] {
         load(small_file(), {{"w", w}, {"c", b}, {"d", b}});
       },
       "FileError: load_parameters: F: there is no tensor 'c', 'd'; there are 'w', 'b'"},
      {"a_wide_tensor_for_8_bits",
       [=] {
         load(small_file(), {{"w", bytes}, {"b", b}});
       },
       "FileError: load_parameters: F: tensor 'w' is f32; the parameter is i8, of quantize(), and "
       "takes i8 alone"},
      {"names_of_an_empty_file",
       [=] {
         load({}, {{"w", w}});
       },
       "FileError: load_parameters: there is no tensor 'w'; there are none"},
      {"names_of_another_prefix",
       [=] {
         load(small_file(), {{"w", w}}, "up.");
       },
       "FileError: load_parameters: F: there is no tensor 'up.w'; there are 'w', 'b'"},
      {"a_name_of_nothing",
       [=] {
         load({{{"w", {}}}, {}, "F"}, {{"w", w}});
       },
       "FileError: load_parameters: F: there is no tensor 'w'; there are 'w'"},
      {"names_that_nobody_takes",
       [=] {
         load(small_file(), {{"b", b}});
       },
       "FileError: load_parameters: F: no parameter takes 'w'"},
      {"a_transposed_matrix",
       [=] {
         load(small_file(), {{"w", w.view().permute({1, 0})}, {"b", b}});
       },
       "FileError: load_parameters: F: tensor 'w' is [4, 3]; the parameter is [3, 4], a weight "
       "matrix being [out, in]"},
      {"a_vector_for_a_matrix",
       [=] {
         load(small_file(), {{"b", w}, {"w", w}});
       },
       "FileError: load_parameters: F: tensor 'b' is [4]; the parameter is [4, 3], a weight matrix "
       "being [out, in]"},
      {"a_matrix_for_a_vector",
       [=] {
         load(small_file(), {{"b", b}, {"w", b}});
       },
       "FileError: load_parameters: F: tensor 'w' is [4, 3]; the parameter is [4]"},
      {"whole_numbers_in_the_file",
       [=] {
         load({{{"b", whole}}, {}, "F"}, {{"b", b}});
       },
       "FileError: load_parameters: F: tensor 'b' is i64; a parameter needs a floating-point type"},
      {"a_parameter_that_is_missing",
       [=] {
         load(small_file(), {{"w", {}}, {"b", b}});
       },
       "InvalidArgument: load_parameters: 'w' is missing"},
      {"a_parameter_of_whole_numbers",
       [=] {
         load(small_file(), {{"w", w}, {"b", whole}});
       },
       "InvalidArgument: load_parameters: the type is i64; it must be f64, f32, bf16 or f16"},
  };
}

}  // namespace attend::test
