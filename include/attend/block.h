// Attention with residual, norm and a feed-forward network: the encoder and decoder layers of
// transformers. Up to three parts f (self-attention, cross-attention, feed-forward), each wrapped:
//
//   post-norm   y = norm(x + f(x))          pre-norm   y = x + f(norm(x))
#pragma once

#include <attend/feed_forward.h>
#include <attend/multi_head_attention.h>
#include <attend/norm.h>

namespace attend {

enum class NormPlacement : std::uint8_t { post, pre, none };  // none: y = x + f(x)

struct AttentionBlockOptions {
  MultiHeadAttentionOptions attention{};
  bool cross = false;           // a second attention, over a memory (decoder)
  std::int64_t memory_dim = 0;  // width of the memory; 0: model_dim
  std::int64_t hidden_dim = 0;  // of the feed-forward network; 0: there is none
  Activation activation = Activation::gelu;
  NormPlacement placement = NormPlacement::post;
  NormKind norm = NormKind::layer_norm;
  double epsilon = 1e-5;
};

// Parts and their names: attention, norm_1; cross, norm_2 (with `cross`); feed_forward, norm_3.
class ATTEND_API AttentionBlock {
 public:
  AttentionBlock() = default;  // none
  explicit AttentionBlock(const AttentionBlockOptions& options);

  explicit operator bool() const noexcept { return static_cast<bool>(attention_); }
  const AttentionBlockOptions& options() const noexcept { return options_; }
  Device device() const noexcept { return attention_.device(); }
  const MultiHeadAttention& attention() const noexcept { return attention_; }
  const MultiHeadAttention& cross() const noexcept { return cross_; }

  //   x, y [batch, T, model_dim]   memory [batch, Tm, memory_dim]
  Tensor forward(const ConstTensorView& x, const AttentionOptions& self = {},
                 const Where& where = default_context()) const;
  Tensor forward(const ConstTensorView& x, const Required<ConstTensorView>& memory,
                 const AttentionOptions& self = {}, const AttentionOptions& cross = {},
                 const Where& where = default_context()) const;

  // Into memory of the caller, of any strides, that overlaps none of the inputs.
  void forward_into(const ConstTensorView& x, const TensorView& y,
                    const AttentionOptions& self = {},
                    const Where& where = default_context()) const;
  void forward_into(const ConstTensorView& x, const Required<ConstTensorView>& memory,
                    const Required<TensorView>& y, const AttentionOptions& self = {},
                    const AttentionOptions& cross = {},
                    const Where& where = default_context()) const;

  // The steps of each part with its name as a prefix, "attention.weights", and the sums and norms,
  // "residual_1", "norm_1", ... "output".
  Trace trace(const ConstTensorView& x, const AttentionOptions& self = {},
              const Where& where = default_context()) const;
  Trace trace(const ConstTensorView& x, const Required<ConstTensorView>& memory,
              const AttentionOptions& self = {}, const AttentionOptions& cross = {},
              const Where& where = default_context()) const;

  struct Saved {
    MultiHeadAttention::Saved attention, cross;
    FeedForward::Saved feed_forward;
    Norm::Saved norm_1, norm_2, norm_3;
  };
  struct OptionGradients {
    Tensor dbias, dsinks, dalibi;
  };
  struct Gradients {
    Tensor dx, dmemory;
    OptionGradients self, cross;  // of each attention; none for options not given
    std::vector<NamedTensor> parameters;
  };
  std::pair<Tensor, Saved> forward_train(const ConstTensorView& x,
                                         const AttentionOptions& self = {},
                                         const Where& where = default_context()) const;
  std::pair<Tensor, Saved> forward_train(const ConstTensorView& x,
                                         const Required<ConstTensorView>& memory,
                                         const AttentionOptions& self = {},
                                         const AttentionOptions& cross = {},
                                         const Where& where = default_context()) const;
  Gradients backward(const ConstTensorView& dy, const Saved& saved,
                     const Where& where = default_context()) const;

  // Token by token: `cache` is made by attention().make_cache(). A decoder takes a cache of its
  // memory too: cross().make_cache(), filled once by cross().append(memory, memory, ...).
  Tensor forward(const ConstTensorView& x, KvCache& cache, const AttentionOptions& self = {},
                 const ConstTensorView& lengths = {}, const Where& where = default_context()) const;
  Tensor forward(const ConstTensorView& x, KvCache& cache, const KvCache& memory,
                 const AttentionOptions& self = {}, const AttentionOptions& cross = {},
                 const ConstTensorView& lengths = {}, const Where& where = default_context()) const;
  void forward_into(const ConstTensorView& x, KvCache& cache, const TensorView& y,
                    const AttentionOptions& self = {}, const ConstTensorView& lengths = {},
                    const Where& where = default_context()) const;
  void forward_into(const ConstTensorView& x, KvCache& cache, const KvCache& memory,
                    const TensorView& y, const AttentionOptions& self = {},
                    const AttentionOptions& cross = {}, const ConstTensorView& lengths = {},
                    const Where& where = default_context()) const;

  AttentionBlock to(DType type) const;                         // a copy in another type
  AttentionBlock to(Device device, const Where& where) const;  // in memory of a device: linear.h
  AttentionBlock quantize() const;  // a copy with weights of 8 bits, for inference
  bool quantized() const noexcept {
    return attention_.quantized() || cross_.quantized() || feed_forward_.quantized();
  }

  std::vector<NamedView> parameters() const;
  std::vector<Parameter> writable_parameters();

  // The file's metadata holds the options.
  void save(const std::filesystem::path& path) const;
  static AttentionBlock load(const std::filesystem::path& path);

 private:
  friend struct LayerTensors;
  void check_inputs(const ConstTensorView& x, bool memory_given) const;
  const Norm& norm(int part) const noexcept;
  template <class Add, class NormInto>
  void run(const ConstTensorView& x, const TensorView& y, const Where& where, const Add& add,
           const NormInto& norm_into) const;
  template <class Attend, class Cross>
  void infer(const ConstTensorView& x, const TensorView& y, const Where& where,
             const Attend& attend, const Cross& cross) const;
  void decode(const ConstTensorView& x, KvCache& cache, const KvCache* memory, const TensorView& y,
              const AttentionOptions& self, const AttentionOptions& cross,
              const ConstTensorView& lengths, const Where& where) const;
  template <class List, class Block>
  static List list_of(Block& block);

  AttentionBlockOptions options_;
  MultiHeadAttention attention_, cross_;
  FeedForward feed_forward_;
  Norm norm_1_, norm_2_, norm_3_;
};

}  // namespace attend
