// y = x W^T + b, and its gradients.
#include "layer/linear.h"

#include "api/tensor_memory.h"
#include "core/text.h"
#include "layer/check.h"
#include "layer/initialise.h"
#include "layer/lists.h"
#include "layer/matmul.h"
#include "layer/packing.h"
#include "layer/rows.h"
#include "layer/tensors.h"

namespace attend {
namespace {

void check_weight(const Tensor& weight) {
  check_readable("linear", "weight", weight, weight.device());
  if (weight.shape().rank() != 2 || weight.count() == 0)
    throw InvalidArgument(
        text("linear: weight is ", weight.shape(), "; it must be [out, in], neither of them 0"));
}

std::shared_ptr<WeightPacking> packing_of(const GivenWeights& given) {
  return given.unchanged ? WeightPacking::of_own_weights() : WeightPacking::of_shared_weights();
}

}  // namespace

Linear::Linear(const LinearOptions& options) {
  reporting("linear", [&] {
    check_size("linear", "in", options.in);
    check_size("linear", "out", options.out);
    check_type("linear", options.type);
    weight_ = xavier_uniform({options.out, options.in}, options.type, options.seed, "weight");
    if (options.bias) bias_ = Tensor({options.out}, options.type);
    type_ = options.type;
    packing_ = WeightPacking::of_own_weights();
  });
}

// The caller may still have views of these.
Linear::Linear(Tensor weight, Tensor bias, const GivenWeights& given)
    : weight_(std::move(weight)), bias_(std::move(bias)) {
  reporting("linear", [&] {
    check_weight(weight_);
    check_type("linear", weight_.dtype());
    type_ = weight_.dtype();
    if (bias_) check_shape("linear", "bias", bias_, type_, {out()}, device());
    packing_ = packing_of(given);
  });
}

Linear::Linear(Tensor weight, Tensor weight_scales, Tensor bias, DType type,
               const GivenWeights& given)
    : weight_(std::move(weight)), weight_scales_(std::move(weight_scales)), bias_(std::move(bias)),
      type_(type) {
  reporting("linear", [&] {
    check_weight(weight_);
    if (weight_.dtype() != DType::i8)
      throw InvalidArgument(
          text("linear: weight is ", weight_.dtype(), "; with weight_scales it must be i8"));
    check_type("linear", type_);
    check_readable("linear", "weight_scales", weight_scales_, device());
    if (weight_scales_.dtype() != DType::f32 || weight_scales_.shape() != Shape{out()})
      throw InvalidArgument(text("linear: weight_scales is ", weight_scales_.dtype(), " ",
                                 weight_scales_.shape(), "; it must be f32 ", Shape{out()}));
    if (bias_) check_shape("linear", "bias", bias_, type_, {out()}, device());
    packing_ = packing_of(given);
  });
}

Linear::Linear(const Linear& other)
    : weight_(other.weight_), weight_scales_(other.weight_scales_), bias_(other.bias_),
      type_(other.type_) {
  reporting("linear", [&] {
    if (other) packing_ = WeightPacking::of_own_weights();
  });
}

Linear& Linear::operator=(const Linear& other) {
  if (this != &other) *this = Linear(other);
  return *this;
}

// ---- forward and backward ----------------------------------------------------------------------

namespace {

// A pass's tensors as matrices, and its weights, for as long as it lasts. On a device the features
// of x lie side by side, whatever its strides: products across are other ones there.
struct PreparedPass {
  PreparedPass(const LinearPass& pass, const Where& where)
      : x(rows_of(pass.x, where, pass.x.device() != Device{})),
        y(pass.y, where, pass.activation || pass.residual),
        packed(WeightPacking::of(pass.linear, where)) {
    if (pass.gate) gate.emplace(rows_of(pass.gate, where, true));
    if (pass.residual) residual.emplace(rows_of(pass.residual, where, true));
  }
  ReadRows x;
  WrittenRows y;
  WeightPacking::Use packed;
  std::optional<ReadRows> gate, residual;
};

}  // namespace

void linear_forward(std::initializer_list<LinearPass> passes, const Where& where) {
  std::vector<PreparedPass> prepared;
  std::vector<Multiplication> list;
  prepared.reserve(passes.size());
  list.reserve(passes.size());
  for (const LinearPass& pass : passes) {
    const PreparedPass& p = prepared.emplace_back(pass, where);
    list.push_back({.a = p.x.view,
                    .b = pass.linear.weight().view().permute({1, 0}),
                    .row_bias = pass.linear.bias(),
                    .c = p.y.view(),
                    .packed = p.packed.weights(),
                    .scales = pass.linear.weight_scales(),
                    .activation = pass.activation,
                    .gate = p.gate ? p.gate->view : ConstTensorView(),
                    .residual = p.residual ? p.residual->view : ConstTensorView()});
  }
  matmul(list, where);
  for (const PreparedPass& p : prepared) p.y.finish();
}

namespace {

// The shape of y; throws where x does not fit.
Shape shape_of_y(const Linear& linear, const ConstTensorView& x) {
  check_made("linear", static_cast<bool>(linear));
  check_input("linear", "x", x, linear.dtype(), linear.in(), linear.device());
  return with_last(x.shape(), linear.out());
}

}  // namespace

void Linear::forward_into(const ConstTensorView& x, const TensorView& y, const Where& where) const {
  reporting("linear", [&] {
    const Shape shape = shape_of_y(*this, x);
    check_output("linear", "y", y, dtype(), shape, device());
    check_apart("linear", "y", y, "x", x);
    check_apart_from_tensors("linear", "y", y, *this);
    check_queue("linear", device(), where);
    linear_forward({{*this, x, y}}, where);
  });
}

Tensor Linear::forward(const ConstTensorView& x, const Where& where) const {
  return reporting("linear", [&] {
    const Shape shape = shape_of_y(*this, x);
    check_queue("linear", device(), where);
    Tensor y = Tensor::uninitialized(shape, dtype(), device(), where);
    linear_forward({{*this, x, y}}, where);
    return y;
  });
}

std::pair<Tensor, Linear::Saved> Linear::forward_train(const ConstTensorView& x,
                                                       const Where& where) const {
  check_has_gradients("linear", quantized());
  Tensor y = forward(x, where);
  return {std::move(y), Saved{copied(x, where)}};
}

LayerGradients Linear::backward(const ConstTensorView& dy, const Saved& saved,
                                const Where& where) const {
  return backward(dy, saved.x, where);
}

LayerGradients Linear::backward(const ConstTensorView& dy, const Required<ConstTensorView>& x,
                                const Where& where) const {
  return reporting("linear", [&] {
    check_made("linear", static_cast<bool>(*this));
    check_has_gradients("linear", quantized());
    check_input("linear", "x", x, dtype(), in(), device());
    check_shape("linear", "dy", dy, dtype(), with_last(x.shape(), out()), device());
    check_queue("linear", device(), where);
    const LinearBackwardPass one[] = {{*this, dy, x}};
    return std::move(linear_backward(one, where).front());
  });
}

//   dx = dy W      dW = dy^T x      db = 1^T dy
std::vector<LayerGradients> linear_backward(std::span<const LinearBackwardPass> passes,
                                            const Where& where) {
  std::vector<ReadRows> rows;  // those that were copied live here
  std::vector<LayerGradients> gradients;
  std::vector<Multiplication> list;
  const Device device = passes[0].linear.device();
  const bool there = device != Device{};
  const Tensor one = there ? Tensor() : ones({1, 1}, passes[0].linear.dtype());
  rows.reserve(2 * passes.size());
  gradients.reserve(passes.size());
  for (const auto& [linear, dy, x] : passes) {
    const DType type = linear.dtype();
    const ConstTensorView dy_rows = rows.emplace_back(rows_of(dy, where, there)).view;
    const ConstTensorView x_rows = rows.emplace_back(rows_of(x, where, there)).view;
    LayerGradients& g = gradients.emplace_back();
    g.dx = Tensor::uninitialized(x.shape(), type, device, where);
    list.push_back({dy_rows, linear.weight(), {}, rows_of(g.dx)});
    g.parameters.push_back(
        {"weight", Tensor::uninitialized(linear.weight().shape(), type, device, where)});
    if (linear.bias())
      g.parameters.push_back(
          {"bias", Tensor::uninitialized(linear.bias().shape(), type, device, where)});
    list.push_back({dy_rows.permute({1, 0}), x_rows, {}, g.parameters[0].tensor});
    if (!linear.bias()) continue;
    const Shape ones_shape{1, dy_rows.size(0)};
    list.push_back(
        {there ? ConstTensorView(nullptr, type, ones_shape, {0, 0}, device)
               : one.view().broadcast_to(ones_shape),
         dy_rows,
         {},
         TensorView(g.parameters[1].tensor.view().data(), type, {1, linear.out()}, device)});
  }
  matmul(list, where);
  return gradients;
}

std::vector<NamedView> Linear::parameters() const {
  return listed<NamedView, const Tensor>(
      "linear", {{"weight", &weight_}, {"weight_scales", &weight_scales_}, {"bias", &bias_}});
}

// Scales and bias are never packed, and need nobody to watch them.
std::vector<Parameter> Linear::writable_parameters() {
  return reporting("linear", [&] {
    std::vector<Parameter> list;
    if (weight_) list.push_back({"weight", {weight_, WeightPacking::writing(packing_)}});
    if (weight_scales_) list.push_back({"weight_scales", weight_scales_});
    if (bias_) list.push_back({"bias", bias_});
    return list;
  });
}

}  // namespace attend
