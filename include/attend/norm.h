// Normalisation of the last dimension.
//
//   LayerNorm  y = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias
//   RMSNorm    y = x / sqrt(mean(x^2) + epsilon) * weight
//
// The variance is the mean of squares around the mean (divided by dim, not dim - 1).
#pragma once

#include <attend/parameter.h>

namespace attend {

enum class NormKind : std::uint8_t { layer_norm, rms_norm };

struct NormOptions {
  std::int64_t dim = 0;
  NormKind kind = NormKind::layer_norm;
  double epsilon = 1e-5;
  bool bias = true;  // of LayerNorm only
  DType type = DType::f32;
};

//   x, y [..., dim]   weight, bias [dim]
class ATTEND_API Norm {
 public:
  Norm() = default;                           // none
  explicit Norm(const NormOptions& options);  // weight = 1, bias = 0

  explicit operator bool() const noexcept { return static_cast<bool>(weight_); }
  const NormOptions& options() const noexcept { return options_; }
  Device device() const noexcept { return weight_.device(); }

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

  Norm to(DType type) const;                         // a copy in another type
  Norm to(Device device, const Where& where) const;  // in memory of a device: linear.h

  std::vector<NamedView> parameters() const;  // weight, bias
  std::vector<Parameter> writable_parameters();

 private:
  friend struct LayerTensors;

  NormOptions options_;
  Tensor weight_, bias_;
};

struct LayerNormOptions {
  std::int64_t dim = 0;
  double epsilon = 1e-5;
  bool bias = true;
  DType type = DType::f32;
};

struct ATTEND_API LayerNorm : Norm {
  explicit LayerNorm(const LayerNormOptions& options);
};

struct RMSNormOptions {
  std::int64_t dim = 0;
  double epsilon = 1e-6;
  DType type = DType::f32;
};

struct ATTEND_API RMSNorm : Norm {
  explicit RMSNorm(const RMSNormOptions& options);
};

}  // namespace attend
