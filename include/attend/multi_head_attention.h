// Multi-head attention with its projections.
//
//   Q = query W^Q + b   K = key W^K + b   V = value W^V + b     split into heads
//   head_h = attention(Q_h, K_h, V_h)                           every option of options.h
//   output = concat(head_0, ..., head_{H-1}) W^O + b            = sum over h of head_h W^O_h + b
#pragma once

#include <attend/inspect.h>
#include <attend/kv_cache.h>
#include <attend/linear.h>
#include <attend/trace.h>

#include <optional>

namespace attend {

// Rotary positions (RoPE): pair c of the features of q and k is rotated by the angle position *
// base^(-2c / dim). Query i is at position i + query_offset, key j at j.
struct Rotary {
  enum class Pairing : std::uint8_t {
    halves,      // features c and c + dim / 2 (Llama, GPT-NeoX)
    neighbours,  // features 2c and 2c + 1 (RoFormer, GPT-J)
  };
  Pairing pairing = Pairing::halves;
  double base = 10000;
  std::int64_t dim = 0;  // features 0 to dim - 1 are rotated; even; 0: all d_k
};

struct MultiHeadAttentionOptions {
  std::int64_t model_dim = 0;  // width of the query input and of the output
  std::int64_t heads = 1;
  std::int64_t key_heads = 0;     // 0: as heads; fewer: GQA, or MQA with 1
  std::int64_t d_k = 0, d_v = 0;  // 0: model_dim / heads; d_v 0: as d_k, if that is given
  std::int64_t key_dim = 0;       // width of the key input; 0: model_dim
  std::int64_t value_dim = 0;     // width of the value input; 0: key_dim
  bool bias = true;               // of the four projections
  bool output_projection = true;  // false: the output is the concatenation
  std::optional<Rotary> rotary{};
  DType type = DType::f32;
  std::uint64_t seed = 0;
};

// How the tensors of a file are named and laid out. All names begin with `prefix`.
struct WeightsFormat {
  std::string prefix{};            // "encoder.layers.0.self_attn."
  std::int64_t heads = 0;          // 0: from the file's metadata
  std::int64_t key_heads = 0;      // 0: from the metadata, else from the shapes if d_k is known
  std::optional<Rotary> rotary{};  // not given: from the metadata
  bool output_projection = true;   // false: the file has no W^O; the metadata may say so too
  enum class Orientation : std::uint8_t {
    automatic,  // by the names: [out, in], but GPT-2's c_attn, c_proj are [in, out]
    out_in,     // y = x W^T (PyTorch's nn.Linear)
    in_out,     // y = x W (the mathematical notation, Conv1D)
  } orientation = Orientation::automatic;
};

//   query [batch, Tq, model_dim]   key [batch, Tk, key_dim]   value [batch, Tk, value_dim]
//   W^Q [H d_k, model_dim]     W^K [Hk d_k, key_dim]     W^V [Hk d_v, value_dim]
//   W^O [model_dim, H d_v]     output [batch, Tq, model_dim]
// A single sequence may have no batch dimension; then the output has none either. Masks and biases
// in the options are [batch, heads, Tq, Tk]; paged keys are for a KvCache.
class ATTEND_API MultiHeadAttention {
 public:
  MultiHeadAttention() = default;                                         // none
  explicit MultiHeadAttention(const MultiHeadAttentionOptions& options);  // Xavier-uniform, b = 0
  MultiHeadAttention(const MultiHeadAttentionOptions& options, Linear q, Linear k, Linear v,
                     Linear o);

  explicit operator bool() const noexcept { return static_cast<bool>(q_); }
  // With every size filled in.
  const MultiHeadAttentionOptions& options() const noexcept { return options_; }
  Device device() const noexcept { return q_.device(); }

  // ---- one call ------------------------------------------------------------------------------
  Tensor forward(const ConstTensorView& x, const AttentionOptions& options = {},
                 const AttentionOutputs& outputs = {},
                 const Where& where = default_context()) const;
  Tensor forward(const ConstTensorView& query, const Required<ConstTensorView>& key,
                 const Required<ConstTensorView>& value, const AttentionOptions& options = {},
                 const AttentionOutputs& outputs = {},
                 const Where& where = default_context()) const;
  // The same without other outputs.
  Tensor forward(const ConstTensorView& x, const AttentionOptions& options,
                 const Where& where) const {
    return forward(x, options, {}, where);
  }
  Tensor forward(const ConstTensorView& query, const Required<ConstTensorView>& key,
                 const Required<ConstTensorView>& value, const AttentionOptions& options,
                 const Where& where) const {
    return forward(query, key, value, options, {}, where);
  }

