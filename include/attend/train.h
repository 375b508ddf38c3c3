// Training: losses with their gradients, optimizers, clipping, learning rates, checkpoints. All of
// it is deterministic: the same start and the same data give the same bits on the same machine.
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
};

// The mean over the rows of -log softmax(logits)[target]; 0 if no row counts.
//   logits [..., classes]   targets [...] (i64 or i32)
ATTEND_API Loss cross_entropy(const ConstTensorView& logits, const ConstTensorView& targets,
                              const CrossEntropyOptions& options = {},
                              const Where& where = default_context());

// The mean over the elements of (prediction - target)^2.
ATTEND_API Loss mse(const ConstTensorView& prediction, const ConstTensorView& target,
                    const Where& where = default_context());

// ---- gradients ---------------------------------------------------------------------------------

// sum += more, name by name, in the type of sum. An empty sum becomes a copy.
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
// also have a master copy in f32, from which they are rounded.
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

// ---- checkpoints -------------------------------------------------------------------------------

// One safetensors file: the parameters under their names, the optimizer's state under
// "optimizer.", and the number of steps. Training resumed from it gives the same bits as training
// without interruption.
ATTEND_API void save_checkpoint(const std::filesystem::path& path,
                                const std::vector<NamedView>& parameters,
                                const Optimizer& optimizer, const Metadata& more = {});
// Nothing is changed if anything in the file does not fit. Returns the metadata.
ATTEND_API Metadata load_checkpoint(const std::filesystem::path& path,
                                    const std::vector<Parameter>& parameters, Optimizer& optimizer);

}  // namespace attend
