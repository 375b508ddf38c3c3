// A linear map of the last dimension: y = x W^T + b.
#pragma once

#include <attend/parameter.h>

#include <atomic>
#include <initializer_list>
#include <span>

namespace attend {

class MultiHeadAttention;
struct AttentionCall;
struct Projections;

struct LinearOptions {
  std::int64_t in = 0, out = 0;
  bool bias = true;
  DType type = DType::f32;
  std::uint64_t seed = 0;
};

//   x [..., in]   W [out, in]   b [out]   y [..., out]
class ATTEND_API Linear {
 public:
  Linear() = default;                                // none
  explicit Linear(const LinearOptions& options);     // W Xavier-uniform from the seed, b = 0
  explicit Linear(Tensor weight, Tensor bias = {});  // [out, in], [out]

  explicit operator bool() const noexcept { return static_cast<bool>(weight_); }
  std::int64_t in() const noexcept { return weight_.size(1); }
  std::int64_t out() const noexcept { return weight_.size(0); }
  DType dtype() const noexcept { return weight_.dtype(); }
  const Tensor& weight() const noexcept { return weight_; }
  const Tensor& bias() const noexcept { return bias_; }  // none, if there is none

  Tensor forward(const ConstTensorView& x, Context& context = default_context()) const;

  struct Saved {
    Tensor x;
  };
  std::pair<Tensor, Saved> forward_train(const ConstTensorView& x,
                                         Context& context = default_context()) const;
  LayerGradients backward(const ConstTensorView& dy, const Saved& saved,
                          Context& context = default_context()) const;
  // The same from x itself, where the caller has kept it.
  LayerGradients backward(const ConstTensorView& dy, const ConstTensorView& x,
                          Context& context = default_context()) const;

  std::vector<NamedView> parameters() const;  // weight, bias
  std::vector<Parameter> parameters();

 private:
  // The weights once more, in the order in which the product reads them: made by the first forward
  // pass and used as long as nobody else can have written the weights, that is while only this
  // object ever held them and parameters() was never called for writing. After that a forward pass
  // orders them anew, for the same bits: with few rows of x it takes longer.
  class ATTEND_API Packed {
   public:
    explicit Packed(bool shared = false) noexcept : shared_(shared) {}
    Packed(const Packed&) noexcept {}  // a copy has weights of its own
    Packed(Packed&& other) noexcept;
    Packed& operator=(Packed other) noexcept;
    ~Packed();
    void share() noexcept { shared_ = true; }
    const Tensor* of(const Tensor& weight) const;  // null: not to be used

   private:
    mutable std::atomic<const Tensor*> made_{nullptr};
    std::atomic<bool> shared_{false};
  };

  // Several maps side by side, into contiguous y: one wait for all threads instead of three.
  struct Pass {
    const Linear& linear;
    const ConstTensorView& x;
    const TensorView& y;
  };
  static void forward(std::initializer_list<Pass> passes, Context& context);
  struct BackwardPass {
    const Linear& linear;
    ConstTensorView dy, x;
  };
  static std::vector<LayerGradients> backward(std::span<const BackwardPass> passes,
                                              Context& context);
  friend MultiHeadAttention;
  friend void project(const MultiHeadAttention& layer, const AttentionCall& call,
                      const Projections& to, Context& context);

  Tensor weight_, bias_;
  Packed packed_;
};

}  // namespace attend