  // The same into memory of the caller: y has the output's shape, any strides, and overlaps
  // nothing.
  void forward_into(const ConstTensorView& x, const TensorView& y,
                    const AttentionOptions& options = {}, const AttentionOutputs& outputs = {},
                    const Where& where = default_context()) const;
  void forward_into(const ConstTensorView& query, const Required<ConstTensorView>& key,
                    const Required<ConstTensorView>& value, const Required<TensorView>& y,
                    const AttentionOptions& options = {}, const AttentionOutputs& outputs = {},
                    const Where& where = default_context()) const;
  void forward_into(const ConstTensorView& x, const TensorView& y, const AttentionOptions& options,
                    const Where& where) const {
    forward_into(x, y, options, {}, where);
  }
  void forward_into(const ConstTensorView& query, const Required<ConstTensorView>& key,
                    const Required<ConstTensorView>& value, const Required<TensorView>& y,
                    const AttentionOptions& options, const Where& where) const {
    forward_into(query, key, value, y, options, {}, where);
  }

  Trace trace(const ConstTensorView& x, const AttentionOptions& options = {},
              const Where& where = default_context()) const;
  Trace trace(const ConstTensorView& query, const Required<ConstTensorView>& key,
              const Required<ConstTensorView>& value, const AttentionOptions& options = {},
              const Where& where = default_context()) const;

  // ---- inspection ----------------------------------------------------------------------------
  // What attention() gets inside this layer: q, k, v [batch, heads, length, d], k and v with key
  // heads. And for each head of each sequence, [batch * heads], the norm of head_h W^O_h, its part
  // of the output, as a mean over the tokens (of head_h, without an output projection).
  struct Heads {
    Tensor q, k, v;
    std::vector<double> contribution;
  };
  Heads heads(const ConstTensorView& x, const AttentionOptions& options = {},
              const Where& where = default_context()) const;
  Heads heads(const ConstTensorView& query, const Required<ConstTensorView>& key,
              const Required<ConstTensorView>& value, const AttentionOptions& options = {},
              const Where& where = default_context()) const;

  // inspect() of those heads, with their contributions.
  Statistics inspect(const ConstTensorView& x, const AttentionOptions& options = {},
                     const InspectOptions& inspect_options = {},
                     const Where& where = default_context()) const;
  Statistics inspect(const ConstTensorView& query, const Required<ConstTensorView>& key,
                     const Required<ConstTensorView>& value, const AttentionOptions& options = {},
                     const InspectOptions& inspect_options = {},
                     const Where& where = default_context()) const;

  // ---- training ------------------------------------------------------------------------------
  // The options, with copies of their tensors.
  struct ATTEND_API SavedOptions {
    SavedOptions() = default;
    explicit SavedOptions(const AttentionOptions& options, const Where& where = default_context());
    AttentionOptions view() const { return options_; }

   private:
    AttentionOptions options_{};
  };
  struct Saved {
    Tensor query, key, value;  // inputs; key and value are none in self-attention
    Tensor q, k, v;            // projections [batch, length, heads * d], rotated with RoPE
    Tensor concat, lse;        // [batch, Tq, heads * d_v], [batch, heads, Tq]
    SavedOptions options;
  };
  struct Gradients {
    Tensor dx;                     // in self-attention
    Tensor dquery, dkey, dvalue;   // otherwise
    Tensor dbias, dsinks, dalibi;  // of those options, if given
    std::vector<NamedTensor> parameters;
  };
  std::pair<Tensor, Saved> forward_train(const ConstTensorView& x,
                                         const AttentionOptions& options = {},
                                         const Where& where = default_context()) const;
  std::pair<Tensor, Saved> forward_train(const ConstTensorView& query,
                                         const Required<ConstTensorView>& key,
                                         const Required<ConstTensorView>& value,
                                         const AttentionOptions& options = {},
                                         const Where& where = default_context()) const;
  Gradients backward(const ConstTensorView& dy, const Saved& saved,
                     const Where& where = default_context()) const;

