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

Linear::Linear(Tensor weight, Tensor bias) : weight_(std::move(weight)), bias_(std::move(bias)) {
  reporting("linear", [&] {
    check_readable("linear", "weight", weight_);
    check_type("linear", weight_.dtype());
    if (weight_.shape().rank() != 2 || weight_.count() == 0)
      throw InvalidArgument(
          text("linear: weight is ", weight_.shape(), "; it must be [out, in], neither of them 0"));
    if (bias_) check_shape("linear", "bias", bias_, dtype(), {out()});
  });
}

Tensor Linear::forward(const ConstTensorView& x, Context& context) const {
  return reporting("linear", [&] {
    check_made("linear", static_cast<bool>(*this));
    check_input("linear", "x", x, dtype(), in());
    Tensor y = Tensor::uninitialized(with_last(x.shape(), out()), dtype());
    matmul(rows_of(x).view, weight_.view().permute({1, 0}), bias_, rows_of(y), context);
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
  return listed<Parameter, Tensor>("linear", {{"weight", &weight_}, {"bias", &bias_}});
}

}  // namespace attend
