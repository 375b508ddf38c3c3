// Two linear maps with an activation between them, or three with a gate.
#include "api/tensor_memory.h"
#include "core/text.h"
#include "layer/check.h"
#include "layer/elementwise.h"
#include "layer/initialise.h"
#include "layer/linear.h"
#include "layer/lists.h"
#include "layer/run_rows.h"
#include "layer/scratch.h"
#include "layer/tensors.h"

#include <attend/feed_forward.h>

#include <limits>

namespace attend {
namespace {

constexpr const char* kFeedForwardName = "feed_forward";

// hidden = act(up), or silu(gate) * up where there is a gate; all contiguous.
void activate(Activation kind, const Tensor& up, const Tensor& gate, const TensorView& hidden,
              const Where& where) {
  const TensorView rows = rows_of(hidden);
  run_rows<ActivationForward>({.device = hidden.device(), .type = up.dtype(), .kind = kind},
                              {.features = rows.size(1),
                               .up = up.view().data(),
                               .gate = gate.view().data(),
                               .hidden = rows.data()},
                              rows.size(0), rows.size(1), where);
}

// From the gradient at the hidden values to those at up and at the gate, if there is one.
void activation_backward(Activation kind, const Tensor& up, const Tensor& gate,
                         const Tensor& dhidden, Tensor& dup, Tensor& dgate, const Where& where) {
  const TensorView rows = rows_of(dup);
  run_rows<ActivationBackward>({.device = dup.device(), .type = up.dtype(), .kind = kind},
                               {.features = rows.size(1),
                                .up = up.view().data(),
                                .gate = gate.view().data(),
                                .dhidden = dhidden.view().data(),
                                .dup = rows.data(),
                                .dgate = dgate.view().data()},
                               rows.size(0), rows.size(1), where);
}

}  // namespace

FeedForward::FeedForward(const FeedForwardOptions& options) : options_(options) {
  reporting("feed_forward", [&] {
    check_size(kFeedForwardName, "model_dim", options.model_dim);
    if (options.hidden_dim < 0)
      throw InvalidArgument(text("feed_forward: hidden_dim is ", options.hidden_dim,
                                 "; it must be at least 1, or 0 for 4 * model_dim"));
    if (options.activation > Activation::swiglu)
      throw InvalidArgument(text("feed_forward: activation is ",
                                 static_cast<int>(options.activation),
                                 "; it must be relu, gelu, gelu_tanh or swiglu"));
    check_type(kFeedForwardName, options.type);
    constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
    if (options.hidden_dim == 0)
      options_.hidden_dim = options.model_dim > kMost / 4 ? kMost : 4 * options.model_dim;
    const auto map = [&](const char* name, std::int64_t in, std::int64_t out) {
      return Linear({in, out, options.bias, options.type, derived_seed(options.seed, name)});
    };
    up_ = map("up", options.model_dim, options_.hidden_dim);
    if (options.activation == Activation::swiglu)
      gate_ = map("gate", options.model_dim, options_.hidden_dim);
    down_ = map("down", options_.hidden_dim, options.model_dim);
  });
}

// Where nothing is saved, the activation is the end of the product with W_up.
void FeedForward::run(const ConstTensorView& x, const ConstTensorView& residual,
                      const TensorView& y, Saved* saved, const Where& where) const {
  const Shape shape = with_last(x.shape(), options_.hidden_dim);
  const Scratch scratch(
      where,
      {{shape, options_.type}, {gate_ && saved == nullptr ? shape : Shape{0}, options_.type}},
      device());
  const auto& [hidden, gate] = scratch.tensors;
  if (saved != nullptr) {
    *saved = {copied(x, where), up_.forward(x, where), gate_ ? gate_.forward(x, where) : Tensor()};
    activate(options_.activation, saved->up, saved->gate, hidden, where);
  } else {
    if (gate_) linear_forward({{gate_, x, gate}}, where);
    linear_forward({{.linear = up_,
                     .x = x,
                     .y = hidden,
                     .activation = options_.activation,
                     .gate = gate_ ? ConstTensorView(gate) : ConstTensorView()}},
                   where);
  }
  linear_forward({{.linear = down_, .x = hidden, .y = y, .residual = residual}}, where);
}

void FeedForward::forward_into(const ConstTensorView& x, const TensorView& y,
                               const Where& where) const {
  reporting(kFeedForwardName, [&] {
    check_made(kFeedForwardName, static_cast<bool>(*this));
    check_input(kFeedForwardName, "x", x, options_.type, options_.model_dim, device());
    check_output(kFeedForwardName, "y", y, options_.type, x.shape(), device());
    check_apart(kFeedForwardName, "y", y, "x", x);
    check_apart_from_tensors(kFeedForwardName, "y", y, *this);
    check_queue(kFeedForwardName, device(), where);
    run(x, {}, y, nullptr, where);
  });
}

Tensor FeedForward::forward(const ConstTensorView& x, const Where& where) const {
  return reporting(kFeedForwardName, [&] {
    check_made(kFeedForwardName, static_cast<bool>(*this));
    check_input(kFeedForwardName, "x", x, options_.type, options_.model_dim, device());
    check_queue(kFeedForwardName, device(), where);
    Tensor y = Tensor::uninitialized(x.shape(), options_.type, device(), where);
    run(x, {}, y, nullptr, where);
    return y;
  });
}

std::pair<Tensor, FeedForward::Saved> FeedForward::forward_train(const ConstTensorView& x,
                                                                 const Where& where) const {
  return reporting(kFeedForwardName, [&] {
    check_made(kFeedForwardName, static_cast<bool>(*this));
    check_has_gradients(kFeedForwardName, quantized());
    check_input(kFeedForwardName, "x", x, options_.type, options_.model_dim, device());
    check_queue(kFeedForwardName, device(), where);
    std::pair<Tensor, Saved> result{
        Tensor::uninitialized(x.shape(), options_.type, device(), where), {}};
    run(x, {}, result.first, &result.second, where);
    return result;
  });
}

// The hidden values are made again: that costs less than the memory to keep them.
LayerGradients FeedForward::backward(const ConstTensorView& dy, const Saved& saved,
                                     const Where& where) const {
  return reporting(kFeedForwardName, [&] {
    check_made(kFeedForwardName, static_cast<bool>(*this));
    check_has_gradients(kFeedForwardName, quantized());
    check_input(kFeedForwardName, "x", saved.x, options_.type, options_.model_dim, device());
    check_shape(kFeedForwardName, "dy", dy, options_.type, saved.x.shape(), device());
    const Shape hidden_shape = with_last(saved.x.shape(), options_.hidden_dim);
    check_shape(kFeedForwardName, "up", saved.up, options_.type, hidden_shape, device());
    if (gate_)
      check_shape(kFeedForwardName, "gate", saved.gate, options_.type, hidden_shape, device());
    check_queue(kFeedForwardName, device(), where);
    const Tensor none;
    const Tensor& gate = gate_ ? saved.gate : none;

    const Scratch scratch(where, {{hidden_shape, options_.type}}, device());
    const auto& [hidden] = scratch.tensors;
    activate(options_.activation, saved.up, gate, hidden, where);
    LayerGradients down = down_.backward(dy, hidden, where);
    const auto make = [&] {
      return Tensor::uninitialized(hidden_shape, options_.type, device(), where);
    };
    Tensor dup = make(), dgate = gate_ ? make() : Tensor();
    activation_backward(options_.activation, saved.up, gate, down.dx, dup, dgate, where);

    LayerGradients up = up_.backward(dup, saved.x.view(), where), gradients;
    gradients.dx = std::move(up.dx);
    append(gradients.parameters, "up.", std::move(up.parameters));
    if (gate_) {
      LayerGradients part = gate_.backward(dgate, saved.x.view(), where);
      add_to(gradients.dx, part.dx, where);
      append(gradients.parameters, "gate.", std::move(part.parameters));
    }
    append(gradients.parameters, "down.", std::move(down.parameters));
    return gradients;
  });
}

std::vector<NamedView> FeedForward::parameters() const {
  return reporting(kFeedForwardName, [&] {
    std::vector<NamedView> list;
    append(list, "up.", up_.parameters());
    append(list, "gate.", gate_.parameters());
    append(list, "down.", down_.parameters());
    return list;
  });
}

std::vector<Parameter> FeedForward::writable_parameters() {
  return reporting(kFeedForwardName, [&] {
    std::vector<Parameter> list;
    append(list, "up.", up_.writable_parameters());
    append(list, "gate.", gate_.writable_parameters());
    append(list, "down.", down_.writable_parameters());
    return list;
  });
}

}  // namespace attend