  // ---- token by token ------------------------------------------------------------------------
  // An empty cache for this layer, of the layer's type or of i8.
  KvCache make_cache(std::int64_t batch, std::int64_t capacity, std::int64_t page_size = 0,
                     std::int64_t pages = 0, std::optional<DType> type = {}) const;
  // Self-attention of new tokens x [batch, n, model_dim] over the cached tokens and themselves:
  // append(x, x, cache), then attend(x, cache) with the first new token right after the cached
  // ones. With {.causal = true}, the prompt at once, in parts or token by token gives the same
  // bits; without, the tokens of one call see each other. With `lengths` ([batch]), only the first
  // lengths[b] rows of x are tokens; the outputs of the other rows are undefined.
  Tensor forward(const ConstTensorView& x, KvCache& cache, const AttentionOptions& options = {},
                 const ConstTensorView& lengths = {}, const Where& where = default_context()) const;
  void forward_into(const ConstTensorView& x, KvCache& cache, const TensorView& y,
                    const AttentionOptions& options = {}, const ConstTensorView& lengths = {},
                    const Where& where = default_context()) const;
  // The two steps of it, for cross-attention over a memory that does not change.
  void append(const ConstTensorView& key, const ConstTensorView& value, KvCache& cache,
              const ConstTensorView& lengths = {}, const Where& where = default_context()) const;
  Tensor attend(const ConstTensorView& query, const KvCache& cache,
                const AttentionOptions& options = {}, const Where& where = default_context()) const;
  void attend_into(const ConstTensorView& query, const KvCache& cache, const TensorView& y,
                   const AttentionOptions& options = {},
                   const Where& where = default_context()) const;

  // ---- weights -------------------------------------------------------------------------------
  const Linear& q() const noexcept { return q_; }
  const Linear& k() const noexcept { return k_; }
  const Linear& v() const noexcept { return v_; }
  const Linear& o() const noexcept { return o_; }  // none without output_projection

  MultiHeadAttention to(DType type) const;  // a copy in another type
  // In memory of a device (linear.h): forward and training; the rest is the host's.
  MultiHeadAttention to(Device device, const Where& where) const;
  MultiHeadAttention quantize() const;  // a copy with weights of 8 bits, for inference
  bool quantized() const noexcept {
    return q_.quantized() || k_.quantized() || v_.quantized() || o_.quantized();
  }

  // q.weight, q.bias, k.weight, ... o.bias
  std::vector<NamedView> parameters() const;
  std::vector<Parameter> writable_parameters();

  // The same weights as one set of matrices per head: q [d_k, model_dim], k [d_k, key_dim],
  // v [d_v, value_dim], o [model_dim, d_v]. Query heads of a group have copies of one k and v.
  // Not of weights of 8 bits.
  struct HeadWeights {
    Tensor q, k, v, o;
    Tensor q_bias, k_bias, v_bias;
  };
  std::vector<HeadWeights> split() const;
  // Reverse. k and v of heads that share a key head must be equal. `o_bias` [model_dim] or none.
  static MultiHeadAttention join(const MultiHeadAttentionOptions& options,
                                 const std::vector<HeadWeights>& heads, const Tensor& o_bias = {});

  // Files. save writes parameters() with the options in the metadata; `per_head` writes
  // head.0.q.weight and so on instead of q.weight. load takes both, and: in_proj_weight with
  // out_proj.weight, or q_proj_weight, k_proj_weight, v_proj_weight (nn.MultiheadAttention);
  // q_proj k_proj v_proj with o_proj or out_proj; wq wk wv wo; W_Q W_K W_V W_O;
  // query_linear key_linear value_linear out_linear; self.query self.key self.value with
  // output.dense; c_attn with c_proj.
  void save(const std::filesystem::path& path, bool per_head = false) const;
  static MultiHeadAttention load(const std::filesystem::path& path,
                                 const WeightsFormat& format = {});
  static MultiHeadAttention load(const TensorFile& file, const WeightsFormat& format = {});

 private:
  Tensor contributions(const Tensor& concat, const Where& where) const;
  template <class List, class Layer>
  static List list_of(Layer& layer);

  MultiHeadAttentionOptions options_;
  Linear q_, k_, v_, o_;
};

}  // namespace attend
