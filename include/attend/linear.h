// A linear map of the last dimension: y = x W^T + b.
#pragma once

#include <attend/parameter.h>

namespace attend {

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
  Tensor weight_, bias_;
};

}  // namespace attend
