// Layers in another type: copies whose weights are rounded once.
#include "layer/check.h"
#include "layer/numbers.h"

#include <attend/model.h>

namespace attend {

Linear Linear::to(DType type) const {
  return reporting("linear", [&] {
    check_type("linear", type);
    if (!*this) return Linear();
    return Linear(in_type(weight_, type), in_type(bias_, type), {.unchanged = true});
  });
}

Norm Norm::to(DType type) const {
  return reporting("norm", [&] {
    check_type("norm", type);
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
    FeedForward other;
    other.options_ = options_;
    other.options_.type = type;
    other.up_ = up_.to(type);
    other.gate_ = gate_.to(type);
    other.down_ = down_.to(type);
    return other;
  });
}

MultiHeadAttention MultiHeadAttention::to(DType type) const {
  return reporting("multi_head_attention", [&] {
    check_type("multi_head_attention", type);
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

AttentionBlock AttentionBlock::to(DType type) const {
  return reporting("attention_block", [&] {
    check_type("attention_block", type);
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

}  // namespace attend
