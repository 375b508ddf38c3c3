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
// The weights may be whole numbers of 8 bits (i8) with one f32 scale for each row, made of that row
// alone: y = (x weight^T) * weight_scales + b. Such a layer is for inference: it has no gradients.
//
//   x [..., in]   W [out, in]   b [out]   y [..., out]
class ATTEND_API Linear {
 public:
  Linear() = default;                             // none
  explicit Linear(const LinearOptions& options);  // W Xavier-uniform from the seed, b = 0
  // [out, in], [out]
  explicit Linear(Tensor weight, Tensor bias = {}, const GivenWeights& given = {});

  // Weights of 8 bits: i8 [out, in], f32 [out], and none or [out] of `type`, that of x and y.
  explicit Linear(Tensor weight, Tensor weight_scales, Tensor bias, DType type,
                  const GivenWeights& given = {});

  explicit operator bool() const noexcept { return static_cast<bool>(weight_); }
  std::int64_t in() const noexcept { return weight_.size(1); }
  std::int64_t out() const noexcept { return weight_.size(0); }
  DType dtype() const noexcept { return type_; }  // of x, y and b; and of W, unless it is quantized
  bool quantized() const noexcept { return static_cast<bool>(weight_scales_); }
  Device device() const noexcept { return weight_.device(); }  // of the weights, and so of x and y
  const Tensor& weight() const noexcept { return weight_; }
  const Tensor& weight_scales() const noexcept { return weight_scales_; }  // none, unless quantized
  const Tensor& bias() const noexcept { return bias_; }                    // none, if there is none

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
  // Weights of 8 bits stay as they are.
  Linear to(DType type) const;
  // A copy in memory of a device, or of the host again; it waits for the queue. So of every layer
  // that has it. Calls of a layer on a device take tensors there, and a queue.
  Linear to(Device device, const Where& where) const;
  // A copy with weights of 8 bits, for inference; of one that has them, the same. Every weight is
  // at most half its row's scale from what it was, scale = max |w| / 127 (or 2^-126 if that is
  // more). A row with NaN or an infinity is all NaN. So of every layer with linear maps: biases,
  // norms and embeddings stay what they are.
  Linear quantize() const;

  std::vector<NamedView> parameters() const;  // weight, weight_scales if quantized, bias
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
  Tensor weight_, weight_scales_, bias_;
  DType type_ = DType::f32;
  std::shared_ptr<class WeightPacking> packing_;
};

}  // namespace attend
