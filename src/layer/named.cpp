// Lists of named tensors that must agree with each other.
#include "layer/named.h"

#include "core/printable.h"
#include "core/text.h"
#include "layer/flat.h"

#include <algorithm>
#include <set>

namespace attend {
namespace {

std::string names_of(const std::vector<NamedTensor>& tensors) {
  constexpr std::size_t kShown = 20;
  std::string list;
  for (std::size_t n = 0; n < tensors.size() && n < kShown; ++n)
    list += (n == 0 ? "" : ", ") + in_quotes(tensors[n].name);
  if (tensors.size() > kShown) list += ", ...";
  return list.empty() ? "none" : list;
}

}  // namespace

std::vector<Form> forms_of(const std::vector<NamedTensor>& list) {
  std::vector<Form> forms;
  forms.reserve(list.size());
  for (const auto& [name, tensor] : list) forms.push_back({name, tensor.dtype(), tensor.shape()});
  return forms;
}

void check_in_host_memory(std::string_view where, std::string_view what, std::string_view name,
                          Device device) {
  if (device != Device{})
    throw InvalidArgument(
        text(where, what, in_quotes(name), " is on ", device, ", not in host memory"));
}

std::vector<NamedTensor> in_order(std::string_view where, const std::vector<Form>& forms,
                                  std::vector<NamedTensor> tensors) {
  const std::string there = names_of(tensors);
  std::vector<NamedTensor> ordered;
  for (const Form& form : forms) {
    const auto found = std::find_if(tensors.begin(), tensors.end(),
                                    [&](const NamedTensor& t) { return t.name == form.name; });
    if (found == tensors.end())
      throw InvalidArgument(
          text(where, "there is no tensor ", in_quotes(form.name), "; there are ", there));
    const Tensor& tensor = found->tensor;
    check_in_host_memory(where, "tensor ", form.name, tensor.device());
    if (tensor.dtype() != form.type || tensor.shape() != form.shape)
      throw InvalidArgument(text(where, "tensor ", in_quotes(form.name), " is ", tensor.shape(),
                                 " of ", tensor.dtype(), "; it must be ", form.shape, " of ",
                                 form.type));
    ordered.push_back(std::move(*found));
    tensors.erase(found);
  }
  if (!tensors.empty())
    throw InvalidArgument(text(where, "nothing takes the tensors ", names_of(tensors)));
  return ordered;
}

void check_gradients(std::string_view where, std::string_view what, const std::vector<Form>& forms,
                     const std::vector<NamedTensor>& gradients) {
  if (gradients.size() != forms.size())
    throw InvalidArgument(text(where, "there are ", gradients.size(), " gradients for ",
                               forms.size(), " ", what, "s"));
  for (std::size_t n = 0; n < forms.size(); ++n) {
    const auto& [name, gradient] = gradients[n];
    if (name != forms[n].name)
      throw InvalidArgument(text(where, "gradient ", n, " is of ", in_quotes(name), ", ", what, " ",
                                 n, " is ", in_quotes(forms[n].name)));
    if (!gradient)
      throw InvalidArgument(text(where, "the gradient of ", in_quotes(name), " is missing"));
    check_in_host_memory(where, "the gradient of ", name, gradient.device());
    if (gradient.shape() != forms[n].shape)
      throw InvalidArgument(text(where, "the gradient of ", in_quotes(name), " is ",
                                 gradient.shape(), ", the ", what, " ", forms[n].shape));
    if (!is_floating_point(gradient.dtype()))
      throw InvalidArgument(text(where, "the gradient of ", in_quotes(name), " is ",
                                 gradient.dtype(), ", not a floating-point type"));
  }
}

std::vector<Form> checked_forms(std::string_view where, const std::vector<Parameter>& parameters) {
  std::vector<Form> forms;
  std::set<std::string_view> names;
  for (const auto& [name, value] : parameters) {
    if (!value) throw InvalidArgument(text(where, "parameter ", in_quotes(name), " is missing"));
    if (!names.insert(name).second)
      throw InvalidArgument(text(where, "two parameters are named ", in_quotes(name)));
    check_in_host_memory(where, "parameter ", name, value.device());
    if (value.data() == nullptr && value.count() > 0)
      throw InvalidArgument(text(where, "parameter ", in_quotes(name), " has no address"));
    if (!is_floating_point(value.dtype()))
      throw InvalidArgument(text(where, "parameter ", in_quotes(name), " is ", value.dtype(),
                                 ", not a floating-point type"));
    if (!is_contiguous(value))
      throw InvalidArgument(text(where, "parameter ", in_quotes(name), " is not contiguous"));
    forms.push_back({name, value.dtype(), value.shape()});
  }
  return forms;
}

}  // namespace attend
