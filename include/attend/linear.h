// A linear map of the last dimension: y = x W^T + b.
#pragma once

#include <attend/parameter.h>

#include <atomic>
#include <initializer_list>
#include <span>

namespace attend {

class MultiHeadAttention;
struct AttentionCall;
struct PackedWeights;
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
  // The same from x itself, if the caller kept it.
  LayerGradients backward(const ConstTensorView& dy, const ConstTensorView& x,
                          Context& context = default_context()) const;

  std::vector<NamedView> parameters() const;  // weight, bias
  std::vector<Parameter> parameters();

 private:
  // A packed copy of the weights, in the order in which the product reads them. The first forward
  // pass makes it. It is used as long as only this object can have written the weights: they were
  // never shared, and parameters() was never called for writing; and in Contexts that choose the
  // kernel that packed them. Otherwise every forward pass packs them again, with the same bits;
  // with few rows of x that takes longer.
  class ATTEND_API Packed {
   public:
    explicit Packed(bool shared = false) noexcept : shared_(shared) {}
    Packed(const Packed&) noexcept {}  // a copy has its own weights
    Packed(Packed&& other) noexcept;
    Packed& operator=(Packed other) noexcept;
    ~Packed();
    void share() noexcept { shared_ = true; }
    const PackedWeights* of(const Linear& linear, const Context& context) const;  // or null

   private:
    mutable std::atomic<const PackedWeights*> made_{nullptr};
    std::atomic<bool> shared_{false};
  };

  // Several maps at once, into contiguous y: threads are joined once instead of three times.
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
