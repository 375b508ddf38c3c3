// The feed-forward network (MLP) of a transformer layer. It maps each token by itself.
//
//   relu, gelu, gelu_tanh   y = act(x W_up^T + b_up) W_down^T + b_down
//   swiglu                  y = (silu(x W_gate^T + b_gate) * (x W_up^T + b_up)) W_down^T + b_down
#pragma once

#include <attend/linear.h>

namespace attend {

enum class Activation : std::uint8_t {
  relu,       // max(x, 0)
  gelu,       // x * Phi(x), with the error function
  gelu_tanh,  // its approximation: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
  swiglu,     // silu(gate) * up, silu(x) = x / (1 + exp(-x))
};

struct FeedForwardOptions {
  std::int64_t model_dim = 0;
  std::int64_t hidden_dim = 0;  // 0: 4 * model_dim
  Activation activation = Activation::gelu;
  bool bias = true;
  DType type = DType::f32;
  std::uint64_t seed = 0;
};

//   x, y [..., model_dim]   W_up, W_gate [hidden_dim, model_dim]   W_down [model_dim, hidden_dim]
class ATTEND_API FeedForward {
 public:
  FeedForward() = default;  // none
  explicit FeedForward(const FeedForwardOptions& options);

  explicit operator bool() const noexcept { return static_cast<bool>(up_); }
  const FeedForwardOptions& options() const noexcept { return options_; }
  Device device() const noexcept { return up_.device(); }

  Tensor forward(const ConstTensorView& x, const Where& where = default_context()) const;
  void forward_into(const ConstTensorView& x, const TensorView& y,
                    const Where& where = default_context()) const;

  struct Saved {
    Tensor x, up, gate;  // the input, and both projections before the activation
  };
  std::pair<Tensor, Saved> forward_train(const ConstTensorView& x,
                                         const Where& where = default_context()) const;
  LayerGradients backward(const ConstTensorView& dy, const Saved& saved,
                          const Where& where = default_context()) const;

  FeedForward to(DType type) const;                         // a copy in another type
  FeedForward to(Device device, const Where& where) const;  // in memory of a device: linear.h
  FeedForward quantize() const;  // a copy with weights of 8 bits, for inference
  bool quantized() const noexcept {
    return up_.quantized() || gate_.quantized() || down_.quantized();
  }

  std::vector<NamedView> parameters() const;  // up.weight, up.bias, gate..., down...
  std::vector<Parameter> writable_parameters();

 private:
  friend class AttentionBlock;
  friend struct LayerTensors;
  // y = the output + residual (none: of 0), and what is saved, if that is wanted.
  void run(const ConstTensorView& x, const ConstTensorView& residual, const TensorView& y,
           Saved* saved, const Where& where) const;

  FeedForwardOptions options_;
  Linear up_, gate_, down_;
};

}  // namespace attend
