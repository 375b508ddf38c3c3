// LayerNorm and RMSNorm, and their gradients.
#include "api/tensor_memory.h"
#include "core/text.h"
#include "layer/check.h"
#include "layer/initialise.h"
#include "layer/lists.h"
#include "layer/run_rows.h"
#include "layer/scratch.h"
#include "layer/tensors.h"

#include <attend/norm.h>

#include <algorithm>
#include <cmath>

namespace attend {
namespace {

const char* name_of(const NormOptions& options) {
  return options.kind == NormKind::rms_norm ? "rms_norm" : "layer_norm";
}

ConstRows rows_in(const ReadRows& rows) { return {rows.view.data(), rows.view.strides()[0]}; }

// The sum over blocks of [blocks, 2, dim], in order: part 0 or 1 of it.
Tensor sum_of_blocks(const TensorView& parts, std::int64_t part, DType type, const Where& where) {
  const std::int64_t blocks = parts.size(0), dim = parts.size(2);
  const double* from = static_cast<const double*>(parts.data()) + part * dim;
  Tensor sum = where.context().make_tensor({dim}, type);
  with_type(type, [&]<class T>(T) {
    for (std::int64_t c = 0; c < dim; ++c) {
      double total = 0;
      for (std::int64_t block = 0; block < blocks; ++block) total += from[block * 2 * dim + c];
      static_cast<T*>(sum.view().data())[c] = static_cast<T>(total);
    }
  });
  return sum;
}

}  // namespace

Norm::Norm(const NormOptions& options) : options_(options) {
  reporting("norm", [&] {
    if (options.kind != NormKind::layer_norm && options.kind != NormKind::rms_norm)
      throw InvalidArgument(text("norm: kind is ", static_cast<int>(options.kind),
                                 "; it must be layer_norm or rms_norm"));
    const char* layer = name_of(options);
    check_size(layer, "dim", options.dim);
    check_type(layer, options.type);
    if (!(options.epsilon > 0 && std::isfinite(options.epsilon)))
      throw InvalidArgument(
          text(layer, ": epsilon is ", options.epsilon, "; it must be positive and finite"));
    options_.bias &= options.kind == NormKind::layer_norm;
    weight_ = ones({options.dim}, options.type);
    if (options_.bias) bias_ = Tensor({options.dim}, options.type);
  });
}

void Norm::forward_into(const ConstTensorView& x, const TensorView& y, const Where& where) const {
  const char* layer = name_of(options_);
  reporting(layer, [&] {
    check_made(layer, static_cast<bool>(*this));
    check_input(layer, "x", x, options_.type, options_.dim, device());
    check_output(layer, "y", y, options_.type, x.shape(), device());
    check_apart(layer, "y", y, "x", x);
    check_apart_from_tensors(layer, "y", y, *this);
    check_queue(layer, device(), where);
    const ReadRows rows = rows_of(x, where, true);
    const WrittenRows to(y, where, true);
    run_rows<NormForward>({.device = device(), .type = options_.type, .kind = options_.kind},
                          {.dim = options_.dim,
                           .epsilon = options_.epsilon,
                           .x = rows_in(rows),
                           .weight = weight_.view().data(),
                           .bias = bias_.view().data(),
                           .y = to.view().data(),
                           .y_row = to.view().strides()[0]},
                          rows.view.size(0), options_.dim, where);
    to.finish();
  });
}

Tensor Norm::forward(const ConstTensorView& x, const Where& where) const {
  const char* layer = name_of(options_);
  return reporting(layer, [&] {
    check_made(layer, static_cast<bool>(*this));
    check_input(layer, "x", x, options_.type, options_.dim, device());
    check_queue(layer, device(), where);
    Tensor y = Tensor::uninitialized(x.shape(), options_.type, device(), where);
    forward_into(x, y, where);
    return y;
  });
}

std::pair<Tensor, Norm::Saved> Norm::forward_train(const ConstTensorView& x,
                                                   const Where& where) const {
  Tensor y = forward(x, where);
  return {std::move(y), Saved{copied(x, where)}};
}

LayerGradients Norm::backward(const ConstTensorView& dy, const Saved& saved,
                              const Where& where) const {
  const char* layer = name_of(options_);
  return reporting(layer, [&] {
    check_made(layer, static_cast<bool>(*this));
    check_input(layer, "x", saved.x, options_.type, options_.dim, device());
    check_shape(layer, "dy", dy, options_.type, saved.x.shape(), device());
    check_queue(layer, device(), where);
    LayerGradients gradients{Tensor::uninitialized(saved.x.shape(), options_.type, device(), where),
                             {}};
    const ReadRows x_rows = rows_of(saved.x, where, true), dy_rows = rows_of(dy, where, true);
    const std::int64_t rows = x_rows.view.size(0), dim = options_.dim;
    NormBackwardCall call{.dim = dim,
                          .epsilon = options_.epsilon,
                          .x = rows_in(x_rows),
                          .dy = rows_in(dy_rows),
                          .weight = weight_.view().data(),
                          .dx = gradients.dx.view().data()};
    if (device() != Device{}) {
      for (const auto& [name, parameter] :
           {std::pair("weight", &weight_), std::pair("bias", &bias_)})
        if (*parameter)
          gradients.parameters.push_back(
              {name, Tensor::uninitialized({dim}, options_.type, device(), where)});
      call.dweight = gradients.parameters[0].tensor.view().data();
      if (bias_) call.dbias = gradients.parameters[1].tensor.view().data();
      const NormProblem problem{device(), options_.type, options_.kind};
      const auto& row = ContextState::of(where).row_for<NormBackward>(problem);
      launch(NormBackward::kName, device(), where.queue(),  // sums of no rows, too: zeros
             [&](Queue& queue) { return row.launch(problem, call, rows, queue); });
      return gradients;
    }
    const Scratch scratch(where, {{{block_count(rows), 2, dim}, DType::f64}});
    const TensorView& parts = scratch.tensors[0];  // dweight and dbias of each block
    auto* const sums = static_cast<double*>(parts.data());
    std::fill_n(sums, parts.count(), 0.0);
    call.sums = sums;
    run_rows<NormBackward>({.device = {}, .type = options_.type, .kind = options_.kind}, call, rows,
                           dim, where);
    gradients.parameters.push_back({"weight", sum_of_blocks(parts, 0, options_.type, where)});
    if (bias_)
      gradients.parameters.push_back({"bias", sum_of_blocks(parts, 1, options_.type, where)});
    return gradients;
  });
}

std::vector<NamedView> Norm::parameters() const {
  return listed<NamedView, const Tensor>(name_of(options_),
                                         {{"weight", &weight_}, {"bias", &bias_}});
}
std::vector<Parameter> Norm::writable_parameters() {
  return listed<Parameter, Tensor>(name_of(options_), {{"weight", &weight_}, {"bias", &bias_}});
}

LayerNorm::LayerNorm(const LayerNormOptions& options)
    : Norm({options.dim, NormKind::layer_norm, options.epsilon, options.bias, options.type}) {}

RMSNorm::RMSNorm(const RMSNormOptions& options)
    : Norm({options.dim, NormKind::rms_norm, options.epsilon, false, options.type}) {}

}  // namespace attend
