// y = x W^T + b, and its gradients.
#include "api/context.h"
#include "api/tensor_memory.h"
#include "core/text.h"
#include "layer/check.h"
#include "layer/initialise.h"
#include "layer/lists.h"
#include "layer/matmul.h"
#include "layer/rows.h"

#include <attend/linear.h>

namespace attend {

Linear::Linear(const LinearOptions& options) {
  reporting("linear", [&] {
    check_size("linear", "in", options.in);
    check_size("linear", "out", options.out);
    check_type("linear", options.type);
    weight_ = xavier_uniform({options.out, options.in}, options.type, options.seed, "weight");
    if (options.bias) bias_ = Tensor({options.out}, options.type);
  });
}

// The caller may still have views of these.
Linear::Linear(Tensor weight, Tensor bias)
    : weight_(std::move(weight)), bias_(std::move(bias)), packed_(true) {
  reporting("linear", [&] {
    check_readable("linear", "weight", weight_);
    check_type("linear", weight_.dtype());
    if (weight_.shape().rank() != 2 || weight_.count() == 0)
      throw InvalidArgument(
          text("linear: weight is ", weight_.shape(), "; it must be [out, in], neither of them 0"));
    if (bias_) check_shape("linear", "bias", bias_, dtype(), {out()});
  });
}

// ---- packed weights ----------------------------------------------------------------------------

Linear::Packed::Packed(Packed&& other) noexcept
    : made_(other.made_.exchange(nullptr)), shared_(other.shared_.load()) {}

Linear::Packed& Linear::Packed::operator=(Packed other) noexcept {
  delete made_.exchange(other.made_.exchange(nullptr));
  shared_ = other.shared_.load();
  return *this;
}

Linear::Packed::~Packed() { delete made_.load(); }

// Where several threads come first at the same time, each packs and one wins. What was made while
// parameters() was called by another thread is never used; nor is what another row packed than the
// Context's. A forced row packs as it goes: its order is of no use to other Contexts.
const PackedWeights* Linear::Packed::of(const Linear& linear, const Context& context) const {
  if (shared_) return nullptr;
  const Context::State& state = context.state();
  const Kernel<Product>& row = state.row_for<Product>(
      {.device = {}, .type = linear.dtype(), .bias = static_cast<bool>(linear.bias_)});
  const PackedWeights* made = made_.load(std::memory_order_acquire);
  if (made == nullptr && state.forced_kernel(Product::kName).empty()) {
    auto mine =
        std::make_unique<const PackedWeights>(packed(linear.weight_.view().permute({1, 0}), row));
    if (made_.compare_exchange_strong(made, mine.get())) made = mine.release();
  }
  return made != nullptr && made->row == &row ? made : nullptr;
}

// ---- forward and backward ----------------------------------------------------------------------

void Linear::forward(std::initializer_list<Pass> passes, Context& context) {
  std::vector<Rows> rows;
  std::vector<Multiplication> list;
  rows.reserve(passes.size());
  list.reserve(passes.size());
  for (const auto& [linear, x, y] : passes)
    list.push_back({.a = rows.emplace_back(rows_of(x)).view,
                    .b = linear.weight_.view().permute({1, 0}),
                    .row_bias = linear.bias_,
                    .c = rows_of(y),
                    .packed = linear.packed_.of(linear, context)});
  matmul(list, context);
}

Tensor Linear::forward(const ConstTensorView& x, Context& context) const {
  return reporting("linear", [&] {
    check_made("linear", static_cast<bool>(*this));
    check_input("linear", "x", x, dtype(), in());
    Tensor y = context.make_tensor(with_last(x.shape(), out()), dtype());
    forward({{*this, x, y}}, context);
    return y;
  });
}

std::pair<Tensor, Linear::Saved> Linear::forward_train(const ConstTensorView& x,
                                                       Context& context) const {
  Tensor y = forward(x, context);
  return {std::move(y), Saved{copied(x, context)}};
}

LayerGradients Linear::backward(const ConstTensorView& dy, const Saved& saved,
                                Context& context) const {
  return backward(dy, saved.x, context);
}

LayerGradients Linear::backward(const ConstTensorView& dy, const ConstTensorView& x,
                                Context& context) const {
  return reporting("linear", [&] {
    check_made("linear", static_cast<bool>(*this));
    check_input("linear", "x", x, dtype(), in());
    check_shape("linear", "dy", dy, dtype(), with_last(x.shape(), out()));
    const BackwardPass one[] = {{*this, dy, x}};
    return std::move(backward(one, context).front());
  });
}

//   dx = dy W      dW = dy^T x      db = 1^T dy
std::vector<LayerGradients> Linear::backward(std::span<const BackwardPass> passes,
                                             Context& context) {
  std::vector<Rows> rows;  // those that were copied live here
  std::vector<LayerGradients> gradients;
  std::vector<Multiplication> list;
  const Tensor one = ones({1, 1}, passes[0].linear.dtype());
  rows.reserve(2 * passes.size());
  gradients.reserve(passes.size());
  for (const auto& [linear, dy, x] : passes) {
    const DType type = linear.dtype();
    const ConstTensorView dy_rows = rows.emplace_back(rows_of(dy)).view;
    const ConstTensorView x_rows = rows.emplace_back(rows_of(x)).view;
    LayerGradients& g = gradients.emplace_back();
    g.dx = context.make_tensor(x.shape(), type);
    list.push_back({dy_rows, linear.weight_, {}, rows_of(g.dx)});
    g.parameters.push_back({"weight", context.make_tensor(linear.weight_.shape(), type)});
    if (linear.bias_)
      g.parameters.push_back({"bias", context.make_tensor(linear.bias_.shape(), type)});
    list.push_back({dy_rows.permute({1, 0}), x_rows, {}, g.parameters[0].tensor});
    if (!linear.bias_) continue;
    list.push_back({one.view().broadcast_to({1, dy_rows.size(0)}),
                    dy_rows,
                    {},
                    TensorView(g.parameters[1].tensor.view().data(), type, {1, linear.out()})});
  }
  matmul(list, context);
  return gradients;
}

std::vector<NamedView> Linear::parameters() const {
  return listed<NamedView, const Tensor>("linear", {{"weight", &weight_}, {"bias", &bias_}});
}
std::vector<Parameter> Linear::parameters() {
  packed_.share();
  return listed<Parameter, Tensor>("linear", {{"weight", &weight_}, {"bias", &bias_}});
}

}  // namespace attend
