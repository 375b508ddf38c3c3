// Lists of named tensors that must agree with each other: gradients with parameters, what a file
// holds with what is needed.
#pragma once

#include <attend/parameter.h>

#include <string>
#include <string_view>
#include <vector>

namespace attend {

// What a tensor of a list must be.
struct Form {
  std::string name;
  DType type = DType::f32;
  Shape shape;
};

std::vector<Form> forms_of(const std::vector<NamedTensor>& list);

// What is computed by the host takes no tensors of a device: "<where><what>'name' is on cuda:0".
void check_in_host_memory(std::string_view where, std::string_view what, std::string_view name,
                          Device device);

// Puts the tensors into the order of the forms. What is missing, left over, on a device, or of
// another type or shape is refused: "<where>there is no tensor ...".
std::vector<NamedTensor> in_order(std::string_view where, const std::vector<Form>& forms,
                                  std::vector<NamedTensor> tensors);

// Gradients must have the names and shapes of what they belong to, in that order, and be of a
// floating-point type. `what` is "parameter", "gradient" or "sum".
void check_gradients(std::string_view where, std::string_view what, const std::vector<Form>& forms,
                     const std::vector<NamedTensor>& gradients);

// The parameters' forms. They must be contiguous, of a floating-point type, in host memory, and of
// different names.
std::vector<Form> checked_forms(std::string_view where, const std::vector<Parameter>& parameters);

}  // namespace attend
