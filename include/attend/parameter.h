// What all layers have in common.
//
//   y = layer.forward(x)                 the result
//   (y, saved) = layer.forward_train(x)  the result, and what backward needs, which you keep
//   layer.backward(dy, saved)            gradients at the inputs and at the parameters
//
// Layers are const: any number of threads may use one at the same time, and nothing is recorded in
// them. parameters() shows the weights and changes nothing; writable_parameters() gives views for
// an optimizer, a loader or yourself. Both have the same order; gradients come in that order, with
// the same names. A weight matrix is [out, in], as in PyTorch: y = x W^T + b.
#pragma once

#include <attend/context.h>
#include <attend/io.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace attend {

// A view for writing a parameter. While one of a layer's weights lives, or a copy or a part of it,
// the layer reads them where they lie; when the last is gone, it may keep them packed again
// (linear.h). So write as long as it lives, not by a TensorView that outlives it. The weights are
// the layer's: its end ends them, but not this, which may be destroyed at any time, by any thread.
class ATTEND_API ParameterView : public TensorView {
 public:
  ParameterView() = default;
  ParameterView(const TensorView& view) : TensorView(view) {}  // NOLINT: memory of no layer
  ParameterView(Tensor& tensor ATTEND_LIFETIMEBOUND) noexcept : TensorView(tensor) {}  // NOLINT

  ParameterView permute(const Shape& order) const { return {TensorView::permute(order), writing_}; }
  ParameterView slice(int dim, std::int64_t begin, std::int64_t end, std::int64_t step = 1) const {
    return {TensorView::slice(dim, begin, end, step), writing_};
  }

 private:
  friend class Linear;
  ParameterView(const TensorView& view, std::shared_ptr<const void> writing) noexcept
      : TensorView(view), writing_(std::move(writing)) {}

  std::shared_ptr<const void> writing_;  // the layer knows by it
};

struct Parameter {
  std::string name;
  ParameterView value;
};

// The gradients of a layer with one input.
struct LayerGradients {
  Tensor dx;
  std::vector<NamedTensor> parameters;
};

// The list with a prefix before each name: "attention." + "q.weight".
ATTEND_API std::vector<Parameter> with_prefix(std::string_view prefix, std::vector<Parameter> list);
ATTEND_API std::vector<NamedView> with_prefix(std::string_view prefix, std::vector<NamedView> list);
ATTEND_API std::vector<NamedTensor> with_prefix(std::string_view prefix,
                                                std::vector<NamedTensor> list);

// Number of elements of all parameters.
ATTEND_API std::int64_t parameter_count(const std::vector<NamedView>& list);

// Copies the tensors `prefix + name` of a file into the parameters. Every parameter must be there
// with its shape; floating-point types are converted. Nothing is changed if anything is wrong: the
// error lists names that are missing and the ones that are there, or both shapes. Tensors of the
// file that begin with the prefix and belong to no parameter are refused unless `allow_others`.
ATTEND_API void load_parameters(const TensorFile& file, const std::vector<Parameter>& parameters,
                                std::string_view prefix = {}, bool allow_others = false);

}  // namespace attend
