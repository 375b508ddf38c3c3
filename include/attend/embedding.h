// Token embedding, and learned or sinusoidal positions.
#pragma once

#include <attend/parameter.h>

namespace attend {

struct EmbeddingOptions {
  std::int64_t vocabulary = 0, dim = 0;
  DType type = DType::f32;
  std::uint64_t seed = 0;
  double deviation = 1;  // standard deviation of the initial weights
};

//   tokens [...] (i64 or i32, from 0 to vocabulary - 1)   weight [vocabulary, dim]   y [..., dim]
class ATTEND_API Embedding {
 public:
  Embedding() = default;  // none
  explicit Embedding(const EmbeddingOptions& options);

  explicit operator bool() const noexcept { return static_cast<bool>(weight_); }
  const Tensor& weight() const noexcept { return weight_; }

  Tensor forward(const ConstTensorView& tokens, const Where& where = default_context()) const;
  void forward_into(const ConstTensorView& tokens, const TensorView& y,
                    const Where& where = default_context()) const;

  struct Saved {
    Tensor tokens;
  };
  std::pair<Tensor, Saved> forward_train(const ConstTensorView& tokens,
                                         const Where& where = default_context()) const;
  // Tokens are integers and have no gradient: dx is none.
  LayerGradients backward(const ConstTensorView& dy, const Saved& saved,
                          const Where& where = default_context()) const;

  Embedding to(DType type) const;  // a copy in another type

  std::vector<NamedView> parameters() const;  // weight
  std::vector<Parameter> writable_parameters();

 private:
  Tensor weight_;
};

struct LearnedPositionsOptions {
  std::int64_t length = 0, dim = 0;  // positions 0 ... length - 1
  DType type = DType::f32;
  std::uint64_t seed = 0;
  double deviation = 1;
};

//   y[..., i, :] = x[..., i, :] + weight[i + offset, :]     x, y [..., length, dim]
class ATTEND_API LearnedPositions {
 public:
  LearnedPositions() = default;  // none
  explicit LearnedPositions(const LearnedPositionsOptions& options);

  explicit operator bool() const noexcept { return static_cast<bool>(weight_); }
  const Tensor& weight() const noexcept { return weight_; }

  Tensor forward(const ConstTensorView& x, std::int64_t offset = 0,
                 const Where& where = default_context()) const;
  void forward_into(const ConstTensorView& x, const TensorView& y, std::int64_t offset = 0,
                    const Where& where = default_context()) const;

  struct Saved {
    std::int64_t offset = 0;
  };
  std::pair<Tensor, Saved> forward_train(const ConstTensorView& x, std::int64_t offset = 0,
                                         const Where& where = default_context()) const;
  LayerGradients backward(const ConstTensorView& dy, const Saved& saved,
                          const Where& where = default_context()) const;

  LearnedPositions to(DType type) const;  // a copy in another type

  std::vector<NamedView> parameters() const;  // weight
  std::vector<Parameter> writable_parameters();

 private:
  Tensor weight_;
};

struct SinusoidalPositionsOptions {
  std::int64_t dim = 0;  // even
  double base = 10000;
};

//   y[..., i, 2c]     = x[..., i, 2c]     + sin((i + offset) / base^(2c / dim))
//   y[..., i, 2c + 1] = x[..., i, 2c + 1] + cos((i + offset) / base^(2c / dim))
// It has no parameters: the gradient passes through unchanged.
class ATTEND_API SinusoidalPositions {
 public:
  explicit SinusoidalPositions(const SinusoidalPositionsOptions& options);
  Tensor forward(const ConstTensorView& x, std::int64_t offset = 0,
                 const Where& where = default_context()) const;
  void forward_into(const ConstTensorView& x, const TensorView& y, std::int64_t offset = 0,
                    const Where& where = default_context()) const;

  struct Saved {
    Shape shape;
  };
  std::pair<Tensor, Saved> forward_train(const ConstTensorView& x, std::int64_t offset = 0,
                                         const Where& where = default_context()) const;
  LayerGradients backward(const ConstTensorView& dy, const Saved& saved,
                          const Where& where = default_context()) const;

  std::vector<NamedView> parameters() const { return {}; }
  std::vector<Parameter> writable_parameters() { return {}; }

 private:
  SinusoidalPositionsOptions options_;
};

}  // namespace attend
