// Mistakes with losses, gradients, optimizers and checkpoints.
#include "errors/layer_mistakes.h"
#include "support/io_files.h"

#include <attend/train.h>

#include <limits>

#include <cmath>

namespace attend::test {
namespace {

Tensor of(const Shape& shape, DType type = DType::f32) { return Tensor(shape, type); }

const ConstTensorView kOnDevice(nullptr, DType::f32, {2, 3}, Device{Device::Kind::cuda, 1});

// A step of AdamW on one parameter and its gradient.
void step(const Parameter& parameter, const NamedTensor& gradient, double learning_rate = 0.1) {
  AdamW().step({parameter}, {gradient}, learning_rate);
}

TensorView view_of(const Shape& shape, DType type = DType::f32) {
  static double memory[64];
  return {memory, type, shape};
}

}  // namespace

std::vector<LayerMistake> loss_mistakes() {
  const auto ce = [](const ConstTensorView& logits, const ConstTensorView& targets,
                     const CrossEntropyOptions& options = {}) {
    cross_entropy(logits, targets, options);
  };
  return {
      {"no_logits", [=] { ce({}, of({2}, DType::i64)); },
       "InvalidArgument: cross_entropy: logits is missing"},
      {"targets_on_a_device",
       [=] {
         ce(of({2, 3}), kOnDevice);
       },
       "InvalidArgument: cross_entropy: targets is on cuda:1, not in host memory"},
      {"logits_of_whole_numbers",
       [=] {
         ce(of({2, 3}, DType::i32), of({2}, DType::i64));
       },
       "InvalidArgument: cross_entropy: logits is i32, not a floating-point type"},
      {"targets_of_numbers",
       [=] {
         ce(of({2, 3}), of({2}));
       },
       "InvalidArgument: cross_entropy: targets is f32, not i64 or i32"},
      {"targets_of_another_shape",
       [=] {
         ce(of({2, 3}), of({3}, DType::i64));
       },
       "InvalidArgument: cross_entropy: targets is [3], logits [2, 3]; targets must have the sizes "
       "of logits without the last"},
      {"logits_without_classes", [=] { ce(of({}), of({}, DType::i64)); },
       "InvalidArgument: cross_entropy: targets is [], logits []; targets must have the sizes of "
       "logits without the last"},
      {"too_much_smoothing",
       [=] {
         ce(of({2, 3}), of({2}, DType::i64), {.label_smoothing = 1});
       },
       "InvalidArgument: cross_entropy: label_smoothing is 1; it must be at least 0 and less than "
       "1"},
      {"gradient_of_no_size",
       [=] {
         ce(of({2, 3}), of({2}, DType::i64), {.gradient_scale = 0});
       },
       "InvalidArgument: cross_entropy: gradient_scale is 0; it must be finite and above 0"},
      {"mse_gradient_of_no_size", [] { mse(of({2}), of({2}), {.gradient_scale = NAN}); },
       "InvalidArgument: mse: gradient_scale is nan; it must be finite and above 0"},
      {"target_that_is_no_class",
       [=] {
         ce(of({2, 2, 3}), Tensor({0, -100, 3, 1}, {2, 2}));
       },
       "InvalidArgument: cross_entropy: target [1, 0] is 3; there are 3 classes, from 0 on, and "
       "-100 is ignored"},
      {"target_below_zero",
       [=] {
         ce(of({1, 3}), Tensor({-1}, {1}));
       },
       "InvalidArgument: cross_entropy: target [0] is -1; there are 3 classes, from 0 on, and -100 "
       "is ignored"},
      {"no_prediction", [] { mse({}, of({2})); }, "InvalidArgument: mse: prediction is missing"},
      {"no_mse_target", [] { mse(of({2}), {}); }, "InvalidArgument: mse: target is missing"},
      {"prediction_of_whole_numbers", [] { mse(of({2}, DType::i64), of({2})); },
       "InvalidArgument: mse: prediction is i64, not a floating-point type"},
      {"mse_target_of_whole_numbers", [] { mse(of({2}), of({2}, DType::u8)); },
       "InvalidArgument: mse: target is u8, not a floating-point type"},
      {"prediction_of_another_shape",
       [] {
         mse(of({2, 1}), of({1, 2}));
       },
       "InvalidArgument: mse: prediction is [2, 1], target [1, 2]; they must be the same"},
  };
}

std::vector<LayerMistake> gradient_mistakes() {
  const auto accumulated = [](std::vector<NamedTensor> sum, const std::vector<NamedTensor>& more) {
    accumulate(sum, more);
  };
  const auto clipped = [](std::vector<NamedTensor> list, double norm) {
    clip_gradients(list, norm);
  };
  return {
      {"sum_of_more_gradients",
       [=] {
         accumulated({{"a", of({2})}, {"b", of({2})}}, {{"a", of({2})}});
       },
       "InvalidArgument: accumulate: there are 1 gradients for 2 sums"},
      {"sum_of_other_names",
       [=] {
         accumulated({{"a", of({2})}}, {{"b", of({2})}});
       },
       "InvalidArgument: accumulate: gradient 0 is of 'b', sum 0 is 'a'"},
      {"sum_of_other_shapes",
       [=] {
         accumulated({{"a", of({2})}}, {{"a", of({3})}});
       },
       "InvalidArgument: accumulate: the gradient of 'a' is [3], the sum [2]"},
      {"sum_with_nothing",
       [=] {
         accumulated({{"a", of({2})}}, {{"a", {}}});
       },
       "InvalidArgument: accumulate: the gradient of 'a' is missing"},
      {"clipped_whole_numbers",
       [=] {
         clipped({{"a", of({2}, DType::i64)}}, 1);
       },
       "InvalidArgument: clip_gradients: the gradient of 'a' is i64, not a floating-point type"},
      {"norm_zero",
       [=] {
         clipped({{"a", of({2})}}, 0);
       },
       "InvalidArgument: clip_gradients: max_norm is 0, not above 0"},
      {"norm_not_finite",
       [=] {
         clipped({{"a", Tensor({1.0f, NAN}, {2})}}, 1);
       },
       "InvalidArgument: clip_gradients: the norm of the gradients is nan"},
  };
}

std::vector<LayerMistake> optimizer_mistakes() {
  using Decay = LearningRate::Decay;
  const auto changed = [] {
    AdamW adamw;
    adamw.step({{"w", view_of({3})}}, {{"w", of({3})}}, 0.1);
    adamw.step({{"v", view_of({3})}}, {{"v", of({3})}}, 0.1);
  };
  return {
      {"rate_not_finite",
       [] {
         step({"w", view_of({3})}, {"w", of({3})}, NAN);
       },
       "InvalidArgument: adamw: learning_rate is nan; it must be finite and not negative"},
      {"no_parameter",
       [] {
         step({"w", {}}, {"w", of({3})});
       },
       "InvalidArgument: adamw: parameter 'w' is missing"},
      {"parameter_without_an_address",
       [] {
         step({"w", TensorView(static_cast<float*>(nullptr), {3})}, {"w", of({3})});
       },
       "InvalidArgument: adamw: parameter 'w' has no address"},
      {"parameter_on_a_device",
       [] {
         step({"w", TensorView(nullptr, DType::f32, {3}, Device{Device::Kind::cuda, 1})},
              {"w", of({3})});
       },
       "InvalidArgument: adamw: parameter 'w' is on cuda:1, not in host memory"},
      {"parameter_of_whole_numbers",
       [] {
         step({"w", view_of({3}, DType::i32)}, {"w", of({3})});
       },
       "InvalidArgument: adamw: parameter 'w' is i32, not a floating-point type"},
      {"parameter_with_gaps",
       [] {
         step({"w", view_of({3, 4}).slice(1, 0, 2)}, {"w", of({3, 2})});
       },
       "InvalidArgument: adamw: parameter 'w' is not contiguous"},
      {"two_parameters_of_one_name",
       [] {
         SGD().step({{"w", view_of({3})}, {"w", view_of({3})}}, {}, 0.1);
       },
       "InvalidArgument: sgd: two parameters are named 'w'"},
      {"no_gradients",
       [] {
         SGD().step({{"w", view_of({3})}}, {}, 0.1);
       },
       "InvalidArgument: sgd: there are 0 gradients for 1 parameters"},
      {"gradient_of_another_name",
       [] {
         step({"w", view_of({3})}, {"v", of({3})});
       },
       "InvalidArgument: adamw: gradient 0 is of 'v', parameter 0 is 'w'"},
      {"gradient_of_another_shape",
       [] {
         step({"w", view_of({3})}, {"w", of({4})});
       },
       "InvalidArgument: adamw: the gradient of 'w' is [4], the parameter [3]"},
      {"other_parameters_than_before", changed,
       "InvalidArgument: adamw: the parameters are not those of the steps before; a new model "
       "needs a new optimizer"},
      {"steps_below_zero", [] { AdamW().restore(-1, {}, {}); },
       "InvalidArgument: adamw: steps is -1, less than 0"},
      {"steps_that_cannot_be_counted",
       [] { AdamW().restore(std::numeric_limits<std::int64_t>::max(), {}, {}); },
       "InvalidArgument: adamw: steps is 9223372036854775807; it must be at most 2^53"},
      {"state_without_a_tensor",
       [] {
         AdamW().restore(1, {{"v.w", of({3})}}, {{"w", view_of({3})}});
       },
       "InvalidArgument: adamw: there is no tensor 'm.w'; there are 'v.w'"},
      {"state_of_another_shape",
       [] {
         AdamW().restore(1, {{"m.w", of({4})}}, {{"w", view_of({3})}});
       },
       "InvalidArgument: adamw: tensor 'm.w' is [4] of f32; it must be [3] of f32"},
      {"state_that_nobody_takes",
       [] {
         SGD().restore(1, {{"m.w", of({3})}}, {});
       },
       "InvalidArgument: sgd: nothing takes the tensors 'm.w'"},
      {"momentum_one", [] { SGD({.momentum = 1}); },
       "InvalidArgument: sgd: momentum is 1; it must be in [0, 1)"},
      {"nesterov_alone", [] { SGD({.nesterov = true}); },
       "InvalidArgument: sgd: nesterov needs a momentum above 0"},
      {"negative_decay", [] { SGD({.weight_decay = -1}); },
       "InvalidArgument: sgd: weight_decay is -1; it must be finite and not negative"},
      {"beta_one", [] { AdamW({.beta1 = 0.5, .beta2 = 1}); },
       "InvalidArgument: adamw: beta1 is 0.5, beta2 1; both must be in [0, 1)"},
      {"epsilon_zero", [] { AdamW({.epsilon = 0}); },
       "InvalidArgument: adamw: epsilon is 0; it must be finite and above 0"},
      {"infinite_decay", [] { AdamW({.weight_decay = HUGE_VAL}); },
       "InvalidArgument: adamw: weight_decay is inf; it must be finite and not negative"},
      {"step_below_zero", [] { LearningRate().at(-1); },
       "InvalidArgument: LearningRate: step is -1, less than 0"},
      {"peak_below_zero", [] { LearningRate{.peak = -1}.at(0); },
       "InvalidArgument: LearningRate: peak -1 and minimum 0 must be finite and not negative"},
      {"warmup_below_zero", [] { LearningRate{.peak = 1, .warmup = -1}.at(0); },
       "InvalidArgument: LearningRate: warmup is -1, less than 0"},
      {"decay_of_no_kind", [] { LearningRate{.peak = 1, .decay = Decay(77)}.at(0); },
       "InvalidArgument: LearningRate: decay is 77; it must be constant, linear or cosine"},
      {"no_steps_to_fall",
       [] { LearningRate{.peak = 1, .warmup = 5, .total = 5, .decay = Decay::linear}.at(0); },
       "InvalidArgument: LearningRate: total is 5; a rate that falls needs more steps than the "
       "warmup's 5"},
  };
}

std::vector<LayerMistake> loss_scale_mistakes() {
  return {
      {"scale_below_one", [] { LossScale({.initial = 0.5}); },
       "InvalidArgument: loss_scale: initial is 0.5; it must be in [1, 2^64]"},
      {"scale_not_finite", [] { LossScale({.initial = HUGE_VAL}); },
       "InvalidArgument: loss_scale: initial is inf; it must be in [1, 2^64]"},
      {"scale_that_never_changes", [] { LossScale({.factor = 1}); },
       "InvalidArgument: loss_scale: factor is 1; it must be finite and above 1"},
      {"interval_of_no_steps", [] { LossScale({.interval = 0}); },
       "InvalidArgument: loss_scale: interval is 0; it must be at least 1"},
      {"unscaled_whole_numbers",
       [] {
         std::vector<NamedTensor> g = {{"a", of({2}, DType::i64)}};
         LossScale().unscale(g);
       },
       "InvalidArgument: loss_scale: the gradient of 'a' is i64, not a floating-point type"},
      {"not_finite_at_any_scale", [] { LossScale({.initial = 1}).update(false); },
       "InvalidArgument: loss_scale: the gradients are not finite at a scale of 1 either; the "
       "model or its inputs have numbers that its type cannot hold"},
      {"restored_scale_of_zero", [] { LossScale().restore(0, 0); },
       "InvalidArgument: loss_scale: value is 0; it must be in [1, 2^64]"},
      {"restored_steps_below_zero", [] { LossScale().restore(8, -1); },
       "InvalidArgument: loss_scale: good_steps is -1, less than 0"},
  };
}

std::vector<LayerMistake> checkpoint_mistakes() {
  static const TemporaryFolder folder;
  static const std::string path = (folder / "c").string();
  const auto load = [](const Metadata& metadata, LossScale* scale = nullptr) {
    save_safetensors(path, {}, metadata);
    SGD sgd;
    load_checkpoint(path, {}, sgd, scale);
  };
  const std::string version = "checkpoint.version", kind = "checkpoint.optimizer";
  return {
      {"another_file", [=] { load({}); },
       "FileError: load_checkpoint: " + path + ": is not a checkpoint"},
      {"another_version",
       [=] {
         load({{version, "2"}});
       },
       "FileError: load_checkpoint: " + path +
           ": is a checkpoint of version 2; this library reads version 1"},
      {"another_optimizer",
       [=] {
         load({{version, "1"}, {kind, "adamw"}});
       },
       "FileError: load_checkpoint: " + path +
           ": the optimizer is 'adamw' in the file and 'sgd' here"},
      {"no_optimizer",
       [=] {
         load({{version, "1"}});
       },
       "FileError: load_checkpoint: " + path +
           ": the optimizer is not named in the file and 'sgd' here"},
      {"steps_of_a_checkpoint_below_zero",
       [=] {
         load({{version, "1"}, {kind, "sgd"}, {"checkpoint.steps", "-1"}});
       },
       "FileError: load_checkpoint: " + path + ": sgd: steps is -1, less than 0"},
      {"no_loss_scale_in_the_file",
       [=] {
         LossScale scale;
         load({{version, "1"}, {kind, "sgd"}, {"checkpoint.steps", "0"}}, &scale);
       },
       "FileError: load_checkpoint: " + path + ": it holds no loss scale, but one is given"},
      {"nobody_takes_the_loss_scale",
       [=] {
         load({{version, "1"},
               {kind, "sgd"},
               {"checkpoint.steps", "0"},
               {"checkpoint.loss_scale", "8"}});
       },
       "FileError: load_checkpoint: " + path +
           ": it holds a loss scale; give the LossScale to restore"},
      {"good_steps_of_no_loss_scale",
       [=] {
         load({{version, "1"},
               {kind, "sgd"},
               {"checkpoint.steps", "0"},
               {"checkpoint.loss_scale_good_steps", "3"}});
       },
       "FileError: load_checkpoint: " + path +
           ": it holds checkpoint.loss_scale_good_steps without checkpoint.loss_scale"},
      {"metadata_of_its_own",
       [] {
         save_checkpoint(path, {}, SGD(), {{"checkpoint.steps", "1"}});
       },
       "InvalidArgument: save_checkpoint: the metadata key 'checkpoint.steps' is reserved "
       "for checkpoints"},
      {"metadata_of_its_own_of_a_loss_scale",
       [] {
         save_checkpoint(path, {}, SGD(), {{"checkpoint.loss_scale", "1"}});
       },
       "InvalidArgument: save_checkpoint: the metadata key 'checkpoint.loss_scale' is reserved "
       "for checkpoints"},
      {"parameter_with_the_optimizers_name",
       [] {
         save_checkpoint(path, {{"optimizer.w", of({3})}}, SGD());
       },
       "InvalidArgument: save_checkpoint: a parameter is named 'optimizer.w'; names that begin "
       "with 'optimizer.' are reserved for the optimizer"},
      {"loaded_into_nothing",
       [] {
         SGD sgd;
         load_checkpoint(path, {{"w", {}}}, sgd);
       },
       "InvalidArgument: load_checkpoint: parameter 'w' is missing"},
  };
}

}  // namespace attend::test
