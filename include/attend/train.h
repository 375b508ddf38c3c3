// Training: losses with their gradients, optimizers, clipping, learning rates, loss scaling,
// checkpoints. All of it is deterministic: the same start and the same data give the same bits on
// the same machine.
#pragma once

#include <attend/parameter.h>

#include <memory>

namespace attend {

// ---- losses ------------------------------------------------------------------------------------

struct Loss {
  double value = 0;
  Tensor gradient;         // at the logits or the prediction, of their type and shape
  std::int64_t count = 0;  // rows or elements that the mean is over
};

struct CrossEntropyOptions {
  std::int64_t ignore = -100;  // a target with this value does not count
  double label_smoothing = 0;  // this part of the target is spread over all classes
  double gradient_scale = 1;   // the gradient alone is multiplied by this: a LossScale's value()
};

struct MseOptions {
  double gradient_scale = 1;  // as above
};

// The mean over the rows of -log softmax(logits)[target]; 0 if no row counts.
//   logits [..., classes]   targets [...] (i64 or i32)
ATTEND_API Loss cross_entropy(const ConstTensorView& logits, const ConstTensorView& targets,
                              const CrossEntropyOptions& options = {},
                              const Where& where = default_context());

// The mean over the elements of (prediction - target)^2.
ATTEND_API Loss mse(const ConstTensorView& prediction, const ConstTensorView& target,
                    const Where& where = default_context());
ATTEND_API Loss mse(const ConstTensorView& prediction, const ConstTensorView& target,
                    const MseOptions& options, const Where& where = default_context());

// ---- gradients ---------------------------------------------------------------------------------

// sum += more, name by name, in the type of sum. An empty sum becomes a copy, of 16-bit gradients
// in f32.
ATTEND_API void accumulate(std::vector<NamedTensor>& sum, const std::vector<NamedTensor>& more);

// Scales all gradients so that their common Euclidean norm is at most max_norm; returns the norm
// before. A norm that is not finite throws, and the gradients stay as they are.
ATTEND_API double clip_gradients(std::vector<NamedTensor>& gradients, double max_norm);

// ---- learning rates ----------------------------------------------------------------------------

// Rises linearly to the peak over `warmup` steps, then stays, or falls to `minimum` at step
// `total`.
struct ATTEND_API LearningRate {
  enum class Decay : std::uint8_t { constant, linear, cosine };
  double peak = 1e-3;
  std::int64_t warmup = 0;
  std::int64_t total = 0;
  Decay decay = Decay::constant;
  double minimum = 0;
  double at(std::int64_t step) const;  // steps count from 0
};

// ---- optimizers --------------------------------------------------------------------------------

// step() changes the parameters by the gradients, which must have the same names in the same order.
// An optimizer's state for each parameter is kept by name, in f32 (f64 for f64); 16-bit parameters
// also have a master copy in f32, made at the first step, from which they are rounded. What is
// written into such a parameter between steps is lost at the next one.
class ATTEND_API Optimizer {
 public:
  virtual ~Optimizer();
  void step(const std::vector<Parameter>& parameters, const std::vector<NamedTensor>& gradients,
            double learning_rate);
  std::int64_t steps() const noexcept { return steps_; }
  virtual const char* kind() const noexcept = 0;  // "adamw"

  // The state, for checkpoints: "m.weight", "master.weight"; and back, for the parameters that
  // step() will be called with. There is no state before the first step.
  std::vector<NamedView> state() const;
  void restore(std::int64_t steps, std::vector<NamedTensor> state,
               const std::vector<Parameter>& parameters);

 protected:
  // Some elements of a parameter: x, the gradient g and those of each state tensor, as f64.
  struct Elements {
    double* x;
    const double* g;
    std::vector<double*> state;
    std::int64_t count;
  };
  explicit Optimizer(std::vector<std::string> state_names);  // of each parameter
  // Changes elements.x and elements.state; steps count from 1. Must not throw.
  virtual void update(const Elements& elements, double learning_rate, std::int64_t step) const = 0;

 private:
  std::vector<std::string> state_names_;
  std::vector<NamedTensor> state_;
  std::int64_t steps_ = 0;
};

struct SGDOptions {
  double momentum = 0;
  bool nesterov = false;
  double weight_decay = 0;
};

// m = momentum m + g;  x -= learning_rate (m + weight_decay x), with nesterov g + momentum m for m
class ATTEND_API SGD : public Optimizer {
 public:
  explicit SGD(const SGDOptions& options = {});
  const char* kind() const noexcept override { return "sgd"; }

 protected:
  void update(const Elements& elements, double learning_rate, std::int64_t step) const override;

 private:
  SGDOptions options_;
};

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;
};

// m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
// x -= learning_rate (weight_decay x + m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon))
class ATTEND_API AdamW : public Optimizer {
 public:
  explicit AdamW(const AdamWOptions& options = {});
  const char* kind() const noexcept override { return "adamw"; }

 protected:
  void update(const Elements& elements, double learning_rate, std::int64_t step) const override;

 private:
  AdamWOptions options_;
};

// ---- loss scaling ------------------------------------------------------------------------------

struct LossScaleOptions {
  double initial = 65536;        // at least 1
  double factor = 2;             // the scale is divided or multiplied by this; above 1
  std::int64_t interval = 2000;  // steps with finite gradients after which the scale grows
};

// For models of f16, whose smallest number is 6e-8: the loss's gradient is multiplied by the scale
// before the backward pass, and the parameters' gradients are divided by it afterwards, so that
// small ones are not rounded to 0. A step whose gradients overflow is left out, with a smaller
// scale from then on. Each step is:
//
//   Loss loss = cross_entropy(logits, targets, {.gradient_scale = scale.value()});
//   auto gradients = model.backward(loss.gradient, saved);
//   const bool finite = scale.unscale(gradients);
//   if (finite) {
//     clip_gradients(gradients, 1);
//     optimizer.step(model.writable_parameters(), gradients, rate);
//   }
//   scale.update(finite);
class ATTEND_API LossScale {
 public:
  explicit LossScale(const LossScaleOptions& options = {});
  const LossScaleOptions& options() const noexcept { return options_; }
  double value() const noexcept { return value_; }
  std::int64_t good_steps() const noexcept { return good_steps_; }  // since the scale changed

  // Divides the gradients by the scale; those of 16 bits become f32, or what was saved would be
  // lost again. False, and nothing is changed, if any of them is not finite.
  bool unscale(std::vector<NamedTensor>& gradients) const;
  // Once a step, last. Throws if the gradients were not finite at a scale of 1, where scaling
  // cannot be the cause; nothing is changed then.
  void update(bool finite);
  // What a checkpoint holds, and back.
  void restore(double value, std::int64_t good_steps);

 private:
  LossScaleOptions options_;
  double value_;
  std::int64_t good_steps_ = 0;
};

// ---- checkpoints -------------------------------------------------------------------------------

// One safetensors file: the parameters under their names, the optimizer's state under
// "optimizer.", the number of steps, and the loss scale if there is one. Training resumed from it
// gives the same bits as training without interruption.
ATTEND_API void save_checkpoint(const std::filesystem::path& path,
                                const std::vector<NamedView>& parameters,
                                const Optimizer& optimizer, const Metadata& more = {},
                                const LossScale* loss_scale = nullptr);
// Nothing is changed if anything in the file does not fit. Returns the metadata.
ATTEND_API Metadata load_checkpoint(const std::filesystem::path& path,
                                    const std::vector<Parameter>& parameters, Optimizer& optimizer,
                                    LossScale* loss_scale = nullptr);

}  // namespace attend
