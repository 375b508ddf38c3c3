// Layers in another type: copies whose weights are rounded once; with weights of 8 bits; and in
// memory of a device.
#include "layer/check.h"
#include "layer/numbers.h"
#include "layer/quantise.h"

#include <attend/model.h>

namespace attend {

Linear Linear::to(DType type) const {
  return reporting("linear", [&] {
    check_type("linear", type);
    check_on_host("linear", "to() another type", device());
    if (!*this) return Linear();
    if (quantized())
      return Linear(weight_, weight_scales_, in_type(bias_, type), type, {.unchanged = true});
    return Linear(in_type(weight_, type), in_type(bias_, type), {.unchanged = true});
  });
}

Linear Linear::quantize() const {
  return reporting("linear", [&] {
    check_on_host("linear", "quantize()", device());
    if (!*this || quantized()) return *this;
    Tensor numbers = Tensor::uninitialized(weight_.shape(), DType::i8);
    Tensor scales = Tensor::uninitialized({out()}, DType::f32);
    with_type(weight_.dtype(), [&]<class E>(E) {
      const E* const from = static_cast<const E*>(weight_.view().data());
      for (std::int64_t row = 0; row < out(); ++row)
        scales.data<float>()[row] =
            quantise_row(from + row * in(), 1, in(), numbers.data<std::int8_t>() + row * in());
    });
    return Linear(std::move(numbers), std::move(scales), bias_, type_, {.unchanged = true});
  });
}

Norm Norm::to(DType type) const {
  return reporting("norm", [&] {
    check_type("norm", type);
    check_on_host("norm", "to() another type", device());
    Norm other;
    other.options_ = options_;
    other.options_.type = type;
    other.weight_ = in_type(weight_, type);
    other.bias_ = in_type(bias_, type);
    return other;
  });
}

Embedding Embedding::to(DType type) const {
  return reporting("embedding", [&] {
    check_type("embedding", type);
    Embedding other;
    other.weight_ = in_type(weight_, type);
    return other;
  });
}

LearnedPositions LearnedPositions::to(DType type) const {
  return reporting("learned_positions", [&] {
    check_type("learned_positions", type);
    LearnedPositions other;
    other.weight_ = in_type(weight_, type);
    return other;
  });
}

FeedForward FeedForward::to(DType type) const {
  return reporting("feed_forward", [&] {
    check_type("feed_forward", type);
    check_on_host("feed_forward", "to() another type", device());
    FeedForward other;
    other.options_ = options_;
    other.options_.type = type;
    other.up_ = up_.to(type);
    other.gate_ = gate_.to(type);
    other.down_ = down_.to(type);
    return other;
  });
}

FeedForward FeedForward::quantize() const {
  return reporting("feed_forward", [&] {
    check_on_host("feed_forward", "quantize()", device());
    FeedForward other;
    other.options_ = options_;
    other.up_ = up_.quantize();
    other.gate_ = gate_.quantize();
    other.down_ = down_.quantize();
    return other;
  });
}

MultiHeadAttention MultiHeadAttention::to(DType type) const {
  return reporting("multi_head_attention", [&] {
    check_type("multi_head_attention", type);
    check_on_host("multi_head_attention", "to() another type", device());
    MultiHeadAttention other;
    other.options_ = options_;
    other.options_.type = type;
    other.q_ = q_.to(type);
    other.k_ = k_.to(type);
    other.v_ = v_.to(type);
    other.o_ = o_.to(type);
    return other;
  });
}

MultiHeadAttention MultiHeadAttention::quantize() const {
  return reporting("multi_head_attention", [&] {
    check_on_host("multi_head_attention", "quantize()", device());
    MultiHeadAttention other;
    other.options_ = options_;
    other.q_ = q_.quantize();
    other.k_ = k_.quantize();
    other.v_ = v_.quantize();
    other.o_ = o_.quantize();
    return other;
  });
}

AttentionBlock AttentionBlock::to(DType type) const {
  return reporting("attention_block", [&] {
    check_type("attention_block", type);
    check_on_host("attention_block", "to() another type", device());
    AttentionBlock other;
    other.options_ = options_;
    other.options_.attention.type = type;
    other.attention_ = attention_.to(type);
    other.cross_ = cross_.to(type);
    other.feed_forward_ = feed_forward_.to(type);
    other.norm_1_ = norm_1_.to(type);
    other.norm_2_ = norm_2_.to(type);
    other.norm_3_ = norm_3_.to(type);
    return other;
  });
}

AttentionBlock AttentionBlock::quantize() const {
  return reporting("attention_block", [&] {
    check_on_host("attention_block", "quantize()", device());
    AttentionBlock other;
    other.options_ = options_;
    other.attention_ = attention_.quantize();
    other.cross_ = cross_.quantize();
    other.feed_forward_ = feed_forward_.quantize();
    other.norm_1_ = norm_1_;
    other.norm_2_ = norm_2_;
    other.norm_3_ = norm_3_;
    return other;
  });
}

LanguageModel LanguageModel::quantize() const {
  return reporting("language_model", [&] {
    LanguageModel other(*this);
    for (AttentionBlock& block : other.blocks_) block = block.quantize();
    other.head_ = head_.quantize();
    return other;
  });
}

LanguageModel LanguageModel::to(DType type) const {
  return reporting("language_model", [&] {
    check_type("language_model", type);
    LanguageModel other(*this);
    other.options_.type = type;
    other.tokens_ = tokens_.to(type);
    other.positions_ = positions_.to(type);
    for (AttentionBlock& block : other.blocks_) block = block.to(type);
    other.norm_ = norm_.to(type);
    other.head_ = head_.to(type);
    return other;
  });
}

// ---- Devices -----------------------------------------------------------------------------------

Linear Linear::to(Device device, const Where& where) const {
  return reporting("linear", [&] {
    if (!*this) return Linear();
    const auto there = [&](const Tensor& tensor) {
      return tensor ? Tensor::copy_of(tensor, device, where) : Tensor();
    };
    Tensor weight = there(weight_), bias = there(bias_);
    if (quantized())
      return Linear(std::move(weight), there(weight_scales_), std::move(bias), type_,
                    {.unchanged = true});
    return Linear(std::move(weight), std::move(bias), {.unchanged = true});
  });
}

Norm Norm::to(Device device, const Where& where) const {
  return reporting("norm", [&] {
    Norm other;
    other.options_ = options_;
    if (weight_) other.weight_ = Tensor::copy_of(weight_, device, where);
    if (bias_) other.bias_ = Tensor::copy_of(bias_, device, where);
    return other;
  });
}

FeedForward FeedForward::to(Device device, const Where& where) const {
  return reporting("feed_forward", [&] {
    FeedForward other;
    other.options_ = options_;
    other.up_ = up_.to(device, where);
    other.gate_ = gate_.to(device, where);
    other.down_ = down_.to(device, where);
    return other;
  });
}

MultiHeadAttention MultiHeadAttention::to(Device device, const Where& where) const {
  return reporting("multi_head_attention", [&] {
    MultiHeadAttention other;
    other.options_ = options_;
    other.q_ = q_.to(device, where);
    other.k_ = k_.to(device, where);
    other.v_ = v_.to(device, where);
    other.o_ = o_.to(device, where);
    return other;
  });
}

AttentionBlock AttentionBlock::to(Device device, const Where& where) const {
  return reporting("attention_block", [&] {
    AttentionBlock other;
    other.options_ = options_;
    other.attention_ = attention_.to(device, where);
    other.cross_ = cross_.to(device, where);
    other.feed_forward_ = feed_forward_.to(device, where);
    other.norm_1_ = norm_1_.to(device, where);
    other.norm_2_ = norm_2_.to(device, where);
    other.norm_3_ = norm_3_.to(device, where);
    return other;
  });
}

}  // namespace attend
