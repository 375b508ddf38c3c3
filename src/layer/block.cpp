// The block around attention. Plain, training, tracing and decoding passes go through the same
// parts in the same order (run); they differ in how they add a part to x and make a norm.
#include <attend/block.h>
#include <attend/option_list.h>

#include "api/tensor_memory.h"
#include "core/reporting.h"
#include "core/text.h"
#include "layer/check.h"
#include "layer/elementwise.h"
#include "layer/initialise.h"
#include "layer/kv_cache.h"
#include "layer/lists.h"
#include "layer/multi_head_attention.h"
#include "layer/option_names.h"
#include "layer/scratch.h"
#include "layer/tensors.h"

#include <iterator>

namespace attend {
namespace {

constexpr const char* kLayer = "attention_block";
constexpr int kAttention = 1, kCross = 2, kFeedForward = 3;  // parts

template <class... Parts>
[[noreturn]] void fail_block(const Parts&... parts) {
  throw InvalidArgument(text("attention_block: ", parts...));
}

void check_memory(const ConstTensorView& memory, Device device) {
  if (memory) check_readable(kLayer, "memory", memory, device);
}

// The output, and what it must not overlap.
void check_y(const ConstTensorView& y, const ConstTensorView& x, const ConstTensorView& memory,
             const AttentionOptions& self, const AttentionOptions& cross) {
  check_output(kLayer, "y", y, x.dtype(), x.shape(), x.device());
  check_apart(kLayer, "y", y, "x", x);
  check_apart(kLayer, "y", y, "memory", memory);
  for (const AttentionOptions* options : {&self, &cross})
    for_each_tensor(*options, [&](const char* name, const ConstTensorView& tensor) {
      check_apart(kLayer, "y", y, name, tensor);
    });
}

// The way back through one part: from dy to dx. `f` gives the gradient at the part's input, `norm`
// at the norm's.
template <class F, class NormBackward>
Tensor back(NormPlacement placement, Tensor dy, const F& f, const NormBackward& norm,
            const Where& where) {
  if (placement == NormPlacement::post) dy = norm(dy);
  add_to(dy, placement == NormPlacement::pre ? norm(f(dy)) : f(dy), where);
  return dy;
}

}  // namespace

AttentionBlock::AttentionBlock(const AttentionBlockOptions& options) : options_(options) {
  reporting("attention_block", [&] {
    check_choice("attention_block", "activation", options.activation, std::size(kActivations));
    check_choice("attention_block", "placement", options.placement, std::size(kPlacements));
    check_choice("attention_block", "norm", options.norm, std::size(kNorms));
    if (options.memory_dim < 0 || (options.memory_dim > 0 && !options.cross))
      fail_block("memory_dim is ", options.memory_dim,
                 "; it must be at least 1 with cross-attention, and 0 without");
    MultiHeadAttentionOptions o = options.attention;
    const std::uint64_t seed = o.seed;
    o.seed = derived_seed(seed, "attention");
    attention_ = MultiHeadAttention(o);
    o = attention_.options();
    if (o.key_dim != o.model_dim || o.value_dim != o.model_dim)
      fail_block("attention.key_dim is ", o.key_dim, " and attention.value_dim ", o.value_dim,
                 "; in a block both are model_dim ", o.model_dim,
                 ", give memory_dim for cross-attention");
    if (!o.output_projection && o.heads * o.d_v != o.model_dim)
      fail_block("without output_projection the heads give ", o.heads * o.d_v,
                 " features; the residual needs model_dim ", o.model_dim);
    options_.attention = o;
    if (options.cross) {
      if (options_.memory_dim == 0) options_.memory_dim = o.model_dim;
      o.key_dim = o.value_dim = options_.memory_dim;
      o.rotary.reset();
      o.seed = derived_seed(seed, "cross");
      cross_ = MultiHeadAttention(o);
    }
    options_.attention.seed = seed;
    if (options.hidden_dim < 0)
      fail_block("hidden_dim is ", options.hidden_dim,
                 "; it must be at least 0 (0: no feed-forward)");
    if (options.hidden_dim > 0)
      feed_forward_ = FeedForward({.model_dim = o.model_dim,
                                   .hidden_dim = options.hidden_dim,
                                   .activation = options.activation,
                                   .bias = o.bias,
                                   .type = o.type,
                                   .seed = derived_seed(seed, "feed_forward")});
    if (options.placement == NormPlacement::none) return;
    const Norm norm({.dim = o.model_dim,
                     .kind = options.norm,
                     .epsilon = options.epsilon,
                     .bias = o.bias,
                     .type = o.type});
    norm_1_ = norm;
    if (cross_) norm_2_ = norm;
    if (feed_forward_) norm_3_ = norm;
  });
}

void AttentionBlock::check_inputs(const ConstTensorView& x, bool given) const {
  check_made("attention_block", static_cast<bool>(attention_));
  check_input("attention_block", "x", x, options_.attention.type, options_.attention.model_dim,
              device());
  if (given && !cross_) fail_block("memory is given, but the block has no cross-attention");
  if (!given && cross_) fail_block("memory is not given; the block has cross-attention");
}

const Norm& AttentionBlock::norm(int part) const noexcept {
  return part == kAttention ? norm_1_ : part == kCross ? norm_2_ : norm_3_;
}

// ---- forward -----------------------------------------------------------------------------------

// y = norm(x + f(x)), x + f(norm(x)) or x + f(x), for each part f. add(part, u, x, to) writes
// x + f(u), norm_into(part, u, to) the norm of u; y is written by the last of these calls alone.
template <class Add, class NormInto>
void AttentionBlock::run(const ConstTensorView& x, const TensorView& y, const Where& where,
                         const Add& add, const NormInto& norm_into) const {
  check_queue(kLayer, device(), where);
  const NormPlacement placement = options_.placement;
  const int parts = 1 + (cross_ ? 1 : 0) + (feed_forward_ ? 1 : 0);
  const auto room = [&](bool needed) {
    return ScratchTensor{needed ? x.shape() : Shape{0}, options_.attention.type};
  };
  const Scratch scratch(
      where, {room(placement != NormPlacement::none), room(parts > 1), room(parts > 2)}, device());
  const auto& [between, first, second] = scratch.tensors;
  ConstTensorView now = x;
  int done = 0;
  for (const int part : {kAttention, kCross, kFeedForward}) {
    if ((part == kCross && !cross_) || (part == kFeedForward && !feed_forward_)) continue;
    const TensorView& to = ++done == parts ? y : done == 1 ? first : second;
    if (placement == NormPlacement::pre) {
      norm_into(part, now, between);
      add(part, between, now, to);
    } else if (placement == NormPlacement::post) {
      add(part, now, now, between);
      norm_into(part, between, to);
    } else {
      add(part, now, now, to);
    }
    now = to;
  }
}

// A pass that keeps nothing. attend(u, to) and cross(u, to) are its two attentions.
template <class Attend, class Cross>
void AttentionBlock::infer(const ConstTensorView& x, const TensorView& y, const Where& where,
                           const Attend& attend, const Cross& cross) const {
  run(
      x, y, where,
      [&](int part, const ConstTensorView& u, const ConstTensorView& residual,
          const TensorView& to) {
        if (part == kAttention) attend(u, AddedTo{to, residual});
        else if (part == kCross) cross(u, AddedTo{to, residual});
        else feed_forward_.run(u, residual, to, nullptr, where);
      },
      [&](int part, const ConstTensorView& u, const TensorView& to) {
        norm(part).forward_into(u, to, where);
      });
}

void AttentionBlock::forward_into(const ConstTensorView& x, const TensorView& y,
                                  const AttentionOptions& self, const Where& where) const {
  forward_into(x, ConstTensorView(), y, self, {}, where);
}

void AttentionBlock::forward_into(const ConstTensorView& x, const Required<ConstTensorView>& memory,
                                  const Required<TensorView>& y, const AttentionOptions& self,
                                  const AttentionOptions& cross, const Where& where) const {
  reporting("attention_block", [&] {
    check_inputs(x, static_cast<bool>(memory));
    check_memory(memory, device());
    check_y(y, x, memory, self, cross);
    check_apart_from_tensors(kLayer, "y", y, *this);
    infer(
        x, y, where,
        [&](const ConstTensorView& u, const AddedTo& to) {
          attention_forward(attention_, {u, u, u, self}, {}, to, where);
        },
        [&](const ConstTensorView& u, const AddedTo& to) {
          attention_forward(cross_, {u, memory, memory, cross}, {}, to, where);
        });
  });
}

Tensor AttentionBlock::forward(const ConstTensorView& x, const AttentionOptions& self,
                               const Where& where) const {
  return forward(x, ConstTensorView(), self, {}, where);
}

Tensor AttentionBlock::forward(const ConstTensorView& x, const Required<ConstTensorView>& memory,
                               const AttentionOptions& self, const AttentionOptions& cross,
                               const Where& where) const {
  return reporting("attention_block", [&] {
    check_inputs(x, static_cast<bool>(memory));
    check_memory(memory, device());
    check_queue(kLayer, device(), where);
    Tensor y = Tensor::uninitialized(x.shape(), x.dtype(), device(), where);
    forward_into(x, memory, y, self, cross, where);
    return y;
  });
}

void AttentionBlock::decode(const ConstTensorView& x, KvCache& cache, const KvCache* memory,
                            const TensorView& y, const AttentionOptions& self,
                            const AttentionOptions& cross, const ConstTensorView& lengths,
                            const Where& where) const {
  reporting("attention_block", [&] {
    check_inputs(x, memory != nullptr);
    check_on_host(kLayer, "a KvCache", device());
    check_y(y, x, {}, self, cross);
    check_apart(kLayer, "y", y, "lengths", lengths);
    check_apart_from_tensors(kLayer, "y", y, *this);
    check_apart_from_tensors(kLayer, "y", y, cache);
    if (memory != nullptr) check_apart_from_tensors(kLayer, "y", y, *memory);
    check_cache_apart(kLayer, cache, "x", x);
    Undo undo(cache, where);  // if a later part fails
    infer(
        x, y, where,
        [&](const ConstTensorView& u, const AddedTo& to) {
          attention_decode(attention_, u, cache, self, lengths, to, where);
        },
        [&](const ConstTensorView& u, const AddedTo& to) {
          attention_over_cache(cross_, u, *memory, cross, to, where);
        });
    undo.keep();
  });
}

void AttentionBlock::forward_into(const ConstTensorView& x, KvCache& cache, const TensorView& y,
                                  const AttentionOptions& self, const ConstTensorView& lengths,
                                  const Where& where) const {
  decode(x, cache, nullptr, y, self, {}, lengths, where);
}

void AttentionBlock::forward_into(const ConstTensorView& x, KvCache& cache, const KvCache& memory,
                                  const TensorView& y, const AttentionOptions& self,
                                  const AttentionOptions& cross, const ConstTensorView& lengths,
                                  const Where& where) const {
  decode(x, cache, &memory, y, self, cross, lengths, where);
}

Tensor AttentionBlock::forward(const ConstTensorView& x, KvCache& cache,
                               const AttentionOptions& self, const ConstTensorView& lengths,
                               const Where& where) const {
  return reporting("attention_block", [&] {
    check_inputs(x, false);
    check_on_host(kLayer, "a KvCache", device());
    Tensor y = Tensor::uninitialized(x.shape(), x.dtype(), device(), where);
    forward_into(x, cache, y, self, lengths, where);
    return y;
  });
}

Tensor AttentionBlock::forward(const ConstTensorView& x, KvCache& cache, const KvCache& memory,
                               const AttentionOptions& self, const AttentionOptions& cross,
                               const ConstTensorView& lengths, const Where& where) const {
  return reporting("attention_block", [&] {
    check_inputs(x, true);
    check_on_host(kLayer, "a KvCache", device());
    Tensor y = Tensor::uninitialized(x.shape(), x.dtype(), device(), where);
    forward_into(x, cache, memory, y, self, cross, lengths, where);
    return y;
  });
}

Trace AttentionBlock::trace(const ConstTensorView& x, const AttentionOptions& self,
                            const Where& where) const {
  return trace(x, ConstTensorView(), self, {}, where);
}

Trace AttentionBlock::trace(const ConstTensorView& x, const Required<ConstTensorView>& memory,
                            const AttentionOptions& self, const AttentionOptions& cross,
                            const Where& where) const {
  return reporting("attention_block", [&] {
    check_inputs(x, static_cast<bool>(memory));
    check_on_host(kLayer, "trace()", device());
    check_memory(memory, device());
    Trace result;
    const char* axes = x.rank() == 3 ? "batch, token, feature" : "token, feature";
    // The steps of an attention, under its name; gives its output.
    const auto take = [&](const char* name, Trace steps) {
      Tensor output = steps.at("output");
      for (TraceStep& step : steps.steps) {
        step.name = text(name, ".", step.name);
        result.steps.push_back(std::move(step));
      }
      return output;
    };
    const auto seen = [&](const char* name, int part, const char* formula,
                          const ConstTensorView& value) {
      result.steps.push_back({text(name, part), formula, axes, copied(value, where)});
    };
    check_queue(kLayer, device(), where);
    Tensor y = Tensor::uninitialized(x.shape(), x.dtype(), device(), where);
    run(
        x, y, where,
        [&](int part, const ConstTensorView& u, const ConstTensorView& residual,
            const TensorView& to) {
          Tensor f;
          if (part == kAttention) {
            f = take("attention", attention_.trace(u, self, where));
          } else if (part == kCross) {
            f = take("cross", cross_.trace(u, memory, memory, cross, where));
          } else {
            f = feed_forward_.forward(u, where);
            result.steps.push_back({"feed_forward", "feed_forward(x)", axes, f});
          }
          add(f, residual, to, where);
          seen("residual_", part, "x + f(x)", to);
        },
        [&](int part, const ConstTensorView& u, const TensorView& to) {
          norm(part).forward_into(u, to, where);
          seen("norm_", part, "norm(x)", to);
        });
    result.steps.push_back({"output", "of the block", axes, std::move(y)});
    return result;
  });
}

// ---- training ----------------------------------------------------------------------------------

std::pair<Tensor, AttentionBlock::Saved> AttentionBlock::forward_train(const ConstTensorView& x,
                                                                       const AttentionOptions& self,
                                                                       const Where& where) const {
  return forward_train(x, ConstTensorView(), self, {}, where);
}

std::pair<Tensor, AttentionBlock::Saved> AttentionBlock::forward_train(
    const ConstTensorView& x, const Required<ConstTensorView>& memory, const AttentionOptions& self,
    const AttentionOptions& cross, const Where& where) const {
  return reporting("attention_block", [&] {
    check_inputs(x, static_cast<bool>(memory));
    check_has_gradients("attention_block", quantized());
    check_memory(memory, device());
    Saved saved;
    check_queue(kLayer, device(), where);
    Tensor y = Tensor::uninitialized(x.shape(), x.dtype(), device(), where);
    run(
        x, y, where,
        [&](int part, const ConstTensorView& u, const ConstTensorView& residual,
            const TensorView& to) {
          if (part == kAttention)
            saved.attention = attention_train(attention_, u, {}, {}, self, {to, residual}, where);
          else if (part == kCross)
            saved.cross = attention_train(cross_, u, memory, memory, cross, {to, residual}, where);
          else feed_forward_.run(u, residual, to, &saved.feed_forward, where);
        },
        [&](int part, const ConstTensorView& u, const TensorView& to) {
          norm(part).forward_into(u, to, where);
          (part == kAttention ? saved.norm_1
           : part == kCross   ? saved.norm_2
                              : saved.norm_3)
              .x = copied(u, where);
        });
    return std::pair{std::move(y), std::move(saved)};
  });
}

AttentionBlock::Gradients AttentionBlock::backward(const ConstTensorView& dy, const Saved& saved,
                                                   const Where& where) const {
  return reporting("attention_block", [&] {
    check_made("attention_block", static_cast<bool>(*this));
    check_has_gradients("attention_block", quantized());
    if (!saved.attention.query) fail_block("saved is not from this block's forward_train");
    check_shape("attention_block", "dy", dy, options_.attention.type, saved.attention.query.shape(),
                device());
    check_queue(kLayer, device(), where);
    const NormPlacement placement = options_.placement;
    Gradients result;
    std::vector<NamedTensor> of_attention, of_cross, of_feed_forward, of_norm[3];
    const auto norm_back = [&](int part, const Norm::Saved& kept) {
      return [&, part](const Tensor& d) {
        LayerGradients g = norm(part).backward(d, kept, where);
        of_norm[part - 1] = std::move(g.parameters);
        return std::move(g.dx);
      };
    };

    Tensor d = copied(dy, where);
    if (feed_forward_)
      d = back(
          placement, std::move(d),
          [&](const Tensor& df) {
            LayerGradients g = feed_forward_.backward(df, saved.feed_forward, where);
            of_feed_forward = std::move(g.parameters);
            return std::move(g.dx);
          },
          norm_back(3, saved.norm_3), where);
    if (cross_)
      d = back(
          placement, std::move(d),
          [&](const Tensor& df) {
            MultiHeadAttention::Gradients g = cross_.backward(df, saved.cross, where);
            of_cross = std::move(g.parameters);
            add_to(g.dkey, g.dvalue, where);
            result.dmemory = std::move(g.dkey);
            result.cross = {std::move(g.dbias), std::move(g.dsinks), std::move(g.dalibi)};
            return std::move(g.dquery);
          },
          norm_back(2, saved.norm_2), where);
    result.dx = back(
        placement, std::move(d),
        [&](const Tensor& df) {
          MultiHeadAttention::Gradients g = attention_.backward(df, saved.attention, where);
          of_attention = std::move(g.parameters);
          result.self = {std::move(g.dbias), std::move(g.dsinks), std::move(g.dalibi)};
          return std::move(g.dx);
        },
        norm_back(1, saved.norm_1), where);

    append(result.parameters, "attention.", std::move(of_attention));
    append(result.parameters, "norm_1.", std::move(of_norm[0]));
    append(result.parameters, "cross.", std::move(of_cross));
    append(result.parameters, "norm_2.", std::move(of_norm[1]));
    append(result.parameters, "feed_forward.", std::move(of_feed_forward));
    append(result.parameters, "norm_3.", std::move(of_norm[2]));
    return result;
  });
}

// ---- weights -----------------------------------------------------------------------------------

template <class List, class Block>
List AttentionBlock::list_of(Block& block) {
  List list;
  const auto add_part = [&](const char* prefix, auto& part) {
    if (part) append(list, prefix, parameters_of(part));
  };
  add_part("attention.", block.attention_);
  add_part("norm_1.", block.norm_1_);
  add_part("cross.", block.cross_);
  add_part("norm_2.", block.norm_2_);
  add_part("feed_forward.", block.feed_forward_);
  add_part("norm_3.", block.norm_3_);
  return list;
}

std::vector<NamedView> AttentionBlock::parameters() const {
  return reporting("attention_block", [&] { return list_of<std::vector<NamedView>>(*this); });
}

std::vector<Parameter> AttentionBlock::writable_parameters() {
  return reporting("attention_block", [&] { return list_of<std::vector<Parameter>>(*this); });
}

}  // namespace attend
