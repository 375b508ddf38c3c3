// A small language model: token embedding, learned positions, causal blocks, a last norm (with
// pre-norm blocks) and a linear map to one logit per token of the vocabulary. Enough to train
// something real; not a model zoo.
#pragma once

#include <attend/block.h>
#include <attend/embedding.h>

namespace attend {

struct LanguageModelOptions {
  std::int64_t vocabulary = 0;
  std::int64_t length = 0;  // the most tokens of a sequence (learned positions)
  std::int64_t layers = 2;
  std::int64_t model_dim = 64;
  std::int64_t heads = 4;
  std::int64_t hidden_dim = 0;  // of the feed-forward networks; 0: attention only
  Activation activation = Activation::gelu;
  NormPlacement placement = NormPlacement::pre;
  NormKind norm = NormKind::layer_norm;
  DType type = DType::f32;
  std::uint64_t seed = 0;
};

//   tokens [batch, T] (i64 or i32)   logits [batch, T, vocabulary]
class ATTEND_API LanguageModel {
 public:
  explicit LanguageModel(const LanguageModelOptions& options);
  LanguageModel(const LanguageModel& other);
  LanguageModel& operator=(const LanguageModel& other);
  LanguageModel(LanguageModel&&) = default;
  LanguageModel& operator=(LanguageModel&&) = default;

  const LanguageModelOptions& options() const noexcept { return options_; }
  const std::vector<AttentionBlock>& blocks() const noexcept { return blocks_; }

  Tensor forward(const ConstTensorView& tokens, const Where& where = default_context()) const;
  void forward_into(const ConstTensorView& tokens, const TensorView& logits,
                    const Where& where = default_context()) const;
  // Every step of every block: "blocks.1.attention.weights".
  Trace trace(const ConstTensorView& tokens, const Where& where = default_context()) const;

  struct Saved {
    Embedding::Saved tokens;
    LearnedPositions::Saved positions;
    std::vector<AttentionBlock::Saved> blocks;
    Norm::Saved norm;
    Linear::Saved head;
  };
  std::pair<Tensor, Saved> forward_train(const ConstTensorView& tokens,
                                         const Where& where = default_context()) const;
  std::vector<NamedTensor> backward(const ConstTensorView& dlogits, const Saved& saved,
                                    const Where& where = default_context()) const;

  // Token by token: one cache per block, of the model's type or of i8.
  std::vector<KvCache> make_caches(std::int64_t batch = 1, std::optional<DType> type = {}) const;
  Tensor forward(const ConstTensorView& tokens, std::vector<KvCache>& caches,
                 const Where& where = default_context()) const;
  void forward_into(const ConstTensorView& tokens, std::vector<KvCache>& caches,
                    const TensorView& logits, const Where& where = default_context()) const;
  // `count` tokens after the prompt [T]. Temperature 0 takes the likeliest token; otherwise tokens
  // are sampled, from the seed. When the sequence is full, its older half is dropped.
  std::vector<std::int64_t> generate(const std::vector<std::int64_t>& prompt, std::int64_t count,
                                     double temperature = 0, std::uint64_t seed = 0,
                                     const Where& where = default_context()) const;
  // The same with caches of a type of their own: i8.
  std::vector<std::int64_t> generate(const std::vector<std::int64_t>& prompt, std::int64_t count,
                                     double temperature, std::uint64_t seed, DType cache_type,
                                     const Where& where = default_context()) const;

  LanguageModel to(DType type) const;  // a copy in another type
  LanguageModel quantize() const;      // a copy with weights of 8 bits, for inference
  bool quantized() const noexcept { return head_.quantized(); }

  std::vector<NamedView> parameters() const;
  std::vector<Parameter> writable_parameters();

  // Files: the parameters under their names, the options in the metadata. A checkpoint that was
  // saved with metadata() tells options_of() which model to make before loading.
  void save(const std::filesystem::path& path, const Metadata& more = {}) const;
  static LanguageModel load(const std::filesystem::path& path);
  static LanguageModel load(const TensorFile& file);
  Metadata metadata() const;
  static LanguageModelOptions options_of(const TensorFile& file);

 private:
  friend struct LayerTensors;
  template <class Block>
  void run(const ConstTensorView& tokens, std::int64_t offset, const TensorView& logits,
           const Where& where, const Block& block) const;
  template <class List, class Model>
  static List list_of(Model& model);

  LanguageModelOptions options_;
  Embedding tokens_;
  LearnedPositions positions_;
  std::vector<AttentionBlock> blocks_;
  Norm norm_;  // none, unless placement is pre
  Linear head_;
};

}  // namespace attend
