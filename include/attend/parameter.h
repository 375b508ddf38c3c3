// What all layers have in common.
//
//   y = layer.forward(x)                 the result
//   (y, saved) = layer.forward_train(x)  the result, and what backward needs, which you keep
//   layer.backward(dy, saved)            gradients at the inputs and at the parameters
//
// Layers are const: any number of threads may use one at the same time, and nothing is recorded in
// them. parameters() gives access to the weights, for reading (const) or for an optimizer, always
// in the same order; gradients come in that order, with the same names. A weight matrix is
// [out, in], as in PyTorch: y = x W^T + b.
#pragma once

#include <attend/context.h>
#include <attend/io.h>

#include <string>
#include <utility>
#include <vector>

namespace attend {

struct Parameter {
  std::string name;
  TensorView value;
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
