// The language model: its layers one behind the other, forward and back.
#include <attend/model.h>

#include "core/text.h"
#include "layer/check.h"
#include "layer/initialise.h"
#include "layer/lists.h"
#include "layer/scratch.h"
#include "layer/tensors.h"

#include <utility>

namespace attend {
namespace {

constexpr AttentionOptions kCausal{.causal = true};

std::string block_name(std::size_t n) { return text("blocks.", n, "."); }

void check_batch(const ConstTensorView& tokens) {
  check_readable("language_model", "tokens", tokens);
  if (tokens.rank() != 2)
    throw InvalidArgument(
        text("language_model: tokens is ", tokens.shape(), "; it must be [batch, T]"));
}

Shape shape_of_logits(const LanguageModelOptions& options, const ConstTensorView& tokens) {
  check_batch(tokens);
  return {tokens.size(0), tokens.size(1), options.vocabulary};
}

void check_logits(const LanguageModelOptions& options, const ConstTensorView& tokens,
                  const TensorView& logits) {
  const Shape shape = shape_of_logits(options, tokens);
  check_output("language_model", "logits", logits, options.type, shape);
  check_apart("language_model", "logits", logits, "tokens", tokens);
}

}  // namespace

LanguageModel::LanguageModel(const LanguageModelOptions& options) : options_(options) {
  reporting("language_model", [&] {
    const auto& [vocabulary, length, layers, dim, heads, hidden_dim, activation, placement, norm,
                 type, seed] = options;
    check_size("language_model", "vocabulary", vocabulary);
    check_size("language_model", "length", length);
    check_size("language_model", "layers", layers);
    check_size("language_model", "model_dim", dim);
    tokens_ = Embedding(
        {.vocabulary = vocabulary, .dim = dim, .type = type, .seed = derived_seed(seed, "tokens")});
    positions_ = LearnedPositions(
        {.length = length, .dim = dim, .type = type, .seed = derived_seed(seed, "positions")});
    for (std::int64_t n = 0; n < layers; ++n) {
      AttentionBlockOptions block;
      block.attention.model_dim = dim;
      block.attention.heads = heads;
      block.attention.type = type;
      block.attention.seed = derived_seed(seed, text("blocks.", n));
      block.hidden_dim = hidden_dim;
      block.activation = activation;
      block.placement = placement;
      block.norm = norm;
      blocks_.emplace_back(block);
    }
    if (placement == NormPlacement::pre) norm_ = Norm({.dim = dim, .kind = norm, .type = type});
    head_ = Linear(LinearOptions{
        .in = dim, .out = vocabulary, .type = type, .seed = derived_seed(seed, "head")});
  });
}

LanguageModel::LanguageModel(const LanguageModel& other)
    : options_(other.options_), tokens_(other.tokens_), positions_(other.positions_),
      blocks_(reporting("language_model", [&] { return other.blocks_; })), norm_(other.norm_),
      head_(other.head_) {}

LanguageModel& LanguageModel::operator=(const LanguageModel& other) {
  if (this != &other) *this = LanguageModel(other);
  return *this;
}

// ---- forward -----------------------------------------------------------------------------------

// block(n, x, y) is block n of the pass.
template <class Block>
void LanguageModel::run(const ConstTensorView& tokens, std::int64_t offset,
                        const TensorView& logits, const Where& where, const Block& block) const {
  const ScratchTensor activations{{tokens.size(0), tokens.size(1), options_.model_dim},
                                  options_.type};
  const Scratch scratch(where, {activations, activations});
  TensorView x = scratch.tensors[0], next = scratch.tensors[1];
  tokens_.forward_into(tokens, next, where);
  positions_.forward_into(next, x, offset, where);
  for (std::size_t n = 0; n < blocks_.size(); ++n) {
    block(n, x, next);
    std::swap(x, next);
  }
  if (norm_) {
    norm_.forward_into(x, next, where);
    std::swap(x, next);
  }
  head_.forward_into(x, logits, where);
}

void LanguageModel::forward_into(const ConstTensorView& tokens, const TensorView& logits,
                                 const Where& where) const {
  reporting("language_model", [&] {
    check_logits(options_, tokens, logits);
    check_apart_from_tensors("language_model", "logits", logits, *this);
    run(tokens, 0, logits, where, [&](std::size_t n, const TensorView& x, const TensorView& y) {
      blocks_[n].forward_into(x, y, kCausal, where);
    });
  });
}

Tensor LanguageModel::forward(const ConstTensorView& tokens, const Where& where) const {
  return reporting("language_model", [&] {
    Tensor logits = where.context().make_tensor(shape_of_logits(options_, tokens), options_.type);
    forward_into(tokens, logits, where);
    return logits;
  });
}

Trace LanguageModel::trace(const ConstTensorView& tokens, const Where& where) const {
  return reporting("language_model", [&] {
    check_batch(tokens);
    const char* axes = "batch, token, feature";
    Trace trace;
    const auto add_step = [&](const char* name, const char* formula, Tensor value) {
      trace.steps.push_back({name, formula, axes, std::move(value)});
      return trace.steps.back().value;
    };
    Tensor x = add_step("tokens", "embedding of the tokens", tokens_.forward(tokens, where));
    x = add_step("positions", "tokens + positions", positions_.forward(x, 0, where));
    for (std::size_t n = 0; n < blocks_.size(); ++n) {
      Trace block = blocks_[n].trace(x, kCausal, where);
      x = block.at("output");
      for (TraceStep& step : block.steps) {
        step.name.insert(0, block_name(n));
        trace.steps.push_back(std::move(step));
      }
    }
    if (norm_) x = add_step("norm", "norm(x)", norm_.forward(x, where));
    axes = "batch, token, word";
    add_step("logits", "x W^T + b", head_.forward(x, where));
    return trace;
  });
}

void LanguageModel::forward_into(const ConstTensorView& tokens, std::vector<KvCache>& caches,
                                 const TensorView& logits, const Where& where) const {
  reporting("language_model", [&] {
    check_logits(options_, tokens, logits);
    check_apart_from_tensors("language_model", "logits", logits, *this);
    if (caches.size() != blocks_.size())
      throw InvalidArgument(text("language_model: there are ", caches.size(), " caches for ",
                                 blocks_.size(), " blocks"));
    const std::int64_t batch = tokens.size(0);
    const std::int64_t before = batch > 0 ? caches[0].length(0) : 0;
    for (const KvCache& cache : caches) {
      check_apart_from_tensors("language_model", "logits", logits, cache);
      if (cache.options().batch != batch)
        throw InvalidArgument(
            text("language_model: tokens has batch ", batch, ", a cache ", cache.options().batch));
      for (std::int64_t b = 0; b < batch; ++b)
        if (cache.length(b) != before)
          throw InvalidArgument(text("language_model: the caches hold ", before, " and ",
                                     cache.length(b), " tokens; all must hold as many"));
    }
    try {
      run(tokens, before, logits, where,
          [&](std::size_t n, const TensorView& x, const TensorView& y) {
            blocks_[n].forward_into(x, caches[n], y, kCausal, {}, where);
          });
    } catch (...) {  // all caches or none have the new tokens
      for (KvCache& cache : caches)
        for (std::int64_t b = 0; b < batch; ++b) cache.truncate(b, before);
      throw;
    }
  });
}

Tensor LanguageModel::forward(const ConstTensorView& tokens, std::vector<KvCache>& caches,
                              const Where& where) const {
  return reporting("language_model", [&] {
    Tensor logits = where.context().make_tensor(shape_of_logits(options_, tokens), options_.type);
    forward_into(tokens, caches, logits, where);
    return logits;
  });
}

std::vector<KvCache> LanguageModel::make_caches(std::int64_t batch,
                                                std::optional<DType> type) const {
  return reporting("language_model", [&] {
    std::vector<KvCache> caches;
    for (const AttentionBlock& block : blocks_)
      caches.push_back(block.attention().make_cache(batch, options_.length, 0, 0, type));
    return caches;
  });
}

// ---- training ----------------------------------------------------------------------------------

std::pair<Tensor, LanguageModel::Saved> LanguageModel::forward_train(const ConstTensorView& tokens,
                                                                     const Where& where) const {
  return reporting("language_model", [&] {
    check_has_gradients("language_model", quantized());
    check_batch(tokens);
    Saved saved;
    Tensor x;
    std::tie(x, saved.tokens) = tokens_.forward_train(tokens, where);
    std::tie(x, saved.positions) = positions_.forward_train(x, 0, where);
    for (const AttentionBlock& block : blocks_)
      std::tie(x, saved.blocks.emplace_back()) = block.forward_train(x, kCausal, where);
    if (norm_) std::tie(x, saved.norm) = norm_.forward_train(x, where);
    std::tie(x, saved.head) = head_.forward_train(x, where);
    return std::pair{std::move(x), std::move(saved)};
  });
}

std::vector<NamedTensor> LanguageModel::backward(const ConstTensorView& dlogits, const Saved& saved,
                                                 const Where& where) const {
  return reporting("language_model", [&] {
    check_has_gradients("language_model", quantized());
    if (saved.blocks.size() != blocks_.size())
      throw InvalidArgument(text("language_model: saved is of ", saved.blocks.size(),
                                 " blocks, the model has ", blocks_.size()));
    LayerGradients head = head_.backward(dlogits, saved.head, where);
    LayerGradients norm{std::move(head.dx), {}};
    if (norm_) norm = norm_.backward(norm.dx, saved.norm, where);
    Tensor dx = std::move(norm.dx);
    std::vector<AttentionBlock::Gradients> blocks(blocks_.size());
    for (std::size_t n = blocks_.size(); n-- > 0;) {
      blocks[n] = blocks_[n].backward(dx, saved.blocks[n], where);
      dx = std::move(blocks[n].dx);
    }
    LayerGradients positions = positions_.backward(dx, saved.positions, where);
    LayerGradients tokens = tokens_.backward(positions.dx, saved.tokens, where);

    std::vector<NamedTensor> list;  // in the order of parameters()
    append(list, "tokens.", std::move(tokens.parameters));
    append(list, "positions.", std::move(positions.parameters));
    for (std::size_t n = 0; n < blocks.size(); ++n)
      append(list, block_name(n), std::move(blocks[n].parameters));
    append(list, "norm.", std::move(norm.parameters));
    append(list, "head.", std::move(head.parameters));
    return list;
  });
}

// ---- parameters --------------------------------------------------------------------------------

template <class List, class Model>
List LanguageModel::list_of(Model& model) {
  return reporting("language_model", [&] {
    List list;
    append(list, "tokens.", parameters_of(model.tokens_));
    append(list, "positions.", parameters_of(model.positions_));
    for (std::size_t n = 0; n < model.blocks_.size(); ++n)
      append(list, block_name(n), parameters_of(model.blocks_[n]));
    append(list, "norm.", parameters_of(model.norm_));
    append(list, "head.", parameters_of(model.head_));
    return list;
  });
}

std::vector<NamedView> LanguageModel::parameters() const {
  return list_of<std::vector<NamedView>>(*this);
}
std::vector<Parameter> LanguageModel::writable_parameters() {
  return list_of<std::vector<Parameter>>(*this);
}

}  // namespace attend
