// y = x W^T + b, and its gradients.
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
// parameters() was called by another thread is never used.
const Tensor* Linear::Packed::of(const Tensor& weight) const {
  if (shared_) return nullptr;
  const Tensor* made = made_.load(std::memory_order_acquire);
  if (made != nullptr) return made;
  auto mine = std::make_unique<const Tensor>(packed(weight.view().permute({1, 0})));
  if (made_.compare_exchange_strong(made, mine.get())) made = mine.release();
  return made;
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
                    .packed = linear.packed_.of(linear.weight_)});
  matmul(list, context);
}

Tensor Linear::forward(const ConstTensorView& x, Context& context) const {
  return reporting("linear", [&] {
    check_made("linear", static_cast<bool>(*this));
    check_input("linear", "x", x, dtype(), in());
    Tensor y = Tensor::uninitialized(with_last(x.shape(), out()), dtype());
    forward({{*this, x, y}}, context);
    return y;
  });
}

std::pair<Tensor, Linear::Saved> Linear::forward_train(const ConstTensorView& x,
                                                       Context& context) const {
  Tensor y = forward(x, context);
  return {std::move(y), {Tensor::copy_of(x)}};
}

LayerGradients Linear::backward(const ConstTensorView& dy, const Saved& saved,
                                Context& context) const {
  return backward(dy, saved.x, context);
}

//   dx = dy W      dW = dy^T x      db = dy^T 1
LayerGradients Linear::backward(const ConstTensorView& dy, const ConstTensorView& x,
                                Context& context) const {
  return reporting("linear", [&] {
    check_made("linear", static_cast<bool>(*this));
    check_input("linear", "x", x, dtype(), in());
    check_shape("linear", "dy", dy, dtype(), with_last(x.shape(), out()));
    const Rows dy_rows = rows_of(dy), x_rows = rows_of(x);
    const ConstTensorView dy_columns = dy_rows.view.permute({1, 0});

    LayerGradients gradients{Tensor::uninitialized(x.shape(), dtype()), {}};
    matmul(dy_rows.view, weight_, {}, rows_of(gradients.dx), context);
    Tensor dweight = Tensor::uninitialized(weight_.shape(), dtype());
    matmul(dy_columns, x_rows.view, {}, dweight, context);
    gradients.parameters.push_back({"weight", std::move(dweight)});
    if (bias_) {
      const Tensor one = ones({1, 1}, dtype());
      Tensor dbias = Tensor::uninitialized(bias_.shape(), dtype());
      matmul(one.view().broadcast_to({1, dy_rows.view.size(0)}), dy_rows.view, {},
             TensorView(dbias.view().data(), dtype(), {1, out()}), context);
      gradients.parameters.push_back({"bias", std::move(dbias)});
    }
    return gradients;
  });
}

std::vector<NamedView> Linear::parameters() const {
  return listed<NamedView, const Tensor>("linear", {{"weight", &weight_}, {"bias", &bias_}});
}
std::vector<Parameter> Linear::parameters() {
  packed_.share();
  return listed<Parameter, Tensor>("linear", {{"weight", &weight_}, {"bias", &bias_}});
}

}  // namespace attend
