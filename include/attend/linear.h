// A linear map of the last dimension: y = x W^T + b.
#pragma once

#include <attend/parameter.h>

#include <memory>

namespace attend {

struct LinearOptions {
  std::int64_t in = 0, out = 0;
  bool bias = true;
  DType type = DType::f32;
  std::uint64_t seed = 0;
};

// What the owner of given weights says about them.
struct GivenWeights {
  bool unchanged = false;  // nobody writes them by a view of their own, as long as the layer lives
};

// The first forward pass leaves a copy of W in the order in which products read it: passes over few
// rows take less time, and no bit depends on it. There is none while views of
// writable_parameters() live, nor of given weights that are not declared unchanged.
//
//   x [..., in]   W [out, in]   b [out]   y [..., out]
class ATTEND_API Linear {
 public:
  Linear() = default;                             // none
  explicit Linear(const LinearOptions& options);  // W Xavier-uniform from the seed, b = 0
  // [out, in], [out]
  explicit Linear(Tensor weight, Tensor bias = {}, const GivenWeights& given = {});

  explicit operator bool() const noexcept { return static_cast<bool>(weight_); }
  std::int64_t in() const noexcept { return weight_.size(1); }
  std::int64_t out() const noexcept { return weight_.size(0); }
  DType dtype() const noexcept { return weight_.dtype(); }
  const Tensor& weight() const noexcept { return weight_; }
  const Tensor& bias() const noexcept { return bias_; }  // none, if there is none

  Tensor forward(const ConstTensorView& x, const Where& where = default_context()) const;
  void forward_into(const ConstTensorView& x, const TensorView& y,
                    const Where& where = default_context()) const;

  struct Saved {
    Tensor x;
  };
  std::pair<Tensor, Saved> forward_train(const ConstTensorView& x,
                                         const Where& where = default_context()) const;
  LayerGradients backward(const ConstTensorView& dy, const Saved& saved,
                          const Where& where = default_context()) const;
  // The same from x itself, if the caller kept it.
  LayerGradients backward(const ConstTensorView& dy, const Required<ConstTensorView>& x,
                          const Where& where = default_context()) const;

  // A copy in another type, each weight rounded once; of none, none. So of every layer.
  Linear to(DType type) const;

  std::vector<NamedView> parameters() const;  // weight, bias
  std::vector<Parameter> writable_parameters();

  // A copy has memory of its own: views of the source's parameters do not write it. After a move
  // they write the layer that was moved to.
  Linear(const Linear& other);
  Linear& operator=(const Linear& other);
  Linear(Linear&& other) noexcept = default;
  Linear& operator=(Linear&& other) noexcept = default;
  ~Linear() = default;

 private:
  friend class WeightPacking;
  Tensor weight_, bias_;
  std::shared_ptr<class WeightPacking> packing_;
};

}  // namespace attend
