// Lists of named tensors that must agree with each other.
#include "layer/named.h"

#include "core/printable.h"
#include "core/text.h"
#include "layer/flat.h"

#include <algorithm>
#include <set>

namespace attend {
namespace {

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw InvalidArgument(text(parts...));
}

std::string names_of(const std::vector<NamedTensor>& tensors) {
  constexpr std::size_t kShown = 20;
  std::string list;
  for (std::size_t n = 0; n < tensors.size() && n < kShown; ++n)
    list += (n == 0 ? "" : ", ") + in_quotes(tensors[n].name);
  if (tensors.size() > kShown) list += ", ...";
  return list.empty() ? "none" : list;
}

}  // namespace

std::vector<NamedTensor> in_order(std::string_view where, const std::vector<Form>& forms,
                                  std::vector<NamedTensor> tensors) {
  std::vector<NamedTensor> ordered;
  for (const Form& form : forms) {
    const auto found = std::find_if(tensors.begin(), tensors.end(),
                                    [&](const NamedTensor& t) { return t.name == form.name; });
    if (found == tensors.end())
      fail(where, "there is no tensor ", in_quotes(form.name), "; there are ", names_of(tensors));
    const Tensor& tensor = found->tensor;
    if (tensor.dtype() != form.type || tensor.shape() != form.shape)
      fail(where, "tensor ", in_quotes(form.name), " is ", tensor.shape(), " of ", tensor.dtype(),
           "; it must be ", form.shape, " of ", form.type);
    ordered.push_back(std::move(*found));
    tensors.erase(found);
  }
  if (!tensors.empty()) fail(where, "nothing takes the tensors ", names_of(tensors));
  return ordered;
}

void check_gradients(std::string_view where, std::string_view what, const std::vector<Form>& forms,
                     const std::vector<NamedTensor>& gradients) {
  if (gradients.size() != forms.size())
    fail(where, "there are ", gradients.size(), " gradients for ", forms.size(), " ", what, "s");
  for (std::size_t n = 0; n < forms.size(); ++n) {
    const auto& [name, gradient] = gradients[n];
    if (name != forms[n].name)
      fail(where, "gradient ", n, " is of ", in_quotes(name), ", ", what, " ", n, " is ",
           in_quotes(forms[n].name));
    if (!gradient) fail(where, "the gradient of ", in_quotes(name), " is missing");
    if (gradient.shape() != forms[n].shape)
      fail(where, "the gradient of ", in_quotes(name), " is ", gradient.shape(), ", the ", what,
           " ", forms[n].shape);
    if (!is_floating_point(gradient.dtype()))
      fail(where, "the gradient of ", in_quotes(name), " is ", gradient.dtype(),
           ", not a floating-point type");
  }
}

std::vector<Form> checked_forms(std::string_view where, const std::vector<Parameter>& parameters) {
  std::vector<Form> forms;
  std::set<std::string_view> names;
  for (const auto& [name, value] : parameters) {
    if (!value) fail(where, "parameter ", in_quotes(name), " is missing");
    if (!names.insert(name).second) fail(where, "two parameters are named ", in_quotes(name));
    if (value.device().kind != Device::Kind::cpu)
      fail(where, "parameter ", in_quotes(name), " is on ", value.device(), ", not in host memory");
    if (!is_floating_point(value.dtype()))
      fail(where, "parameter ", in_quotes(name), " is ", value.dtype(),
           ", not a floating-point type");
    if (!is_contiguous(value)) fail(where, "parameter ", in_quotes(name), " is not contiguous");
    forms.push_back({name, value.dtype(), value.shape()});
  }
  return forms;
}

}  // namespace attend
